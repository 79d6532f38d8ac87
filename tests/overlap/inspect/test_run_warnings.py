"""Tests of the warnings: each has a made run of which it alone is told, and healthy runs are told nothing."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from ill_runs import HEALTHY_RUNS, ILL
from kept_rows import kept_row, write_rows
from places import ROOT

from overlap.config.fields import Config
from overlap.inspect.health import CHECKS, run_warnings
from overlap.inspect.run_data import RunData, load_run
from overlap.inspect.run_warning import RunWarning

FoundOf = Callable[[str], list[RunWarning]]


@pytest.fixture(scope="module")
def found_of(tmp_path_factory: pytest.TempPathFactory) -> FoundOf:
    """The warnings of the made run for a kind, which is made once."""
    folder = tmp_path_factory.mktemp("ill")
    return cache(lambda kind: run_warnings(load_run(ILL[kind].make(folder / kind))))


@pytest.mark.promise("health")
@pytest.mark.parametrize("kind", list(ILL))
def test_an_ill_run_is_told_of_its_illness_and_of_no_other(found_of: FoundOf, kind: str) -> None:
    found = found_of(kind)
    assert {warning.kind for warning in found} == ILL[kind].kinds, [str(w) for w in found]
    (warning,) = [warning for warning in found if warning.kind == kind]
    assert "\n" not in str(warning)


@pytest.mark.promise("health")
@pytest.mark.parametrize("name", list(HEALTHY_RUNS))
def test_a_healthy_run_is_told_nothing(tmp_path: Path, name: str) -> None:
    assert [str(w) for w in run_warnings(load_run(HEALTHY_RUNS[name].make(tmp_path / "run")))] == []


@pytest.mark.parametrize("steps", [8, 12, 30])
def test_chance_is_no_warning(tmp_path: Path, steps: int) -> None:
    """Rewards of a policy that stays as it is, of 8 samples a step, over 300 runs."""
    (tmp_path / "config.yaml").write_text("learn: {advantage: group}\n")
    told: list[str] = []
    for seed in range(300):
        rng = random.Random(seed)
        solved = [[rng.random() < 0.5 for _ in range(8)] for _ in range(steps)]
        rows = [
            {"step": k, "rollout/groups_kept": 2, "rollout/samples": 8, "reward/mean": fmean(each)}
            | {"reward/std": pstdev(each), "learn/grad_norm": rng.gammavariate(4, 0.3)}
            for k, each in enumerate(solved, 1)
        ]
        told += [warning.kind for warning in run_warnings(RunData(tmp_path, rows))]
    assert told == []


Course = Callable[[int], float]


def _told(folder: Path, steps: int, **columns: float | Course) -> list[str]:
    """The kinds told of a run of 8 samples a step with these columns, values or functions of the step's number."""
    (folder / "config.yaml").write_text("learn: {advantage: group}\n")
    given = {"reward/mean": 0.5, "reward/std": 0.5, "rollout/groups_kept": 2, "rollout/samples": 8} | columns
    rows = [
        {"step": step, **{name: value(step) if callable(value) else value for name, value in given.items()}}
        for step in range(1, steps + 1)
    ]
    return [warning.kind for warning in run_warnings(RunData(folder, rows))]


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("entropy_growth", {"learn/entropy": lambda k: 0.1 * k}),
        ("length_growth", {"rollout/length_mean": lambda k: 10.0 * k}),
        ("lost_updates", {"sync/applied_share": 0.05}),
    ],
)
def test_a_reward_that_is_higher_by_chance_hides_no_illness(
    tmp_path: Path, kind: str, columns: dict[str, float | Course]
) -> None:
    """Means of three steps of 8 samples differ by 0.14 as they are drawn."""
    assert _told(tmp_path, 20, **{"reward/mean": lambda k: 0.6 if k > 17 else 0.5}, **columns) == [kind]
    assert _told(tmp_path, 20, **{"reward/mean": lambda k: k / 20}, **columns) == []


