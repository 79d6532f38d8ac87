"""What of a run's samples is written: whole groups, a line for every group, and problems of each evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from finished_steps import group, result, scored

from overlap.core import Batch, Group, Prompt, Scored
from overlap.record.json_lines import read_json_lines
from overlap.record.rundir import RunDir
from overlap.record.sample_writer import HELDOUT_KEPT, SampleWriter, spread_evenly


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir.create(str(tmp_path / "run"), {})
    yield made
    made.close()


def writer(run: RunDir, kept: Any = "some", **options: Any) -> SampleWriter:
    return SampleWriter(run, lambda prompt: "", lambda prompt, answer: None, kept, **options)


def passing(number: int, passes: int, *, dropped: str = "") -> Group:
    """A group of 4."""
    verdicts = ("AC",) * passes + ("WA",) * (4 - passes)
    samples = (scored(number, k, float(v == "AC"), says=v) for k, v in enumerate(verdicts))
    return group(number, *samples, dropped=dropped)


def batch(*groups: Group) -> Batch:
    return result(*groups).batch


def evaluated(problems: int) -> list[Scored]:
    found = []
    for number in range(problems):
        for sample in passing(-1 - number, number % 5).samples:
            request = replace(sample.trajectory.request, prompt=Prompt(f"h{number}", (1,)))
            found.append(replace(sample, trajectory=replace(sample.trajectory, request=request)))
    return found


STEP = batch(
    passing(0, 1),
    passing(1, 2),
    passing(2, 0, dropped="equal_rewards"),
    passing(3, 3),
    passing(4, 4, dropped="equal_rewards"),
)


@pytest.mark.promise("samples")
def test_some_are_whole_groups_each_with_the_reason(run: RunDir) -> None:
    writer(run).step(STEP, {})
    rows = read_json_lines(run.trajectories)
    assert [row["id"] for row in rows] == [f"g{n}s{k}" for n in (0, 1, 2, 4) for k in range(4)]
    assert {row["group"]: row["kept_as"] for row in rows} == {0: ["longest"], 1: ["mixed"], 2: ["worst"], 4: ["best"]}
    assert {row["dropped"] for row in rows if row["group"] in (2, 4)} == {"equal_rewards"}


def test_all_are_all_and_none_is_no_file(run: RunDir) -> None:
    writer(run, "none").step(STEP, {})
    writer(run, "none").evaluation(3, evaluated(2))
    assert not run.trajectories.exists()
    writer(run, "all").step(STEP, {})
    rows = read_json_lines(run.trajectories)
    assert [row["id"] for row in rows] == [f"g{n}s{k}" for n in range(5) for k in range(4)]
    assert [row["kept_as"] for row in rows if row["group"] == 3] == [["all"]] * 4
    assert len(read_json_lines(run.groups)) == 5 + 2 + 5


@pytest.mark.promise("samples")
def test_every_group_has_its_line_whatever_is_kept(run: RunDir) -> None:
    weak = replace(passing(0, 3), id=0)
    samples = [replace(s, program_sha256="ab"[k % 2] * 16) for k, s in enumerate(weak.samples)]
    samples[3] = scored(0, 3, None, tokens=9, finish="length")
    writer(run, "none").step(batch(replace(weak, samples=tuple(samples)), passing(1, 0, dropped="equal_rewards")), {})
    first, second = read_json_lines(run.groups)
    assert first == {
        "split": "train", "step": 3, "group": 0, "prompt_id": "p", "samples": 4, "solved": 3, "failed": 1,
        "truncated": 1, "tokens": 21, "reward": 1.0, "reward_std": 0.0, "dropped": "", "verdicts": {"AC": 3}, "weak": 3,
        "programs": 2, "learned": True,
    }  # fmt: skip
    assert (second["dropped"], second["learned"], second["programs"]) == ("equal_rewards", False, 0)


def test_an_evaluation_keeps_the_same_problems_each_time_and_a_line_of_all(run: RunDir) -> None:
    for step in (0, 7):
        writer(run).evaluation(step, evaluated(40))
    rows, groups = read_json_lines(run.trajectories), read_json_lines(run.groups)
    kept = [[row["prompt_id"] for row in rows if row["step"] == step] for step in (0, 7)]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 4 * HELDOUT_KEPT
    assert {row["split"] for row in rows} == {"heldout"}
    assert [row["prompt_id"] for row in groups if row["step"] == 7] == [f"h{n}" for n in range(40)]
    assert {(row["learned"], row["dropped"]) for row in groups} == {(False, "")}


@pytest.mark.parametrize(("count", "most", "first"), [(0, 16, []), (3, 16, [0, 1, 2]), (40, 4, [0, 10, 20, 30])])
def test_chosen_problems_are_spread_evenly(count: int, most: int, first: list[int]) -> None:
    assert spread_evenly(count, most) == first
    assert all(len(set(spread_evenly(n, 16))) == min(n, 16) for n in range(100))


def test_the_log_probs_of_the_learner_stand_in_the_rows_of_their_samples(run: RunDir) -> None:
    writer(run).step(batch(passing(0, 2)), {"g0s1": ((-0.5, -0.5, -0.5, -0.5),)})
    assert ["learner_logprobs" in row for row in read_json_lines(run.trajectories)] == [False, True, False, False]
