"""How many programs a node judges at once: one for each core that is free there.

    cores that Ray counts there ── others have taken some ── our engines and ranks are bound to some ──▶ free

On the driver's own machine, where engine and learner sit, it is ``verify.workers``, as without a cluster. What an agent
gets is taken of Ray's count, so that nobody else comes upon it; the node itself bounds it by what a process may use
there (affinity, control groups), as it does on one machine.
"""

from __future__ import annotations

from typing import NamedTuple

from overlap.cluster.nodes import NodeRefused


class Capacity(NamedTuple):
    """Programs judged at once, and the cores that are taken of Ray's count for them."""

    workers: int
    cpus: int


def capacity(counted: int, free: int, bound: int, here: int | None = None) -> Capacity:
    """Of a node with ``counted`` cores, ``free`` of them nobody's by Ray's count, ``bound`` of those in use by engines
    and ranks of ours. ``here``: it is the driver's machine, which judges so many. Raises NodeRefused.
    """
    left = max(0, free - bound)
    if here is not None:
        return Capacity(here, min(here, left))
    if not left:
        ours = f", engines and learner ranks of this run {min(bound, free)}" if bound else ""
        raise NodeRefused(f"no core of it is free: Ray counts {counted}, others have {counted - free}{ours}")
    return Capacity(left, left)
