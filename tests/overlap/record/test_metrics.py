"""The row of a step against examples worked by hand, and its documentation."""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from finished_steps import group, result, scored
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from overlap.core import ClusterFigures, NodeFigures, StepReport, Used
from overlap.evaluation.evaluate import PassRate, ProblemTally
from overlap.evaluation.history import EvaluationHistory
from overlap.evaluation.history import row as evaluation_row
from overlap.pipeline.control import LoopState
from overlap.pipeline.learning import StepResult
from overlap.record import metrics
from overlap.record.metrics import WORST, episode_row, node_row, step_row, worst_nodes_line
from overlap.record.timing import TIMINGS, clip, merge_spans, step_times, union_s

LOOP = LoopState(3, 2, 1, 8, 16, 0.5, 2.5, 9.0)


def row_of(made: StepResult, began: float = 0.0, extra: dict[str, float] | None = None) -> metrics.Row:
    return step_row(made, step_times(made, (began, made.parity_span[1]), []), extra=extra)


def test_a_row_counts_the_samples_of_dropped_groups_too():
    kept = group(0, scored(0, 0, 1.0, says="AC", tokens=10), scored(0, 1, 0.0, says="WA", tokens=30, finish="length"))
    lost = group(1, scored(1, 0, 0.0, says="TLE"), scored(1, 1, 0.0, says="WA"), dropped="All rewards equal (0.0)")
    ours = group(2, scored(2, 0, None, verdict=0.0, verify=0.0), dropped="!")
    report = StepReport(3, 3, 1.0, {"loss": 0.5, "grad/norm": 2.0})
    spans = {"learn_span": (2, 5), "sync_span": (5, 6), "parity_span": (6, 6)}
    made = result(kept, lost, ours, version=2, report=report, loop=LOOP, **spans)
    expected = {
        "step": 3, "version": 3,
        "reward/mean": 0.25, "reward/std": math.sqrt(3) / 4, "reward/solved_share": 0.25, "reward/masked": 1,
        "reward/any_solved_share": 1 / 3, "reward/all_solved_share": 0.0, "reward/none_solved_share": 1 / 3,
        "reward/mixed_share": 1 / 3, "reward/zero_std_share": 1 / 3,
        "verify/AC": 1, "verify/WA": 2, "verify/TLE": 1, "verify/failed": 1, "verify/run_s_p50": 1.0,
        "rollout/samples": 5, "rollout/tokens": 52, "rollout/length_mean": 10.4, "rollout/length_max": 30,
        "rollout/truncated_share": 0.2, "rollout/groups_kept": 1, "rollout/groups_dropped": 2,
        "rollout/dropped_all_rewards_equal_0_0": 1, "rollout/dropped_other": 1,
        "rollout/staleness_mean": 2.0, "rollout/staleness_max": 2, "rollout/parity_gap": 0.01,
        "learn/loss": 0.5, "grad/norm": 2.0, "time/step_s": 6.0, "time/exposed_reward_s": 1.0,
        "time/save_s": 4.0,
        "loop/generating": 3, "loop/leases_allowed": 16, "loop/learner_waited_s": 2.5,
    }  # fmt: skip
    row = row_of(made, extra={"time/save_s": 4.0})
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_punishments_are_told_of_the_scored_samples_beside_rewards_without_them():
    kept = replace(group(0, scored(0, 0, 1.0), scored(0, 1, 0.0), scored(0, 2, None)), punishments=(-0.5, 0.0, -0.5))
    lost = replace(group(1, scored(1, 0, 1.0), dropped="equal_rewards"), punishments=(-0.1,))
    row = row_of(result(kept, lost))
    assert row["reward/mean"] == pytest.approx(2 / 3)
    assert (row["reward/overlong_mean"], row["reward/overlong_share"]) == pytest.approx((-0.2, 2 / 3))
    assert not [name for name in row_of(result(group(0, scored(0, 0)))) if "overlong" in name]


def test_shares_of_the_samples_by_age_have_no_gap_and_make_one():
    ages = (0, 0, 2, 0, 2, 5, 2, 0)
    row = row_of(result(group(0, *(scored(0, i, version=9 - age) for i, age in enumerate(ages))), version=9))
    shares = {name: value for name, value in row.items() if name.startswith("rollout/staleness_share_")}
    assert shares == {f"rollout/staleness_share_{age}": ages.count(age) / 8 for age in range(6)}


def test_a_step_that_taught_nothing_keeps_the_version_and_still_has_a_row():
    row = row_of(result(group(0, scored(0, 0, 0.0), dropped="equal rewards"), version=4, parity_span=(3, 3)))
    assert (row["version"], row["reward/mean"], row["rollout/groups_kept"]) == (4, 0.0, 0)
    assert math.isnan(row["rollout/parity_gap"])
    assert not [name for name in row if "staleness_share" in name]


