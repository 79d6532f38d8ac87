"""The picture of a run: what came of it, how it learned, and where the time went; a point for each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap.atomic import write_atomic
from overlap.record.report import EXPOSED_SHARE, PASS_AT_1, Rows, blank, column, finite, paced
from overlap.record.timing import WALL_PARTS, mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Panel = Callable[[Axes, Rows, list[float]], str]

BLUE, ORANGE, GREEN, RED, GREY, BLACK = "#2f6db3", "#e08a1e", "#3b9b5c", "#c8423b", "#b8bcc4", "#22262e"
Shown = tuple[tuple[str, str, str], ...]
"""Metrics, each with its colour and its name in the legend."""
SOLVED: Shown = (
    ("reward/solved_share", GREEN, "samples"),
    ("reward/any_solved_share", ORANGE, "prompts (any sample)"),
)
LENGTH: Shown = (("rollout/length_mean", BLUE, "mean"), ("rollout/length_max", GREY, "longest"))
KL: Shown = (
    ("learn/ratio_kl", BLUE, "engine to learner"),
    ("learn/update_kl", ORANGE, "over the step"),
    ("learn/kl", GREEN, "reference"),
)
CLIPPED: Shown = (
    ("learn/clip_fraction", BLUE, "clipped"),
    ("learn/is_masked_fraction", RED, "masked"),
    ("learn/is_capped_fraction", ORANGE, "weight cut"),
)
AGES: Shown = (("rollout/staleness_mean", BLUE, "mean"), ("rollout/staleness_max", GREY, "oldest"))
PACE: Shown = (("time/tokens_per_s", BLUE, "whole step"), ("time/decode_tokens_per_s", GREEN, "while generating"))
LEGEND_COLUMNS = 3
MANY = 200
"""Steps beyond which points are small."""
SHORT = 9
"""Steps up to which a curve is no moving mean."""
BARS = 80
"""Steps beyond which bars become areas: so many are slow, and the gaps between them a moiré."""
WIDE = 100.0
LEGEND_ROW = 13.0
"""Height of a legend's row, points."""


def write_picture(
    rows: Rows,
    path: Path,
    *,
    title: str = "",
    evaluations: Mapping[int, Mapping[str, Any]] | None = None,
    measure: str = PASS_AT_1,
) -> None:
    """Draw outcome, learning and time of a run as a PNG. Raises RunDirError.

    ``evaluations`` are figures of the ``measure`` on held-out problems, {"value", "low", "high"}, by step (0: before
    the run).
    """
    image = BytesIO()
    draw_picture(rows, title, evaluations or {}, measure).savefig(image, format="png")
    write_atomic(path, image.getvalue())


def draw_picture(
    rows: Rows, title: str, evaluations: Mapping[int, Mapping[str, Any]], measure: str = PASS_AT_1
) -> Figure:
    """The figure of ``write_picture``."""
    from matplotlib.figure import Figure

    panels = _panels(rows)
    figure = Figure(figsize=(4.1 * len(panels[0]), 3.45 * len(panels)), dpi=120, facecolor="white")
    figure.set_layout_engine("constrained", h_pad=0.09)
    steps = [s if math.isfinite(s) else i + 1 for i, s in enumerate(column(rows, "step"))]
    grid = figure.subplots(len(panels), len(panels[0]))
    drawn = [
        [draw(axes, rows, steps) for axes, draw in zip(*both, strict=True)] for both in zip(grid, panels, strict=True)
    ]
    for axes in grid.flat:
        _style(axes, steps)
    _evaluations(grid[0][1 if measure == PASS_AT_1 else 0], steps, evaluations, measure)
    for row, names in zip(grid, drawn, strict=True):
        # Above the plot, where no curve can run through it; the titles of a row stand level, above the legends.
        tallest = max(_legend(axes) for axes in row)
        for axes, name in zip(row, names, strict=True):
            axes.set_title(name, fontsize=11, loc="left", pad=8 + LEGEND_ROW * tallest)
    if title:
        figure.suptitle(title, fontsize=12, x=0.012, ha="left")
    return figure


