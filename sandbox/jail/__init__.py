"""One confined process tree.

Consumes  runs, with descriptors for all data; produces one RunResult each
Waits for the control socket of the process inside
Woken by  its answer, the end of the jail, or a limit

The names below are imported when they are asked for: what runs inside the jail imports its own modules of this room,
and every page that the rest would add costs each fork.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.jail import namespaces, watch
    from sandbox.jail.guard import end_children
    from sandbox.jail.jail import TIERS, Jail, find_packages
    from sandbox.jail.run import Run, RunResult
    from sandbox.jail.spawn import start_process
    from sandbox.jail.watch import WALL_STRETCH
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "guard": ("end_children",),
            "jail": ("TIERS", "Jail", "find_packages"),
            "run": ("Run", "RunResult"),
            "spawn": ("start_process",),
            "watch": ("WALL_STRETCH",),
        },
    )

__all__ = [
    "TIERS",
    "WALL_STRETCH",
    "Jail",
    "Run",
    "RunResult",
    "end_children",
    "find_packages",
    "namespaces",
    "start_process",
    "watch",
]