def test_a_verification_that_failed_before_it_began_takes_no_time():
    lost = scored(0, 1, None, started=10.0, ended=14.0, verify=0.0, verdict=90.0)
    row = row_of(result(group(0, scored(0, 0, started=10.0, ended=14.0, verify=14.0, verdict=15.0), lost)), began=10)
    assert (row["time/reward_s"], row["time/exposed_reward_s"], row["verify/run_s_max"]) == (1, 1, 1)


def test_the_way_back_from_a_node_is_no_part_of_what_a_judgement_took():
    away, here = (
        scored(0, k, says="AC", node=n, run_s=3.0, verify=10.0, verdict=15.0) for k, n in enumerate(("n", ""))
    )
    row = row_of(result(group(0, away, here)))
    assert (row["verify/run_s_p50"], row["verify/run_s_max"], row["verify/back_s_mean"]) == (3.0, 5.0, 2.0)
    assert row["time/reward_s"] == 5.0  # nobody has a verdict before it is back


def test_a_row_has_the_sums_of_all_nodes_and_those_that_are_gone_have_no_workers() -> None:
    busy = NodeFigures("a", 4, "A", judged=8, run_s=36.0, error_s=0.001)
    idle = NodeFigures("b", 4, "B", judged=1, run_s=4.0, error_s=0.004)
    gone = NodeFigures("c", judged=1, run_s=8.0, lost=3)
    assert node_row(ClusterFigures(10.0, (busy, idle, gone))) == pytest.approx(
        {
            "nodes/count": 2, "nodes/workers": 8, "nodes/judged": 10, "nodes/run_s": 48.0, "nodes/lost": 3,
            "nodes/busy_share": 0.6, "nodes/busy_share_min": 0.1, "nodes/clock_error_s_max": 0.004,
        }
    )  # fmt: skip
    assert [set(node_row(ClusterFigures(seconds, ())).values()) for seconds in (0.0, 5.0)] == [{0.0}, {0.0}]
    assert node_row(None) == {}  # there is no cluster


def test_of_a_thousand_nodes_a_few_are_named_those_that_lost_most_and_then_the_least_busy() -> None:
    nodes = [NodeFigures(f"n{i:03d}", 4, "A", judged=1, run_s=float(i)) for i in range(1000)]
    nodes[700] = nodes[700]._replace(lost=2)
    line = worst_nodes_line(3, ClusterFigures(10.0, tuple(nodes)))
    assert (line["step"], line["nodes"]) == (3, 1000)
    assert [row["node"] for row in line["worst"]] == ["n700", *(f"n{i:03d}" for i in range(WORST - 1))]
    assert line["worst"][0]["busy_share"] == pytest.approx(700 / 40)


# --- documentation --------------------------------------------------------------------------------------------

DOCUMENTED = [
    name
    for line in (ROOT / "docs" / "metrics.md").read_text("utf-8").splitlines()
    if line.startswith("| `")
    for name in re.findall(r"`([^`]+)`", line.split("|")[1])
]


def matches(documented: str, name: str) -> bool:
    return re.fullmatch(re.sub(r"<\w+>", lambda _: r"[\w{}]+", documented), name) is not None


def names_in_the_source() -> set[str]:
    """Every string of the shape of a metric in the modules that make them, "{}" for what is filled in."""
    found = set()
    modules = ["overlap/record/metrics.py"]
    modules += [f"overlap/learner/{name}.py" for name in ("arrival", "critic", "trainer")]
    for tree in [ast.parse((ROOT / module).read_text("utf-8")) for module in modules]:
        for node in ast.walk(tree):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in parts)
            if re.fullmatch(r"[a-z]+/[\w{}]*[\w}]", text) and not text.endswith(("/{}", "_")):
                found.add(text)
    return found


def a_full_row() -> dict[str, float]:
    """A row to which every part of a run has added what it can."""
    one = scored(3, 0)
    used = Used(3, 9, 30, 16, 1, 0, rerendered=5, refused={"n": 2, "context": 1}, ignored={"tool_choice": 4})
    turns = replace(one, trajectory=replace(one.trajectory, used=used))
    made = result(group(3, turns), report=StepReport(1, 1, 1.0, dict.fromkeys(trainer_metrics(), 0.5)), loop=LOOP)
    figures = EvaluationHistory().add(3, PassRate((ProblemTally("a", 1, 4),), 4))
    beside = evaluation_row(figures) | {"rollout/prompts_solved": 1.0}
    return row_of(made, extra=beside | node_row(ClusterFigures(1.0, ())) | episode_row(made, 2))


@pytest.mark.promise("documents")
def test_every_metric_has_its_line_in_the_documentation_and_every_line_is_of_a_metric():
    """Also one that a step has seldom: the names in the source count."""
    names = a_full_row().keys() | names_in_the_source()
    assert {"verify/back_s_mean", "episode/turns_mean", "nodes/count", "critic/loss", "reward/overlong_mean"} <= names
    assert sorted(name for name in names if not any(matches(line, name) for line in DOCUMENTED)) == []
    assert [line for line in DOCUMENTED if not any(matches(line, name) for name in names)] == []
    assert not any(matches(line, "reward/unheard_of") for line in DOCUMENTED)


