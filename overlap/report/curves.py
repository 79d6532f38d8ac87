"""The curves of a run: what it learned, how healthy that was, and where the time went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from overlap.analysis.run_data import RunData
from overlap.record.report import EXPOSED_SHARE, blank, paced
from overlap.record.timing import WALL_PARTS
from overlap.report.charts import MarkAt, Series, line_chart, or_zero, stacked_chart
from overlap.report.outcome import evaluation_points
from overlap.report.page import esc, section
from sandbox.core.nouns import Verdict


class Curve(NamedTuple):
    """A tile of lines: its title, unit, and the metrics with their names in the legend."""

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    share: bool = False
    zero: bool = True


LEARNING = (
    Curve("Entropy", "nats per token", [("learn/entropy", "entropy")]),
    Curve("KL", "nats per token", [("learn/kl", "from the reference"), ("learn/update_kl", "of a step's updates")]),
    Curve("Gradient norm", "before clipping", [("learn/grad_norm", "policy"), ("critic/grad_norm", "critic")]),
    Curve(
        "Ratio of learner to engine",
        "of the sampled tokens",
        [("learn/ratio_p01", "1%"), ("learn/ratio_p50", "median"), ("learn/ratio_p99", "99%")],
        zero=False,
    ),
    Curve(
        "Clipped, capped, masked",
        "of the tokens",
        [
            ("learn/clip_fraction", "clipped"),
            ("learn/is_capped_fraction", "weight capped"),
            ("learn/is_masked_fraction", "masked"),
        ],
        share=True,
    ),
    Curve("Staleness", "policy versions", [("rollout/staleness_mean", "mean"), ("rollout/staleness_max", "oldest")]),
    Curve("Effective samples", "of the samples", [("learn/is_effective_fraction", "importance weights")], share=True),
    Curve("Response length", "tokens", [("rollout/length_mean", "mean"), ("rollout/length_max", "longest")]),
    Curve(
        "Cut off, not scored",
        "of the samples",
        [("rollout/truncated_share", "cut off before the end"), ("verify/failed_share", "not scored")],
        share=True,
    ),
    Curve("Engine against learner after a sync", "nats", [("rollout/parity_gap", "parity gap")]),
    Curve("Critic", "explained variance", [("critic/explained_variance", "of the returns")], zero=False),
    Curve("Episodes", "per episode", [("episode/turns_mean", "turns"), ("episode/branches_mean", "branches")]),
    Curve("Change that arrives in the engine", "of the step's change", [("sync/applied_share", "applied")], share=True),
)
TIME = (
    Curve(
        "Overlap",
        "share",
        [("time/overlap_efficiency", "overlap efficiency"), (EXPOSED_SHARE, EXPOSED_SHARE)],
        share=True,
    ),
    Curve(
        "Idle",
        "of the step",
        [("time/generator_idle_share", "generator"), ("time/learner_idle_share", "learner")],
        share=True,
    ),
    Curve(
        "Throughput",
        "response tokens per s",
        [("time/tokens_per_s", "whole step"), ("time/decode_tokens_per_s", "while generating")],
    ),
)
PART_COLOURS = (0, 1, 4, 2, 7)
"""Of ``WALL_PARTS``."""
VERDICT_COLOURS = {"AC": 2, "WA": 1, "TLE": 4, "MLE": 6, "OLE": 3, "RE": 0, "CE": 7, "SEC": 5}


def steps_of(run: RunData) -> list[float]:
    """The numbers of the steps."""
    return run.column("step")


def learning_curves(run: RunData) -> str:
    """Reward, solved, groups, verdicts, and the learner's health."""
    xs = steps_of(run)
    if not xs:
        return ""
    tiles = [_reward(run, xs), _solved(run, xs), group_triple(run, xs), _verdicts(run, xs)]
    flat = []
    for curve in LEARNING:
        lines = [Series(name, _column(run, metric), k) for k, (metric, name) in enumerate(curve.lines)]
        if all(v == 0 for line in lines for v in line.values if math.isfinite(v)):
            flat += [curve.title] if any(math.isfinite(v) for line in lines for v in line.values) else []
            continue
        tiles.append(line_chart(curve.title, curve.unit, xs, lines, share=curve.share, zero=curve.zero))
    note = f'<p class="note">0 in every step: {esc(", ".join(flat))}.</p>' if flat else ""
    lead = "Strong lines are running means, faint ones the steps themselves; docs/metrics.md says what each is."
    return section(
        "curves", "Learning", f'<div class="tiles">{"".join(tiles)}</div>{note}', lead if len(xs) > 24 else ""
    )


