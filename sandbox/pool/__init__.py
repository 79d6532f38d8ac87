"""Many judgements at the same time.

Consumes  programs and problems; produces a Judgement each, or raises SandboxError
Waits for a slot in the queue, then for the supervisor's answer
Woken by  either; cancelling it cancels the job

Names are imported on first use: the worker processes import their own modules of this package, without asyncio.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.pool.counts import Counts, Histogram, PoolStats
    from sandbox.pool.judgement_cache import JudgementCache
    from sandbox.pool.pool import QUEUE_LIMIT, Pool
    from sandbox.pool.quotas import cores, groups_above, memory_bytes, too_much_memory
    from sandbox.pool.run_as_problem import as_problem, checked_names
    from sandbox.pool.schedule import longest_s
    from sandbox.pool.slots import Slots
else:
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "QUEUE_LIMIT",
    "Counts",
    "Histogram",
    "JudgementCache",
    "Pool",
    "PoolStats",
    "Slots",
    "as_problem",
    "checked_names",
    "cores",
    "groups_above",
    "longest_s",
    "memory_bytes",
    "too_much_memory",
]
