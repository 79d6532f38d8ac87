"""The small process inside the jail: it confines itself once, forks a child per run, and watches it.

Used only through sandbox.jail, except that the doctor tries the namespaces. Names are imported on first use, because
every page that an import adds costs each fork.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.zygote import namespaces
    from sandbox.zygote.guard import end_children
    from sandbox.zygote.inbox import CANCEL, FORGET
    from sandbox.zygote.watch import WALL_STRETCH, descendant_pids, is_ending
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "guard": ("end_children",),
            "inbox": ("CANCEL", "FORGET"),
            "watch": ("WALL_STRETCH", "descendant_pids", "is_ending"),
        },
    )

__all__ = ["CANCEL", "FORGET", "WALL_STRETCH", "descendant_pids", "end_children", "is_ending", "namespaces"]
