"""The small process inside the jail: it confines itself once, forks a child per run, and watches it.

Used only through sandbox.jail, except that the doctor tries the namespaces.
"""

from sandbox.zygote import namespaces
from sandbox.zygote.guard import end_children
from sandbox.zygote.inbox import CANCEL, FORGET
from sandbox.zygote.run_clock import WALL_STRETCH, look_at
from sandbox.zygote.watch import SHORTAGE, descendant_pids, is_ending

__all__ = [
    "CANCEL",
    "FORGET",
    "SHORTAGE",
    "WALL_STRETCH",
    "descendant_pids",
    "end_children",
    "is_ending",
    "look_at",
    "namespaces",
]
