"""One confined process tree, and the only interface to pyharness and zygote.

Names are imported on first use: a pool's supervisor needs only a few.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.jail.jail import TIERS, Jail, find_packages
    from sandbox.jail.run import JailedRun, RunResult
    from sandbox.jail.spawn import start_process
    from sandbox.zygote import WALL_STRETCH, descendant_pids, end_children
else:
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "TIERS",
    "WALL_STRETCH",
    "Jail",
    "JailedRun",
    "RunResult",
    "descendant_pids",
    "end_children",
    "find_packages",
    "start_process",
]
