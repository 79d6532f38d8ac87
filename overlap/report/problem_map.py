"""The pass rate of each problem in each step as a map: which problems are learned, and which never will be."""

from __future__ import annotations

from collections.abc import Iterable

from overlap.analysis.run_data import RunData
from overlap.errors import count_of
from overlap.report.page import esc, section

ROWS, COLUMNS = 90, 240
"""Problems and columns that are drawn; over more steps a column is several."""
WHOLE = 60
"""Steps of which each has a column."""
LEVELS = 6


def pass_rate_map(run: RunData) -> str:
    """A row for each problem and a column for each step, those above that are solved least."""
    rates: dict[str, dict[int, tuple[int, int]]] = {}
    for group in run.groups:
        if group["split"] == "train" and group["samples"]:
            row = rates.setdefault(group["prompt_id"], {})
            solved, samples = row.get(group["step"], (0, 0))
            row[group["step"]] = solved + group["solved"], samples + group["samples"]
    if not rates:
        return ""
    steps = int(max(step for row in rates.values() for step in row))
    often = sorted(rates, key=lambda name: -len(rates[name]))[:ROWS]
    # Of a long run a column is as many steps as a problem comes once in, so that the cells of a row touch.
    several = 1 if steps <= WHOLE else max(-(-steps // COLUMNS), steps // len(rates[often[len(often) // 2]]))
    names = sorted(often, key=lambda name: (_rate(rates[name].values()), name))
    paths: list[list[str]] = [[] for _ in range(LEVELS)]
    for at, name in enumerate(names):
        for column, cells in sorted(_columns(rates[name], several).items()):
            paths[_level(_rate(cells))].append(f"M{column} {14 * at + 1}h1v12h-1z")
    across = -(-steps // several)
    drawn = "".join(f'<path fill="var(--m{k})" d="{"".join(path)}"/>' for k, path in enumerate(paths) if path)
    svg = (
        f'<svg viewBox="0 0 {across} {14 * len(names)}" preserveAspectRatio="none" height="{14 * len(names)}" '
        f'role="img" aria-label="pass rates">{drawn}</svg>'
    )
    ids = "".join(f'<div title="{esc(name)}">{esc(name)}</div>' for name in names)
    ticks = f'<div class="ticks"><span>step 1</span><span>step {steps}</span></div>'
    labels = ("0%", "to 25%", "to 50%", "to 75%", "below 100%", "100%")
    keys = "".join(f'<span><i class="sq" style="color:var(--m{k})"></i>{name}</span>' for k, name in enumerate(labels))
    lead = f"{len(names)} of {len(rates)} problems" if len(names) < len(rates) else count_of(len(names), "problem")
    lead += ", the hardest first; a cell is the share of a problem's samples that were solved in a step"
    lead += f" ({several} steps)." if several > 1 else "."
    body = f'<div class="keys">{keys}</div><div class="map"><div class="names">{ids}</div><div>{svg}{ticks}</div></div>'
    return section("map", "Pass rate by problem and step", body, lead)


def _columns(row: dict[int, tuple[int, int]], several: int) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for step, cell in row.items():
        found.setdefault((step - 1) // several, []).append(cell)
    return found


def _rate(cells: Iterable[tuple[int, int]]) -> float:
    counted = list(cells)
    return sum(solved for solved, _ in counted) / sum(samples for _, samples in counted)


def _level(rate: float) -> int:
    """0: none, 5: all, and in between by quarters."""
    return 0 if rate == 0 else 5 if rate == 1 else 1 + min(3, int(rate * 4))