def trainer_metrics() -> set[str]:
    """The names that the learner reports, out of its source: importing it would import torch."""
    source = (ROOT / "overlap" / "learner" / "statistics.py").read_text("utf-8")
    found = re.findall(r"^(?:_MEANS|_MAXIMA|_QUANTILES|METRICS) = ([({].*?)[)}]$", source, re.DOTALL | re.MULTILINE)
    names = {name for part in found for name in re.findall(r'"(\w+)"', part)}
    assert {"loss", "ratio_max", "ratio_p50", "landing_gap_mean"} <= names
    return {*names, *("grad_norm", "lr", "tokens", "tokens_padded_share", "forward_backward_s", "optimizer_s")}


READERS = [
    *(ROOT / "overlap/inspect").glob("*_checks.py"),
    *(ROOT / f"overlap/inspect/{name}.py" for name in ("compare", "curves", "outcome")),
    *(ROOT / f"overlap/record/{name}.py" for name in ("progress", "report")),
]


@pytest.mark.parametrize("path", READERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_only_metrics_that_there_are_are_read(path: Path) -> None:
    """A misspelt one would be a curve that is never drawn, or a warning that is never told."""
    sections = "|".join(sorted({name.partition("/")[0] for name in DOCUMENTED if "/" in name}))
    read = set(re.findall(rf'"((?:{sections})/[a-z0-9_]*[a-z0-9])"', path.read_text("utf-8")))
    made = {"verify/failed_share"}  # of two metrics, by the curves
    assert [name for name in read - made if not any(matches(line, name) for line in DOCUMENTED)] == []


Span = tuple[float, float]
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda s: (min(s), max(s))), max_size=12)


def times_of(
    generated: list[Span], verified: list[Span], step: Span, *, engine: list[Span] | None = None, **more: Span
):
    pairs = [(*span, *judged) for span, judged in zip(generated, verified, strict=True)]
    times = [dict(zip(("started", "ended", "verify", "verdict"), pair, strict=True)) for pair in pairs]
    made = group(0, *(scored(0, k, tokens=450, **at) for k, at in enumerate(times)))
    found = step_times(result(made, **more), step, generated if engine is None else engine)
    assert tuple(found) == TIMINGS
    return found


@given(spans)
def test_a_union_counts_time_once_as_counting_the_seconds_one_by_one_does(some):
    seconds = {t for start, end in some for t in range(start, end)}
    assert union_s([*some, (5, 1)]) == len(seconds)
    assert union_s(clip(some, (10, 40))) == len([t for t in seconds if 10 <= t < 40])
    assert merge_spans([(4, 6), (0, 2), (1, 3), (6, 7)]) == [(0, 3), (4, 7)]


@pytest.mark.promise("figures")
def test_a_step_whose_rewards_are_hidden_but_for_the_tail():
    # requests 0..10 and 2..18; verdicts 10..14 and 18..20: 4 s hidden, 2 s exposed
    # learned 20..26, synced to 27, checked to 30
    after = {"learn_span": (20, 26), "sync_span": (26, 27), "parity_span": (27, 30)}
    assert times_of([(0, 10), (2, 18)], [(10, 14), (18, 20)], (0, 30), **after) == {
        "step_s": 30,
        "generate_s": 18,
        "reward_s": 6,
        "exposed_reward_s": 2,
        "overlap_efficiency": pytest.approx((18 + 6 - 20) / 6),
        "generator_idle_share": pytest.approx(12 / 30),
        "learner_idle_share": pytest.approx(24 / 30),
        "learn_s": 6,
        "sync_s": 1,
        "parity_s": 3,
        "samples_per_s": pytest.approx(2 / 30),
        "tokens_per_s": 30,
        "decode_tokens_per_s": 50,
    }


@pytest.mark.promise("figures")
@pytest.mark.parametrize(
    ("generated", "verified", "end", "efficiency", "exposed_s"),
    [
        pytest.param((0, 180), [(180, 320)], 320, 0, 140, id="one after the other"),
        pytest.param((0, 180), [(20, 160)], 180, 1, 0, id="hidden in full"),
        pytest.param((0, 10), [(10, 14)] * 8, 14, 0, 4, id="verifications at once count as wall time"),
        pytest.param((0, 10), [(14, 16)], 16, 0, 6, id="a pause between them"),
    ],
)
def test_overlap_is_what_the_wall_time_shows(generated, verified, end, efficiency, exposed_s):
    found = times_of([generated] * len(verified), verified, (0, end))
    assert (found["overlap_efficiency"], found["exposed_reward_s"]) == (efficiency, exposed_s)


def test_an_engine_busy_with_later_batches_is_not_idle():
    step = {"step": (0, 10), "learn_span": (0, 8), "sync_span": (8, 10)}
    assert times_of([(-9, 0)], [(0, 1)], **step)["generator_idle_share"] == 1
    shared = times_of([(-9, 0)], [(0, 1)], engine=[(-9, 0), (0, 7)], **step)
    assert (shared["generator_idle_share"], shared["learner_idle_share"]) == pytest.approx((0.3, 0.2))
