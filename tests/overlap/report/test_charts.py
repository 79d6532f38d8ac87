"""Tests of the charts: where values lie, gaps, axes by their range, long runs thinned, and unknown figures left out."""

from __future__ import annotations

import math
import re

import pytest

from overlap.report.charts import (
    BOTTOM,
    LEFT,
    POINTS,
    RIGHT,
    TOP,
    Series,
    line_chart,
    round_numbers,
    stacked_chart,
    thinned,
    tick_label,
)
from overlap.report.page import cut_short, esc, figure_text, percent


def points_of(chart: str) -> list[tuple[float, float]]:
    found = re.search(r'class="l"[^>]* points="([^"]*)"', chart)
    assert found
    pairs = (pair.split(",") for pair in found[1].split())
    return [(float(x), float(y)) for x, y in pairs]


def labels_of(chart: str) -> list[str]:
    return re.findall(r'text-anchor="end">([^<]*)<', chart)


def test_a_line_goes_from_corner_to_corner_of_its_axes() -> None:
    chart = line_chart("Share", "of it", [1, 2, 3], [Series("a", [0.0, 0.5, 1.0], 0)], share=True)
    assert points_of(chart) == [(LEFT, BOTTOM), ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2), (RIGHT, TOP)]
    assert labels_of(chart) == ["0%", "25%", "50%", "75%", "100%"]


def test_what_is_not_known_is_a_gap_and_a_figure_that_nowhere_is_known_has_no_chart() -> None:
    chart = line_chart("A", "", [1, 2, 3], [Series("a", [1.0, math.nan, 3.0], 0)])
    assert len(points_of(chart)) == 2
    assert line_chart("A", "", [1, 2], [Series("a", [math.nan, math.inf], 0)]) == ""
    assert stacked_chart("A", "", [1, 2], [Series("a", [0.0, math.nan], 0)]) == ""


def test_a_line_that_is_given_takes_the_place_of_running_means() -> None:
    xs = list(range(48))
    chart = line_chart("A", "", xs, [Series("a", [float(x % 2) for x in xs], 0, running=[0.5] * 48)])
    assert len({y for _, y in points_of(chart)}) == 1
    assert 'class="raw"' in chart


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1e-6, 1e-3, 1.0], ["1e-6", "1e-5", "1e-4", "1e-3", "0.01", "0.1", "1"]),
        ([0.0, 1e-3, 1.0], ["0", "0.5", "1"]),
        ([2.0, 2.0, 2.0], ["0", "1", "2"]),
        ([-1.0, 0.0, 1.0], ["-1", "0", "1"]),
        ([12_000.0, 30_000.0], ["0", "10k", "20k", "30k"]),
    ],
)
def test_an_axis_follows_the_range_of_its_values(values: list[float], labels: list[str]) -> None:
    assert labels_of(line_chart("A", "", list(range(len(values))), [Series("a", values, 0)])) == labels


def test_the_line_of_a_long_run_is_thinned_and_keeps_its_mean() -> None:
    values = [math.sin(k / 50) for k in range(5000)]
    few = thinned(list(enumerate(values)))
    assert len(few) <= POINTS
    assert sum(v for _, v in few) / len(few) == pytest.approx(sum(values) / len(values), abs=1e-3)


@pytest.mark.parametrize("steps", [3, 60, 61, 1000])
def test_the_parts_of_a_stack_lie_on_each_other(steps: int) -> None:
    xs = [float(k) for k in range(1, steps + 1)]
    chart = stacked_chart("A", "", xs, [Series("a", [0.25] * steps, 0), Series("b", [0.75] * steps, 1)], share=True)
    lower, upper = (re.findall(r"[MV ](-?[\d.]+)(?=[hHz])", path) for path in re.findall(r' d="(M[^"]*z)"', chart))
    assert float(upper[0]) == TOP
    assert float(lower[0]) == pytest.approx(BOTTOM - (BOTTOM - TOP) / 4, abs=0.06)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.02), (-3, 5), (0, 1234), (0.999, 1.001), (1e-9, 3e-9)])
def test_round_numbers_lie_within_their_range(low: float, high: float) -> None:
    found = round_numbers(low, high, 5)
    assert 2 <= len(found) <= 9
    assert all(low - 1e-12 <= value <= high + 1e-9 for value in found)
    assert found == sorted(set(found))


def test_figures_are_written_as_people_do() -> None:
    assert [tick_label(v) for v in (0, 1500, 15_000, 2e6, 1e-5, 0.25)] == ["0", "1500", "15k", "2M", "1e-5", "0.25"]
    assert [figure_text(v) for v in (None, math.nan, True, "x", 12345, 0.12345)] == [
        "–",
        "–",
        "True",
        "x",
        "12,345",
        "0.123",
    ]
    assert [percent(v) for v in (None, math.nan, 0.1234)] == ["–", "–", "12.3%"]


def test_text_is_escaped_and_what_nobody_sees_is_written_out() -> None:
    assert esc("<a href='x'>&\"") == "&lt;a href=&#x27;x&#x27;&gt;&amp;&quot;"
    assert esc("a\x00\x1b\u202eb\ud800\tc\n") == "a⟨00⟩⟨1B⟩⟨U+202E⟩b\\ud800\tc\n"
    assert esc("\u061c\u200b\u200f\u2028\u2066") == "⟨U+061C⟩⟨U+200B⟩⟨U+200F⟩⟨U+2028⟩⟨U+2066⟩"


def test_a_long_text_keeps_both_ends() -> None:
    text = "a" * 500 + "z" * 500
    cut = cut_short(text, 90)
    assert cut.startswith("a" * 60 + "\n… 910 characters left out …\n")
    assert cut.endswith("z" * 30)
    assert cut_short(text, 1000) == text
