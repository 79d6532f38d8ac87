"""Figures by node: sums in a step's row, and the few that did worst by name."""

from __future__ import annotations

import pytest

from overlap.record import RunDir, read_json_lines
from overlap.record.node_metrics import WORST, node_row, worst_nodes_line
from overlap.verify import ClusterFigures, NodeFigures


def test_a_row_has_the_sums_of_all_nodes_and_those_that_are_gone_have_no_workers() -> None:
    busy = NodeFigures("a", 4, "A", judged=8, run_s=36.0, error_s=0.001)
    idle = NodeFigures("b", 4, "B", judged=1, run_s=4.0, error_s=0.004)
    gone = NodeFigures("c", judged=1, run_s=8.0, lost=3)
    row = node_row(ClusterFigures(10.0, (busy, idle, gone)))
    assert row == pytest.approx(
        {
            "nodes/count": 2, "nodes/workers": 8, "nodes/judged": 10, "nodes/run_s": 48.0, "nodes/lost": 3,
            "nodes/busy_share": 0.6, "nodes/busy_share_min": 0.1, "nodes/clock_error_s_max": 0.004,
        }
    )  # fmt: skip


def test_without_a_cluster_a_row_has_nothing_of_it() -> None:
    assert node_row(None) == {}


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_cluster_without_a_node_has_figures_too(seconds: float) -> None:
    assert set(node_row(ClusterFigures(seconds, ())).values()) == {0.0}


def test_of_a_thousand_nodes_a_few_are_named_those_that_lost_most_and_then_the_least_busy() -> None:
    nodes = [NodeFigures(f"n{i:03d}", 4, "A", judged=1, run_s=float(i)) for i in range(1000)]
    nodes[700] = nodes[700]._replace(lost=2)
    line = worst_nodes_line(3, ClusterFigures(10.0, tuple(nodes)))
    assert (line["step"], line["nodes"]) == (3, 1000)
    assert [row["node"] for row in line["worst"]] == ["n700", *(f"n{i:03d}" for i in range(WORST - 1))]
    assert line["worst"][0]["busy_share"] == pytest.approx(700 / 40)


def test_the_lines_of_steps_that_a_run_goes_back_behind_are_cut_off(tmp_path) -> None:
    run = RunDir.create(str(tmp_path / "run"), {})
    for step in (1, 2, 3):
        run.nodes_of(step, ClusterFigures(1.0, ()))
    run.rewind(step=1, metrics=0, trajectories=0)
    run.nodes_of(2, ClusterFigures(1.0, ()))
    run.close()
    assert [row["step"] for row in read_json_lines(run.nodes)] == [1, 2]
