"""Charts as inline SVG: lines over steps, and parts stacked to a whole. Text is as large as on the page around it.

A chart has 360 units across, about as many as a tile has pixels; colours are the page's variables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from overlap.record.timing import mean
from overlap.report.page import esc

WIDTH, HEIGHT = 360.0, 192.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 350.0, 18.0, 172.0
LARGEST = 1e60
"""A value beyond what float32 holds is none."""
POINTS = 400
"""Points that a line has at most; the values between them are averaged."""
BARS = 60
"""Bars of a stack that stand apart; more of them become one shape."""
COLOURS = 7
MarkAt = tuple[float, float, float, float]
"""x, value, low, high."""


@dataclass(frozen=True, slots=True)
class Series:
    """A named line, or part of a stack. NaN is a gap."""

    name: str
    values: Sequence[float]
    colour: int
    xs: Sequence[float] | None = None
    """Its own places on the x axis; None: the chart's."""
    running: Sequence[float] | None = None
    """What its line shows where there are many values; None: running means of them."""

    @property
    def ink(self) -> str:
        """The page's variable of its colour."""
        return f"var(--c{self.colour % (COLOURS + 1)})"

    def known(self, xs: Sequence[float], *, line: bool = False) -> list[tuple[float, float]]:
        """Places and values that are numbers, and can be drawn; with ``line`` those of ``running``."""
        values = self.running if line else self.values
        return [(x, v) for x, v in zip(self.xs or xs, values, strict=True) if abs(v) < LARGEST] if values else []


def line_chart(
    title: str,
    unit: str,
    xs: Sequence[float],
    series: Sequence[Series],
    *,
    x_unit: str = "step",
    share: bool = False,
    zero: bool = True,
    marks: Sequence[MarkAt] = (),
    mark_name: str = "",
) -> str:
    """A tile with lines; "" where no value is known. ``share``: values from 0 to 1, shown as percent. ``zero``: the
    axis begins at 0. The axis is logarithmic where positive values span more than three orders of magnitude.
    """
    drawn = [s for s in series if s.known(xs)]
    if not drawn and not marks:
        return ""
    every = [v for s in drawn for line in (False, True) for _, v in s.known(xs, line=line)]
    every += [v for mark in marks for v in mark[1:] if math.isfinite(v)]
    places = [x for s in drawn for x, _ in s.known(xs)] + [mark[0] for mark in marks]
    log = not share and min(every) > 0 and max(every) / min(every) > 1000
    axis = _Axis.of(
        places, [math.log10(v) for v in every] if log else every, zero=zero and not log, share=share, log=log
    )
    body = "".join(axis.line(s.known(xs), s, s.known(xs, line=True)) for s in drawn) + "".join(map(axis.mark, marks))
    keys = [(s.name, s.ink, "") for s in drawn] + ([(mark_name, "var(--mark)", "sq")] if marks else [])
    return _tile(title, unit, axis, body, keys, x_unit)


def stacked_chart(
    title: str, unit: str, xs: Sequence[float], series: Sequence[Series], *, share: bool = False, note: str = ""
) -> str:
    """A tile with bars of parts on each other; "" where all are 0 or unknown. Over many steps a bar is a mean."""
    drawn = [s for s in series if any(v > 0 for v in s.values)]
    if not drawn:
        return ""
    width = math.ceil(len(xs) / 150)
    bins = [slice(at, at + width) for at in range(0, len(xs), width)]
    heights = [[or_zero(mean(v for v in s.values[b] if abs(v) < LARGEST)) for b in bins] for s in drawn]
    places = [mean(xs[b]) for b in bins]
    tops = [sum(column) for column in zip(*heights, strict=True)]
    axis = _Axis.of([places[0] - width / 2, places[-1] + width / 2], [0.0, *tops], zero=True, share=share, log=False)
    lower, body = [0.0] * len(bins), ""
    for s, part in zip(drawn, heights, strict=True):
        upper = [a + b for a, b in zip(lower, part, strict=True)]
        path = _bars(axis, lower, upper) if len(bins) <= BARS else _steps(axis, lower, upper)
        body += f'<path fill="{s.ink}" d="{path}"/>'
        lower = upper
    return _tile(title, unit, axis, body, [(s.name, s.ink, "sq") for s in drawn], "step", note)


