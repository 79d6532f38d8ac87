"""The picture of a run: whole whatever the run has recorded, readable, and with a panel for what it learned."""

from __future__ import annotations

import itertools
import math
import struct
import warnings

import pytest

from overlap.errors import RunDirError
from overlap.record.picture import draw_picture, write_picture
from overlap.record.report import TIMINGS

LEARNED = ("entropy", "ratio_kl", "update_kl", "kl", "ratio_mean", "clip_fraction", "is_masked_fraction", "grad_norm")
CRITIC = ("loss", "value_mean", "return_mean", "explained_variance", "grad_norm")


def rows(count: int, *, gaps: bool = False, critic: bool = False) -> list[dict[str, float | None]]:
    """``gaps``: a third of the figures are not known, or not numbers. ``critic``: it learned alone at first."""
    made: list[dict[str, float | None]] = []
    for k in range(1, count + 1):
        row: dict[str, float | None] = {f"time/{name}": float(k) for name in TIMINGS}
        row |= {"step": k, "reward/mean": k / 100, "reward/solved_share": 0.5, "reward/any_solved_share": 0.9}
        row |= {"rollout/length_mean": 90.0, "rollout/length_max": 256, "rollout/staleness_mean": 0.5}
        row |= {"rollout/staleness_max": 1.0, "learn/ratio_p01": 0.9, "learn/ratio_p99": 1.1}
        if not critic or k > 3:
            row |= {f"learn/{name}": 0.1 * (k % 7) for name in LEARNED}
        if critic:
            row |= {f"critic/{name}": 0.1 * (k % 5) for name in CRITIC}
        if gaps:
            unknown = itertools.cycle((None, math.nan, math.inf))
            row = {name: value if (k + n) % 3 else next(unknown) for n, (name, value) in enumerate(row.items())}
        made.append(row)
    return made


