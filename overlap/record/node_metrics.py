"""Figures of a step by node: sums in its row, and the nodes that did worst by name in ``nodes.jsonl``.

However many nodes there are, a step leaves as many columns and as many names at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlap.verify import ClusterFigures, NodeFigures

WORST = 8
"""Nodes that a step names."""


def node_row(figures: ClusterFigures | None) -> dict[str, float]:
    """``nodes/``: of all nodes together, the least busy one, the worst known clock. Nothing without a cluster."""
    if figures is None:
        return {}
    there = [node for node in figures.nodes if node.workers]
    workers, run_s = sum(node.workers for node in there), sum(node.run_s for node in figures.nodes)
    shares = [node.busy_share(figures.seconds) for node in there]
    return {
        "nodes/count": len(there),
        "nodes/workers": workers,
        "nodes/judged": sum(node.judged for node in figures.nodes),
        "nodes/run_s": run_s,
        "nodes/lost": sum(node.lost for node in figures.nodes),
        "nodes/busy_share": run_s / (workers * figures.seconds) if workers and figures.seconds > 0 else 0.0,
        "nodes/busy_share_min": min(shares, default=0.0),
        "nodes/clock_error_s_max": max((node.error_s for node in there), default=0.0),
    }


def worst_nodes_line(step: int, figures: ClusterFigures) -> dict[str, Any]:
    """The line of a step: those that lost most, then those that were least busy."""

    def rank(node: NodeFigures) -> tuple[int, float, str]:
        return -node.lost, node.busy_share(figures.seconds), node.node

    worst = sorted(figures.nodes, key=rank)[:WORST]
    rows = [{**node._asdict(), "busy_share": node.busy_share(figures.seconds)} for node in worst]
    return {"step": step, "seconds": figures.seconds, "nodes": len(figures.nodes), "worst": rows}
