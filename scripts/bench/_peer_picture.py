"""The pictures of ``peers``: a panel of bars for each figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

OURS, OTHERS = "#1f6feb", "#9aa4b2"
ACROSS = 2
"""Panels beside each other; their number is a multiple."""
SIZE = (4.0, 0.42)
"""Inches: width of a panel, height of a bar."""


def draw(path: Path, panels: Mapping[str, Mapping[str, float]], ours: str) -> None:
    """Write an SVG: for each figure (with its unit) a bar a side; sides whose name begins with ``ours`` stand out."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams |= {"svg.hashsalt": path.stem, "svg.fonttype": "none"}  # the same figures: the same small file
    from matplotlib import pyplot

    names, rows = list(next(iter(panels.values()))), -(-len(panels) // ACROSS)
    size = (SIZE[0] * ACROSS, SIZE[1] * (len(names) + 2) * rows)
    figure, axes = pyplot.subplots(rows, ACROSS, figsize=size, sharey=True, layout="constrained", squeeze=False)
    for plot, (title, values) in zip(axes.flat, panels.items(), strict=True):
        colors = [OURS if name.startswith(ours) else OTHERS for name in names]
        bars = plot.barh(names, [values[name] for name in names], color=colors)
        plot.bar_label(bars, fmt="%.3g", padding=3)
        plot.set_title(title, fontsize="medium")
        plot.margins(x=0.18)
        plot.spines[["top", "right"]].set_visible(False)
    axes[0][0].invert_yaxis()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