@pytest.mark.parametrize("count", [0, 2])
def test_a_picture_of_any_number_of_steps_is_a_whole_png(tmp_path, count):
    path = tmp_path / "picture.png"
    gap = {"step": 3, "time/step_s": None, "reward/mean": math.nan}
    write_picture([*rows(count), gap][: count + count // 2], path, title="a run")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (1968, 1242)
    assert data[-8:-4] == b"IEND"
    with pytest.raises(RunDirError, match="cannot write"):
        write_picture([], tmp_path / "none" / "picture.png")


EVALUATED = {s: {"value": s / 100, "low": s / 200, "high": s / 50} for s in (0, 10, 20, 30, 40)}


@pytest.mark.parametrize(
    ("count", "evaluations", "kinds"),
    [(0, {}, {}), (1, {}, {}), (40, EVALUATED, {}), (40, {}, {"gaps": True}), (40, EVALUATED, {"critic": True})],
)
def test_no_text_of_a_picture_covers_another(count, evaluations, kinds):
    figure = draw_picture(rows(count, **kinds), "smollm2-135m-instruct, 300 steps", evaluations)
    figure.draw_without_rendering()
    boxes = {"title of the picture": figure._suptitle.get_window_extent()}
    for axes in figure.axes:
        name = axes.get_title(loc="left")
        boxes[f"title {name}"] = axes._left_title.get_window_extent()
        if (legend := axes.get_legend()) is not None:
            boxes[f"legend {name}"] = legend.get_window_extent()
        boxes[f"plot {name}"] = axes.get_window_extent().shrunk(1.0, 0.98)  # a legend stands close above it
    assert all(name.split()[-1] for name in boxes)
    for (a, box), (b, other) in itertools.combinations(boxes.items(), 2):
        assert not box.overlaps(other), (a, b)
    whole = figure.bbox
    for name, box in boxes.items():
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1, name
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1, name


def test_a_picture_shows_every_evaluation_that_found_something():
    unknown = {"value": None, "low": 0.0, "high": 1.0}
    figure = draw_picture(rows(40), "", {**EVALUATED, 35: unknown})
    solved = figure.axes[1]
    drawn = solved.containers[0].lines[0].get_xydata().tolist()
    assert drawn == [[step, step / 100] for step in EVALUATED]
    left, right = solved.get_xlim()
    assert left < 0 < 40 < right
    assert figure.axes[0].get_xlim()[0] > 0


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def curves(figure, title):
    return [
        text.get_text()
        for axes in figure.axes
        if axes.get_title(loc="left") == title
        for text in axes.get_legend().texts
    ]


def test_a_picture_shows_how_the_run_learned_beside_what_came_of_it():
    figure = draw_picture(rows(20), "", {})
    assert titles(figure)[3:9] == [
        "Entropy, nats per token",
        "KL, nats per token",
        "Ratio learner / engine",
        "Share of tokens clipped",
        "Gradient norm, before clipping",
        "Age of samples, policy versions",
    ]
    assert curves(figure, "KL, nats per token") == ["engine to learner", "over the step", "reference"]
    assert len(figure.axes) == 12
    assert titles(draw_picture(rows(20, critic=True), "", {}))[4::5] == [
        "Critic: explained variance",
        "Critic: means",
        "Critic: gradient norm",
    ]


def test_a_figure_that_was_never_recorded_has_no_curve_and_an_empty_panel_says_so():
    without = [
        {
            name: value
            for name, value in row.items()
            if "clip" not in name and "masked" not in name and name != "learn/kl"
        }
        for row in rows(9)
    ]
    figure = draw_picture(without, "", {})
    assert curves(figure, "KL, nats per token") == ["engine to learner", "over the step"]
    (panel,) = [axes for axes in figure.axes if axes.get_title(loc="left") == "Share of tokens clipped"]
    assert [text.get_text() for text in panel.texts] == ["no values"]


def test_a_panel_whose_figures_are_all_zero_says_so():
    figure = draw_picture(
        [{**row, "rollout/staleness_mean": 0.0, "rollout/staleness_max": 0} for row in rows(9)], "", {}
    )
    (panel,) = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("Age of samples")]
    assert [text.get_text() for text in panel.texts] == ["0 in every step"]


@pytest.mark.parametrize(("count", "label"), [(4, "mean of a step"), (30, "mean of 5 steps")])
def test_the_curve_of_a_short_run_is_that_of_its_steps(count, label):
    made = [{**row, "reward/mean": float(row["step"] % 2)} for row in rows(count)]
    reward = draw_picture(made, "", {}).axes[0]
    points, curve = (list(line.get_ydata()) for line in reward.lines)
    assert (curve == points) is (count == 4)
    assert curves(reward.figure, "Mean reward") == [label]


@pytest.mark.parametrize(("largest", "scale"), [(3.0, "linear"), (300.0, "log")])
def test_a_gradient_that_leaps_is_drawn_by_powers_of_ten(largest, scale):
    norms = [{"step": step, "learn/grad_norm": 0.5 if step != 4 else largest} for step in range(1, 9)]
    (panel,) = [a for a in draw_picture(norms, "", {}).axes if a.get_title(loc="left").startswith("Gradient")]
    assert panel.get_yscale() == scale


@pytest.mark.parametrize(("count", "kinds"), [(0, {}), (1, {"gaps": True}), (40, {"gaps": True}), (300, {})])
def test_a_picture_is_drawn_without_a_warning(count, kinds):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_picture(rows(count, **kinds), "a run", {}).draw_without_rendering()


def test_a_step_in_which_nothing_was_learned_is_blank_in_pace_and_time_and_its_tokens_count_in_the_sums():
    made = [row | {"rollout/groups_kept": 4, "time/step_s": 10.0, "time/tokens_per_s": 50.0} for row in rows(12)]
    made = [row | {"time/exposed_reward_s": 1.0} for row in made]
    made[7] |= {"rollout/groups_kept": 0, "time/step_s": 0.04, "time/tokens_per_s": 12500.0}  # 500 tokens
    panels = draw_picture(made, "", {}).axes
    _, time, overlap, pace = panels[-4:]
    points, line = pace.lines[:2]
    assert 8 not in points.get_xdata()
    assert set(points.get_ydata()) == {50.0}
    window = (500 * 4 + 500) / 40.04  # the steps 5 to 9
    assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True))[9] == pytest.approx(window)
    assert max(overlap.lines[2].get_ydata()) == pytest.approx(0.1)
    assert [bar.get_height() for group in time.containers for bar in group][7::12] == [0.0] * len(time.containers)
    assert math.isnan(time.lines[0].get_ydata()[7])