def _panels(rows: Rows) -> tuple[tuple[Panel, ...], ...]:
    """By row: what came of it, how it learned, how fast it was; behind them a column for a critic, if there is one."""
    shown: tuple[tuple[Panel, ...], ...] = (
        (
            _reward,
            _curves("Solved share", SOLVED, top=1.02),
            _curves("Response length, tokens", LENGTH),
            _curves("Entropy, nats per token", (("learn/entropy", BLUE, "entropy"),)),
        ),
        (_curves("KL, nats per token", KL), _ratio, _curves("Share of tokens clipped", CLIPPED), _gradient),
        (
            _curves("Age of samples, policy versions", AGES),
            _time,
            _overlap,
            _throughput,
        ),
    )
    if not finite(column(rows, "critic/loss")):
        return shown
    critic: tuple[Panel, ...] = (_explained, _values, _critic_gradient)
    return tuple((*row, beside) for row, beside in zip(shown, critic, strict=True))


def _curves(title: str, shown: Shown, *, top: float = 0.0) -> Panel:
    """A panel of metrics from zero to ``top``, or to the largest; grey ones are lines without points."""

    def draw(axes: Axes, rows: Rows, steps: list[float]) -> str:
        for metric, color, label in shown:
            (_plain if color == GREY else _curve)(axes, steps, column(rows, metric), color, label)
        if top:
            axes.set_ylim(0, top)
        else:
            _from_zero(axes)
        return title

    return draw


def _evaluations(axes: Axes, steps: list[float], evaluations: Mapping[int, Mapping[str, Any]], measure: str) -> None:
    """The ``measure`` of held-out problems with its interval, in black over whatever ``axes`` shows."""
    points = {step: e for step, e in evaluations.items() if e.get("value") is not None and math.isfinite(e["value"])}
    if not points:
        return
    value, low, high = ([e[name] for e in points.values()] for name in ("value", "low", "high"))
    below = [max(0.0, v - x) if math.isfinite(x) else 0.0 for v, x in zip(value, low, strict=True)]
    above = [max(0.0, x - v) if math.isfinite(x) else 0.0 for v, x in zip(value, high, strict=True)]
    style: dict[str, Any] = {"fmt": "D", "color": BLACK, "markersize": 4, "elinewidth": 1.0, "capsize": 2}
    axes.errorbar(list(points), value, yerr=[below, above], label=f"held-out {measure} (95%)", zorder=5, **style)
    _reach(axes, min([*points, *steps]), max([*points, *steps]))


def _legend(axes: Axes) -> int:
    """Put the legend between plot and title; returns its rows. A plot without curves says so."""
    entries = len(axes.get_legend_handles_labels()[1])
    if not entries:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", fontsize=9, color=GREY)
        return 0
    place = {"loc": "lower left", "bbox_to_anchor": (-0.02, 0.985), "borderaxespad": 0.0}
    columns = {"ncols": LEGEND_COLUMNS, "columnspacing": 1.0, "handlelength": 1.2}
    legend = axes.legend(**place, **columns, fontsize=8, frameon=False)
    legend.set_in_layout(False)  # a long legend must not widen its column
    if axes.lines and not axes.patches and not any(any(line.get_ydata()) for line in axes.lines):
        axes.text(0.5, 0.5, "0 in every step", transform=axes.transAxes, ha="center", fontsize=9, color=BLACK)
        axes.set_yticks([0])
    return math.ceil(entries / LEGEND_COLUMNS)


def _style(axes: Axes, steps: list[float]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=8, color=GREY)
    axes.set_xlabel("step", fontsize=9)
    if steps:
        _reach(axes, min(steps), max(steps))


def _reach(axes: Axes, first: float, last: float) -> None:
    """Show the steps from ``first`` to ``last``, and room for a marker at either end."""
    margin = max(0.7, 0.015 * (last - first))
    axes.set_xlim(first - margin, last + margin)


def _curve(axes: Axes, steps: list[float], values: list[float], color: str, label: str) -> None:
    """Points as they are, and as a line the mean of the last few; nothing where there are no values."""
    last = _last(len(values))
    means = [mean(finite(values[max(0, i - last + 1) : i + 1])) for i in range(len(values))]
    _points_and_line(axes, steps, values, means, color, label)


def _points_and_line(
    axes: Axes, steps: list[float], values: list[float], line: list[float], color: str, label: str
) -> None:
    if not finite(values):
        return
    size = 3.0 if len(values) <= MANY else 1.5
    axes.plot(steps, values, "o", color=color, markersize=size, alpha=0.45, markeredgewidth=0)
    axes.plot(steps, line, color=color, linewidth=2, label=label)


def _pace(axes: Axes, rows: Rows, steps: list[float], metric: str, color: str, label: str) -> None:
    """A ratio of time, as a line that of the sums over the last few steps; steps that are blank leave no gap in it."""
    values, line = paced(rows, metric, _last(len(rows)))
    known = [at for at, value in enumerate(line) if not math.isnan(value)]
    steps, values, line = ([each[at] for at in known] for each in (steps, values, line))
    _points_and_line(axes, steps, values, line, color, label)