@pytest.mark.parametrize("steps", [2, 5, 20])
def test_gradients_that_are_no_numbers_are_told_however_short_the_run_is(tmp_path: Path, steps: int) -> None:
    assert _told(tmp_path, steps, **{"learn/grad_norm": math.nan}) == ["gradient_spikes"]
    assert _told(tmp_path, steps, **{"learn/grad_norm": 0.5}) == []


@pytest.mark.promise("health")
def test_low_entropy_is_the_success_of_a_policy_that_solves_its_problems(tmp_path: Path) -> None:
    falls = {"learn/entropy": lambda k: 0.8 if k < 10 else 0.01}
    assert _told(tmp_path, 20, **falls, **{"reward/solved_share": 0.5}) == ["entropy_collapse"]
    assert _told(tmp_path, 20, **falls, **{"reward/solved_share": 0.95}) == []


def test_groups_without_signal_are_told_only_of_a_policy_that_fails_and_not_by_chance(tmp_path: Path) -> None:
    def told(steps: int, **columns: float) -> list[str]:
        dropped = {"rollout/groups_kept": 1, "rollout/groups_dropped": 4}
        return _told(tmp_path, steps, **dropped, **columns)

    assert told(8, **{"reward/solved_share": 0.2}) == ["no_signal"]
    assert told(4, **{"reward/solved_share": 0.97}) == []
    assert told(1, **{"reward/solved_share": 0.2}) == []


def test_every_check_has_its_made_run_and_its_line_in_the_documentation() -> None:
    assert set(CHECKS) == set(ILL)
    text = (ROOT / "docs" / "look.md").read_text("utf-8").partition("\n## Warnings\n")[2].partition("\n## ")[0]
    assert [kind for kind in CHECKS if f"| `{kind}` |" not in text] == []
    assert [kind for kind in re.findall(r"^\| `(\w+)` \|", text, re.M) if kind not in CHECKS] == []


def test_the_ways_out_name_fields_that_there_are(found_of: FoundOf) -> None:
    known = {f"{section}.{name}" for section, values in Config().to_dict().items() for name in values}
    sections = "|".join(Config().to_dict())
    for kind in ILL:
        for warning in found_of(kind):
            named = re.findall(rf"\b(?:{sections})\.[a-z_]+\b", str(warning))
            assert [name for name in named if name not in known and not name.endswith((".md", ".log"))] == [], warning


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        ({"reward/mean": 0.0, "reward/std": 0.0}, "every reward was 0: the problems are too hard"),
        ({"reward/mean": 1.0, "reward/std": 0.0}, "every reward was 1: the problems are too easy"),
        ({"reward/mean": 0.5, "reward/std": 0.5}, "the samples of each group had equal rewards"),
        ({"reward/mean": 0.0, "reward/std": 0.0, "rollout/truncated_share": 1.0}, "every response was cut off"),
        ({"reward/mean": math.nan}, "no sample could be scored"),
    ],
)
def test_a_run_in_which_nothing_could_be_learned_is_told_why(
    tmp_path: Path, figures: dict[str, float], cause: str
) -> None:
    (tmp_path / "config.yaml").write_text("learn: {advantage: group}\n")
    none = [{"step": step, "rollout/groups_kept": 0, **figures} for step in (1, 2)]
    (warning,) = run_warnings(RunData(tmp_path, none))
    assert cause in warning.way_out
    one = [*none, {"step": 3, "rollout/groups_kept": 1}]
    assert run_warnings(RunData(tmp_path, one)) == []


def test_names_in_a_warning_cannot_command_the_terminal_that_it_goes_to(tmp_path: Path) -> None:
    row = {"program_sha256": "0", "verdict": "AC", "kept_as": []}
    rows = [kept_row(**row, prompt_id=f"p{n}\x1b[31m\n\u202e") for n in range(9)]
    folder = write_rows(tmp_path / "run", *rows, config="learn: {advantage: group}\n")
    told = run_warnings(RunData(folder, [{"step": 3, "rollout/groups_kept": 1}]))
    assert [warning.kind for warning in told] == ["duplicate_programs"]
    assert "p0" in str(told[0])
    assert str(told[0]).isprintable()
