"""The curves of a run, defined once: the page, the comparison of runs and the picture all draw them from here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from overlap.inspect.run_data import RunData
from overlap.record.report import EXPOSED_SHARE, blank, paced
from overlap.record.timing import WALL_PARTS, mean
from sandbox.core.nouns import Verdict

POINTS = 400
"""Points that a line has at most; over more steps a point is the mean of several."""
DIGITS = 6
LARGEST = 1e60
"""A value beyond what float32 holds is none."""


class Curve(NamedTuple):
    """A chart over the steps: its title and unit, and the metrics with their names and colours (0 to 7).

    ``stacked``: the metrics are parts of a whole. ``share``: values from 0 to 1, shown as percent. ``zero``: the axis
    begins at 0. ``ratio``: of time, so that a mean over steps is that of their sums, and steps without learning are
    left out.
    """

    title: str
    unit: str
    lines: Sequence[tuple[str, str, int]]
    stacked: bool = False
    share: bool = False
    zero: bool = True
    ratio: bool = False
    measure: str = ""
    """The measure of evaluations that are marked on it."""
    note: str = ""

    def look(self) -> dict[str, Any]:
        """What the page needs to draw it, beside its lines."""
        return {name: getattr(self, name) for name in ("title", "unit", "stacked", "share", "zero", "note")}


VERDICT_COLOURS = {"AC": 2, "WA": 1, "TLE": 4, "MLE": 6, "OLE": 3, "RE": 0, "CE": 7, "SEC": 5}
_PARTS = tuple((metric, name, colour) for (name, metric), colour in zip(WALL_PARTS, (0, 1, 4, 2, 7), strict=True))
_GROUPS = (("groups/mixed", "mixed", 0), ("groups/solved", "all solved", 2), ("groups/failed", "all failed", 1))
_VERDICTS = tuple((f"verdicts/{verdict}", str(verdict), VERDICT_COLOURS[str(verdict)]) for verdict in Verdict)
FIRST = (
    Curve("Reward", "mean of a step", [("reward/mean", "samples", 0)], measure="mean reward"),
    Curve(
        "Solved",
        "share",
        [("reward/solved_share", "samples", 2), ("reward/any_solved_share", "any of a group", 4)],
        share=True,
        measure="pass@1",
    ),
    Curve(
        "Groups", "of a step", _GROUPS, stacked=True, share=True, note="A group advantage comes of mixed groups only."
    ),
    Curve("Verdicts", "of the samples", _VERDICTS, stacked=True, share=True),
    Curve("Entropy", "nats per token", [("learn/entropy", "entropy", 0)]),
    Curve(
        "KL", "nats per token", [("learn/kl", "from the reference", 0), ("learn/update_kl", "of a step's updates", 1)]
    ),
    Curve("Gradient norm", "before clipping", [("learn/grad_norm", "policy", 0), ("critic/grad_norm", "critic", 1)]),
    Curve(
        "Ratio of learner to engine",
        "of the sampled tokens",
        [("learn/ratio_p01", "1%", 0), ("learn/ratio_p50", "median", 1), ("learn/ratio_p99", "99%", 2)],
        zero=False,
    ),
    Curve("Response length", "tokens", [("rollout/length_mean", "mean", 0), ("rollout/length_max", "longest", 1)]),
    Curve(
        "Staleness",
        "policy versions",
        [("rollout/staleness_mean", "mean", 0), ("rollout/staleness_max", "oldest", 1)],
    ),
    Curve("Time per step", "s", _PARTS, stacked=True, ratio=True),
    Curve(
        "Overlap",
        "share",
        [("time/overlap_efficiency", "overlap efficiency", 0), (EXPOSED_SHARE, EXPOSED_SHARE, 1)],
        share=True,
        ratio=True,
    ),
)
"""The first screen."""
MORE = (
    Curve(
        "Clipped, capped, masked",
        "of the tokens",
        [
            ("learn/clip_fraction", "clipped", 0),
            ("learn/is_capped_fraction", "weight capped", 1),
            ("learn/is_masked_fraction", "masked", 2),
        ],
        share=True,
    ),
    Curve(
        "Effective samples", "of the samples", [("learn/is_effective_fraction", "importance weights", 0)], share=True
    ),
    Curve(
        "Cut off, not scored",
        "of the samples",
        [("rollout/truncated_share", "cut off before the end", 0), ("verify/failed_share", "not scored", 1)],
        share=True,
    ),
    Curve("Engine against learner after a sync", "nats", [("rollout/parity_gap", "parity gap", 0)]),
    Curve("Critic", "explained variance", [("critic/explained_variance", "of the returns", 0)], zero=False),
    Curve("Episodes", "per episode", [("episode/turns_mean", "turns", 0), ("episode/branches_mean", "branches", 1)]),
    Curve(
        "Change that arrives in the engine", "of the step's change", [("sync/applied_share", "applied", 0)], share=True
    ),
    Curve(
        "Idle",
        "of the step",
        [("time/generator_idle_share", "generator", 0), ("time/learner_idle_share", "learner", 1)],
        share=True,
        ratio=True,
    ),
    Curve(
        "Throughput",
        "response tokens per s",
        [("time/tokens_per_s", "whole step", 0), ("time/decode_tokens_per_s", "while generating", 1)],
        ratio=True,
    ),
)
"""Curves that are folded below ``FIRST``."""
Chart = dict[str, Any]
"""A curve with its values, as JSON: title, unit, share, zero, stacked, note, lines, marks. A line has its name, colour,
values, and running: means over steps, where these are not those of the values. None is a gap.
"""


def run_charts(run: RunData) -> dict[str, Any]:
    """All charts of a run: ``xs``, the steps; ``first`` and ``more``; ``zero``, titles of charts that are always 0."""
    derived = {**_groups(run), **_verdicts(run)}
    found: dict[str, Any] = {"xs": thinned(run.column("step")), "first": [], "more": [], "zero": []}
    for place, curves in (("first", FIRST), ("more", MORE)):
        for curve in curves:
            made = _chart(run, curve, derived)
            values = [value for line in made["lines"] for value in line["values"] if value is not None]
            if any(values) or made["marks"]:
                found[place].append(made)
            elif values:
                found["zero"].append(curve.title)
    return found


def _chart(run: RunData, curve: Curve, derived: Mapping[str, list[float]]) -> Chart:
    lines = []
    for metric, name, colour in curve.lines:
        values, running = derived[metric] if metric in derived else run.column(metric), None
        if curve.ratio and curve.stacked:
            values = blank(run.steps, values)
        elif curve.ratio:
            values, running = paced(run.steps, metric, max(1, len(run.steps) // 12))
        if any(map(_known, values)) and (not curve.stacked or any(value > 0 for value in values)):
            shown = {"name": name, "colour": colour, "values": thinned(values)}
            lines.append(shown | ({"running": thinned(running)} if running else {}))
    return {
        **curve.look(),
        "lines": lines,
        "marks": _marks(run, curve.measure),
        "mark_name": f"held-out {curve.measure}",
    }


def _marks(run: RunData, measure: str) -> list[list[float | None]]:
    """Step, value and bounds of the evaluations in this measure."""
    rates = [(point.step, point.rate.estimate) for point in run.evaluations if point.rate.measure == measure]
    return [[step, *map(_shown, (e.value, e.low, e.high))] for step, e in rates if math.isfinite(e.value)]


def _groups(run: RunData) -> dict[str, list[float]]:
    """The shares of a step's groups that were solved by some samples, by all, and by none."""
    counts: dict[int, list[int]] = {}
    for group in run.groups:
        if group["split"] == "train":
            kind = 2 if not group["solved"] else 0 if group["solved"] < group["samples"] else 1
            counts.setdefault(group["step"], [0, 0, 0])[kind] += 1
    found = [counts.get(int(row["step"]), [0, 0, 0]) for row in run.steps]
    return {
        f"groups/{name}": [row[at] / sum(row) if any(row) else math.nan for row in found]
        for at, name in enumerate(("mixed", "solved", "failed"))
    }


def _verdicts(run: RunData) -> dict[str, list[float]]:
    """The share of each verdict in the judged samples of a step, and that of the samples that were not scored."""
    counts = {str(v): [n if _known(n) else 0.0 for n in run.column(f"verify/{v}")] for v in Verdict}
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    shares = {f"verdicts/{name}": _quotients(column, totals) for name, column in counts.items()}
    return {**shares, "verify/failed_share": _quotients(run.column("verify/failed"), run.column("rollout/samples"))}


def _quotients(parts: Sequence[float], wholes: Sequence[float]) -> list[float]:
    return [part / whole if whole else math.nan for part, whole in zip(parts, wholes, strict=True)]


def thinned(values: Sequence[float]) -> list[float | None]:
    """At most ``POINTS`` values: means over neighbours, None where none of them is known."""
    width = math.ceil(len(values) / POINTS) or 1
    bins = ([v for v in values[at : at + width] if _known(v)] for at in range(0, len(values), width))
    return [_shown(mean(known)) if known else None for known in bins]


def _known(value: float) -> bool:
    return abs(value) < LARGEST


def _shown(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