def time_curves(run: RunData) -> str:
    """Where the time of the steps went."""
    xs = steps_of(run)
    coloured = zip(WALL_PARTS, PART_COLOURS, strict=True)
    parts = [Series(name, blank(run.steps, run.column(metric)), colour) for (name, metric), colour in coloured]
    tiles = [stacked_chart("Time per step", "s", xs, parts)] if xs else []
    for curve in TIME:
        lines = []
        for k, (metric, name) in enumerate(curve.lines):
            values, running = paced(run.steps, metric, max(1, len(xs) // 12))
            lines.append(Series(name, values, k, running=running))
        tiles.append(line_chart(curve.title, curve.unit, xs, lines, share=curve.share, zero=curve.zero))
    lead = "Exposed reward is the time from the last token of a step to its last verdict, which nothing hides. "
    lead += "A step in which nothing was learned is blank here."
    return section("time", "Time", f'<div class="tiles">{"".join(tiles)}</div>' if any(tiles) else "", lead)


def _column(run: RunData, metric: str) -> list[float]:
    """A metric over the steps, or a share that is made of two."""
    if metric != "verify/failed_share":
        return run.column(metric)
    pairs = zip(run.column("verify/failed"), run.column("rollout/samples"), strict=True)
    return [a / b if b else math.nan for a, b in pairs]


def _reward(run: RunData, xs: list[float]) -> str:
    points = [p for p in evaluation_points(run) if p[1]["measure"] == "mean reward"]
    return line_chart(
        "Reward", "mean of a step", xs, [Series("samples", run.column("reward/mean"), 0)],
        marks=_marks(points), mark_name="held-out",
    )  # fmt: skip


def _solved(run: RunData, xs: list[float]) -> str:
    points = [p for p in evaluation_points(run) if p[1]["measure"] == "pass@1"]
    lines = [("reward/solved_share", "samples", 2), ("reward/any_solved_share", "any of a group", 4)]
    series = [Series(name, run.column(metric), colour) for metric, name, colour in lines]
    return line_chart("Solved", "share", xs, series, share=True, marks=_marks(points), mark_name="held-out pass@1")


def _marks(points: Sequence[tuple[int, dict[str, Any]]]) -> list[MarkAt]:
    found = []
    for step, figures in points:
        value, low, high = (math.nan if figures[name] is None else figures[name] for name in ("value", "low", "high"))
        if math.isfinite(value):
            found.append((float(step), value, low, high))
    return found


def group_triple(run: RunData, xs: list[float]) -> str:
    """Groups that were solved by some samples, by all, and by none."""
    counts: dict[int, list[int]] = {}
    for group in run.groups:
        if group["split"] == "train":
            good = group["solved"]
            kind = 0 if 0 < good < group["samples"] else 1 if good else 2
            counts.setdefault(group["step"], [0, 0, 0])[kind] += 1
    if not counts:
        kept, dropped = (run.column(f"rollout/groups_{name}") for name in ("kept", "dropped"))
        return stacked_chart(
            "Groups", "of a step", xs, [Series("learned from", kept, 0), Series("taught nothing", dropped, 7)]
        )
    shares = [[n / sum(found) for n in found] if (found := counts.get(int(x))) else [0.0] * 3 for x in xs]
    names = ("mixed", "all solved", "all failed")
    series = [Series(name, [row[k] for row in shares], (0, 2, 1)[k]) for k, name in enumerate(names)]
    return stacked_chart(
        "Groups", "of a step", xs, series, share=True, note="Only mixed groups teach a group advantage."
    )


def _verdicts(run: RunData, xs: list[float]) -> str:
    counts = {str(v): list(map(or_zero, run.column(f"verify/{v}"))) for v in Verdict}
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    series = [
        Series(name, [n / t if t else 0.0 for n, t in zip(column, totals, strict=True)], VERDICT_COLOURS[name])
        for name, column in counts.items()
    ]
    return stacked_chart("Verdicts", "of the samples", xs, series, share=True)