def _last(count: int) -> int:
    """Steps of a curve's moving mean; of a short run the steps themselves are seen."""
    return max(5, count // 50) if count > SHORT else 1


def _reward(axes: Axes, rows: Rows, steps: list[float]) -> str:
    last = _last(len(rows))
    _curve(axes, steps, column(rows, "reward/mean"), BLUE, f"mean of {last} steps" if last > 1 else "mean of a step")
    return "Mean reward"


def _ratio(axes: Axes, rows: Rows, steps: list[float]) -> str:
    low, high = column(rows, "learn/ratio_p01"), column(rows, "learn/ratio_p99")
    if finite(low) and finite(high):
        axes.fill_between(steps, low, high, color=GREY, alpha=0.45, linewidth=0, label="1 to 99%")
    _curve(axes, steps, column(rows, "learn/ratio_mean"), BLUE, "mean")
    return "Ratio learner / engine"


def _gradient(axes: Axes, rows: Rows, steps: list[float]) -> str:
    _norms(axes, steps, column(rows, "learn/grad_norm"))
    return "Gradient norm, before clipping"


def _norms(axes: Axes, steps: list[float], values: list[float]) -> None:
    """From zero; by powers of ten where one is a hundred times another."""
    _curve(axes, steps, values, BLUE, "norm")
    above = [value for value in finite(values) if value > 0]
    if above and max(above) > WIDE * min(above):
        axes.set_yscale("log")
    else:
        _from_zero(axes)


def _values(axes: Axes, rows: Rows, steps: list[float]) -> str:
    for metric, color in (("value_mean", BLUE), ("return_mean", GREEN), ("loss", RED)):
        _curve(axes, steps, column(rows, f"critic/{metric}"), color, metric.removesuffix("_mean"))
    return "Critic: means"


def _explained(axes: Axes, rows: Rows, steps: list[float]) -> str:
    _curve(axes, steps, column(rows, "critic/explained_variance"), BLUE, "of the returns")
    axes.axhline(0.0, color=GREY, linewidth=1.2)
    low, _ = axes.get_ylim()
    axes.set_ylim(max(low, -1.0), 1.02)
    return "Critic: explained variance"


def _critic_gradient(axes: Axes, rows: Rows, steps: list[float]) -> str:
    _norms(axes, steps, column(rows, "critic/grad_norm"))
    return "Critic: gradient norm"


def _plain(axes: Axes, steps: list[float], values: list[float], color: str, label: str) -> None:
    if finite(values):
        axes.plot(steps, values, color=color, linewidth=1.2 if len(values) <= MANY else 0.5, label=label)


def _from_zero(axes: Axes) -> None:
    """Show zero, below which these figures have nothing, and some room above the highest, more than rounding."""
    axes.set_ylim(0, max(1.04 * axes.get_ylim()[1], 1e-6))


def _time(axes: Axes, rows: Rows, steps: list[float]) -> str:
    bottom = [0.0] * len(rows)
    for (label, metric), color in zip(WALL_PARTS, (BLUE, RED, ORANGE, GREEN, GREY), strict=True):
        heights = [v if math.isfinite(v) else 0.0 for v in blank(rows, column(rows, metric))]
        top = [b + h for b, h in zip(bottom, heights, strict=True)]
        if any(heights) and len(rows) <= BARS:
            axes.bar(steps, heights, bottom=bottom, width=0.85, color=color, label=label)
        elif any(heights):
            axes.fill_between(steps, bottom, top, step="mid", color=color, linewidth=0, label=label, antialiased=False)
        bottom = top
    _plain(axes, steps, blank(rows, column(rows, "time/step_s")), BLACK, "step")
    _from_zero(axes)
    return "Time per step, s"


def _overlap(axes: Axes, rows: Rows, steps: list[float]) -> str:
    _pace(axes, rows, steps, "time/overlap_efficiency", BLUE, "overlap efficiency")
    _pace(axes, rows, steps, EXPOSED_SHARE, RED, "exposed reward / step")
    axes.set_ylim(0, 1.02)
    return "Overlap of generation and verification"


def _throughput(axes: Axes, rows: Rows, steps: list[float]) -> str:
    for metric, color, label in PACE:
        _pace(axes, rows, steps, metric, color, label)
    _from_zero(axes)
    return "Throughput, response tokens/s"