def _bars(axis: _Axis, lower: Sequence[float], upper: Sequence[float]) -> str:
    """A bar for each bin, with gaps between them."""
    wide = (RIGHT - LEFT) / len(lower)
    path = []
    for at, (low, high) in enumerate(zip(lower, upper, strict=True)):
        if high > low:
            down, bar = axis.y(low) - axis.y(high), 0.82 * wide
            path.append(f"M{_c(LEFT + wide * (at + 0.09))} {_c(axis.y(high))}h{_c(bar)}v{_c(down)}h{_c(-bar)}z")
    return "".join(path)


def _steps(axis: _Axis, lower: Sequence[float], upper: Sequence[float]) -> str:
    """One shape with a step for each bin: the seams between many thin bars would show."""
    wide, count = (RIGHT - LEFT) / len(lower), len(lower)
    there = "".join(f"V{_c(axis.y(high))}H{_c(LEFT + wide * (at + 1))}" for at, high in enumerate(upper))
    back = "".join(f"V{_c(axis.y(lower[at]))}H{_c(LEFT + wide * at)}" for at in range(count - 1, -1, -1))
    return f"M{LEFT:g} {BOTTOM:g}{there}{back}z"


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where values lie in the drawing; of a logarithmic axis ``y0`` and ``y1`` are exponents."""

    x0: float
    x1: float
    y0: float
    y1: float
    share: bool
    log: bool

    @classmethod
    def of(cls, places: Sequence[float], values: Sequence[float], *, zero: bool, share: bool, log: bool) -> _Axis:
        low, high = min(values), max(values)
        if share and high <= 1:
            low, high = min(0.0, low), max(high, 0.05) if high < 0.25 else 1.0
        elif zero and low >= 0:
            low = 0.0
        if high - low < 1e-12 * max(1.0, abs(high)):
            low, high = (low, low + 1) if low == 0 or log else (low - abs(low) * 0.1, high + abs(high) * 0.1)
        elif not share:
            spare = (high - low) * 0.06
            low, high = (low if zero and low == 0 else low - spare), high + spare
        return cls(min(places), max(places), low, high, share, log)

    def x(self, value: float) -> float:
        """Across."""
        return LEFT + (RIGHT - LEFT) * ((value - self.x0) / (self.x1 - self.x0) if self.x1 > self.x0 else 0.5)

    def y(self, value: float) -> float:
        """Down."""
        return BOTTOM - (BOTTOM - TOP) * (value - self.y0) / (self.y1 - self.y0)

    def line(self, known: Sequence[tuple[float, float]], s: Series, running: Sequence[tuple[float, float]] = ()) -> str:
        """A line; of many values their running mean, or what is given as that, with themselves faint behind it."""
        placed, given = self._placed(known), self._placed(running)
        if len(placed) == 1:
            return f'<circle cx="{_c(placed[0][0])}" cy="{_c(placed[0][1])}" r="3" fill="{s.ink}"/>'
        style, body = f'style="stroke:{s.ink}"', ""
        if (wide := len(placed) // 12) >= 2:
            body = f'<polyline class="raw" {style} points="{_points(placed)}"/>'
            ys = [y for _, y in placed]
            # Behind the point alone: what is drawn for a step knows nothing of later ones.
            placed = given or [(x, mean(ys[max(0, at - wide + 1) : at + 1])) for at, (x, _) in enumerate(placed)]
        return f'{body}<polyline class="l" data-n="{esc(s.name)}" {style} points="{_points(placed)}"/>'

    def _placed(self, known: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(self.x(x), self.y(math.log10(v) if self.log else v)) for x, v in thinned(known)]

    def mark(self, at: MarkAt) -> str:
        """A diamond with its interval."""
        x, value, low, high = at
        px, py = self.x(x), self.y(value)
        bar = "" if not (math.isfinite(low) and math.isfinite(high)) else (
            f'<path class="mark" d="M{_c(px)} {_c(self.y(max(low, self.y0)))}V{_c(self.y(min(high, self.y1)))}"/>'
        )  # fmt: skip
        return f'{bar}<path class="mark" d="M{_c(px)} {_c(py - 4)}l4 4l-4 4l-4-4z"/>'

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Heights of the grid lines, and what stands beside them."""
        if self.log:
            first, last = math.ceil(self.y0), math.floor(self.y1)
            for power in range(first, last + 1, max(1, (last - first) // 4)):
                yield self.y(power), f"1e{power}" if abs(power) > 2 else f"{10.0**power:g}"
            return
        for value in round_numbers(self.y0, self.y1, 5):
            yield self.y(value), f"{100 * value:.3g}%" if self.share else tick_label(value)


def thinned(known: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most ``POINTS`` points: means over bins of neighbours."""
    width = math.ceil(len(known) / POINTS) or 1
    bins = (known[at : at + width] for at in range(0, len(known), width))
    return [(mean(x for x, _ in each), mean(v for _, v in each)) for each in bins] if width > 1 else list(known)


def round_numbers(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers from ``low`` to ``high``."""
    rough = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [round(first * step + k * step, 12) for k in range(int((high - first * step) / step + 1e-9) + 1)]


def tick_label(value: float) -> str:
    """A tick's label: "1.5k", "2M", "1e-5"."""
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= 10 * unit or (size >= unit and unit > 1e3):
            return f"{value / unit:.4g}{name}"
    return f"{value:.0e}".replace("e-0", "e-") if 0 < size < 1e-3 else f"{value:.6g}"


def _tile(
    title: str, unit: str, axis: _Axis, body: str, keys: Iterable[tuple[str, str, str]], x_unit: str, note: str = ""
) -> str:
    grid = "".join(
        f'<path class="grid" d="M{LEFT:g} {_c(y)}H{RIGHT:g}"/><text x="{LEFT - 6:g}" y="{_c(y + 4)}" '
        f'text-anchor="end">{esc(label)}</text>'
        for y, label in axis.ticks()
    )
    whole = x_unit == "step"
    for value in round_numbers(axis.x0, axis.x1, 6) if axis.x1 > axis.x0 else [axis.x0]:
        if not whole or value == int(value):
            at, label = _c(axis.x(value)), esc(tick_label(value))
            grid += f'<text x="{at}" y="{BOTTOM + 15:g}" text-anchor="middle">{label}</text>'
    legend = "".join(f'<span><i class="{kind}" style="color:{ink}"></i>{esc(name)}</span>' for name, ink, kind in keys)
    data = f'data-x="{axis.x0:g} {axis.x1:g} {LEFT:g} {RIGHT:g}" '
    data += f'data-y="{axis.y0:g} {axis.y1:g} {BOTTOM:g} {TOP:g} {axis.log:d}"'
    return (
        f'<div class="tile"><h3>{esc(title)}</h3><div class="keys">{legend}</div>'
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{esc(title)}" data-u="{esc(x_unit)}" {data}>'
        f'{grid}<path class="axis" d="M{LEFT:g} {BOTTOM:g}H{RIGHT:g}"/>'
        f'<text x="2" y="{TOP - 9:g}">{esc(unit)}</text>'
        f'<text x="2" y="{BOTTOM + 15:g}">{esc(x_unit)}</text>'
        f'{body}<path class="cross" d=""/></svg><div class="read"></div>{f"<p>{esc(note)}</p>" if note else ""}</div>'
    )


def _points(placed: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{_c(x)},{_c(y)}" for x, y in placed)


def _c(value: float) -> str:
    """A coordinate; a tenth of a pixel is more than an eye sees."""
    return f"{value:.1f}".removesuffix(".0")


def or_zero(value: float) -> float:
    """A figure, or 0 where it is not known."""
    return value if math.isfinite(value) else 0.0
