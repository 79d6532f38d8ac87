"""The curves of a run: the page draws all of them, the picture ``FIRST``; comparisons have ``Curve``s of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from overlap.inspect.run_data import RunData
from overlap.process.atomic import write_atomic
from overlap.record.report import EXPOSED_SHARE, blank, paced
from overlap.record.timing import WALL_PARTS, mean
from sandbox.core.nouns import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 400
"""Points that a line has at most; over more steps a point is the mean of several."""
DIGITS = 6
LARGEST = 1e60
"""A value beyond what float32 holds is none."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5cc0", "#8a8f98")
ACROSS = 4


class Curve(NamedTuple):
    """A chart over the steps: its title and unit, and its metrics, each with its name.

    ``stacked``: the metrics are parts of a whole. ``share``: values from 0 to 1, shown as percent. ``zero``: the axis
    begins at 0. ``ratio``: of time, so that a mean over steps is that of their sums, and steps without learning are
    left out. ``colours``: of the lines, numbers from 0 to 7.
    """

    title: str
    unit: str
    lines: Mapping[str, str]
    stacked: bool = False
    share: bool = False
    zero: bool = True
    ratio: bool = False
    measure: str = ""
    """The measure of evaluations that are marked on it."""
    note: str = ""
    colours: Sequence[int] = range(8)

    def look(self) -> dict[str, Any]:
        """Return the page's data of it, beside its lines."""
        return {name: getattr(self, name) for name in ("title", "unit", "stacked", "share", "zero", "note")}


VERDICT_COLOURS = {"AC": 2, "WA": 1, "TLE": 4, "MLE": 6, "OLE": 3, "RE": 0, "CE": 7, "SEC": 5}
_PARTS = {metric: name for name, metric in WALL_PARTS}
_GROUPS = {"groups/mixed": "mixed", "groups/solved": "all solved", "groups/failed": "all failed"}
_VERDICTS = {f"verdicts/{verdict}": str(verdict) for verdict in Verdict}
_OF_VERDICTS = [VERDICT_COLOURS[str(verdict)] for verdict in Verdict]
_RATIOS = {"learn/ratio_p01": "1%", "learn/ratio_p50": "median", "learn/ratio_p99": "99%"}
_SOLVED = {"reward/solved_share": "samples", "reward/any_solved_share": "any of a group"}
_CLIPPED = {
    "learn/clip_fraction": "clipped",
    "learn/is_capped_fraction": "weight capped",
    "learn/is_masked_fraction": "masked",
}
_CUT_OFF = {"rollout/truncated_share": "cut off before the end", "verify/failed_share": "not scored"}
_KL = {"learn/kl": "from the reference", "learn/update_kl": "of a step's updates"}
_OVERLAP = {"time/overlap_efficiency": "overlap efficiency", EXPOSED_SHARE: EXPOSED_SHARE}
_IDLE = {"time/generator_idle_share": "generator", "time/learner_idle_share": "learner"}
_SPEED = {"time/tokens_per_s": "whole step", "time/decode_tokens_per_s": "while generating"}
_MIXED = "A group advantage comes of mixed groups only."
FIRST = (
    Curve("Reward", "mean of a step", {"reward/mean": "samples"}, measure="mean reward"),
    Curve("Solved", "share", _SOLVED, share=True, measure="pass@1", colours=(2, 4)),
    Curve("Groups", "of a step", _GROUPS, stacked=True, share=True, note=_MIXED, colours=(0, 2, 1)),
    Curve("Verdicts", "of the samples", _VERDICTS, stacked=True, share=True, colours=_OF_VERDICTS),
    Curve("Entropy", "nats per token", {"learn/entropy": "entropy"}),
    Curve("KL", "nats per token", _KL),
    Curve("Gradient norm", "before clipping", {"learn/grad_norm": "policy", "critic/grad_norm": "critic"}),
    Curve("Ratio of learner to engine", "of the sampled tokens", _RATIOS, zero=False),
    Curve("Response length", "tokens", {"rollout/length_mean": "mean", "rollout/length_max": "longest"}),
    Curve("Staleness", "policy versions", {"rollout/staleness_mean": "mean", "rollout/staleness_max": "oldest"}),
    Curve("Time per step", "s", _PARTS, stacked=True, ratio=True, colours=(0, 1, 4, 2, 7)),
    Curve("Overlap", "share", _OVERLAP, share=True, ratio=True),
)
"""The first screen."""
MORE = (
    Curve("Clipped, capped, masked", "of the tokens", _CLIPPED, share=True),
    Curve("Effective samples", "of the samples", {"learn/is_effective_fraction": "importance weights"}, share=True),
    Curve("Cut off, not scored", "of the samples", _CUT_OFF, share=True),
    Curve("Engine against learner after a sync", "nats", {"rollout/parity_gap": "parity gap"}),
    Curve("Critic", "explained variance", {"critic/explained_variance": "of the returns"}, zero=False),
    Curve("Episodes", "per episode", {"episode/turns_mean": "turns", "episode/branches_mean": "branches"}),
    Curve("Change that arrives in the engine", "of the step's change", {"sync/applied_share": "applied"}, share=True),
    Curve("Idle", "of the step", _IDLE, share=True, ratio=True),
    Curve("Throughput", "response tokens per s", _SPEED, ratio=True),
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
    for (metric, name), colour in zip(curve.lines.items(), curve.colours, strict=False):
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


def write_picture(run: RunData, path: Path, *, title: str = "") -> None:
    """Draw the curves of the page's first screen as a PNG. Raises RunDirError."""
    from matplotlib.figure import Figure

    charts = run_charts(run)
    rows = max(1, -(-len(charts["first"]) // ACROSS))
    figure = Figure(figsize=(4.1 * ACROSS, 3.2 * rows), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=12, x=0.012, ha="left")
    for axes, chart in zip_longest(figure.subplots(rows, ACROSS).flat, charts["first"]):
        if chart is None:
            axes.set_axis_off()
        else:
            _draw(axes, charts["xs"], chart)
    image = BytesIO()
    figure.savefig(image, format="png")
    write_atomic(path, image.getvalue())


def _draw(axes: Axes, xs: list[float], chart: dict[str, Any]) -> None:
    axes.set_title(f"{chart['title']}, {chart['unit']}", fontsize=10, loc="left", pad=30)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.locator_params(axis="x", integer=True)
    lines = [([float("nan") if v is None else v for v in line["values"]], line) for line in chart["lines"]]
    if chart["stacked"]:
        parts = [[value if value == value else 0.0 for value in values] for values, _ in lines]
        colours = [COLOURS[line["colour"]] for _, line in lines]
        axes.stackplot(xs, *parts, labels=[line["name"] for _, line in lines], colors=colours, step="mid")
    else:
        for values, line in lines:
            axes.plot(xs, values, ".-", color=COLOURS[line["colour"]], label=line["name"], linewidth=1.2, markersize=3)
    for step, value, low, high in chart["marks"]:
        ends = [[value - (value if low is None else low)], [(value if high is None else high) - value]]
        axes.errorbar([step], [value], yerr=ends, fmt="D", color="#22262e", markersize=4, capsize=2)
    if chart["zero"]:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0] if axes.dataLim.y0 < 0 else 0.0))
    axes.legend(fontsize=7, frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(-0.02, 0.99))
