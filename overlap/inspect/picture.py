"""The picture of a run: the curves of the page's first screen as a PNG."""

from __future__ import annotations

from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap.inspect.curves import run_charts
from overlap.inspect.run_data import RunData
from overlap.process.atomic import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5cc0", "#8a8f98")
ACROSS = 4


def write_picture(run: RunData, path: Path, *, title: str = "") -> None:
    """Draw the curves of a run. Raises RunDirError."""
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
