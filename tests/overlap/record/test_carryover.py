"""Results that no step has taken come back from a checkpoint as they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from finished_steps import awkward, given_up
from generated_samples import generated_prompt, generated_sample
from wide import wide

from overlap.core import Prompt, Request, Scored, Trajectory, Used
from overlap.errors import ConfigError
from overlap.record.carryover import CARRIED, Carryover, save_carryover
from overlap.record.rollouts import Rollouts, write_rollouts


def back(folder: Path, at_s: float = 0.0) -> tuple[Scored, ...]:
    return Carryover.load(folder).scored(lambda group: Prompt(f"p{group % 3}", (1, 2, group % 3)), at_s)


def unset(*nouns: Any) -> set[str]:
    """Fields that have their default in all of them."""
    return {f.name for f in fields(nouns[0]) if all(getattr(noun, f.name) == f.default for noun in nouns)}


def branches(trajectory: Trajectory) -> Iterator[Trajectory]:
    yield trajectory
    for fork in trajectory.forks:
        yield from branches(fork)


@pytest.mark.promise("read-back")
@pytest.mark.parametrize("count", [400, wide(10_000)])
def test_a_sample_of_any_shape_comes_back_equal_field_by_field(tmp_path: Path, count: int) -> None:
    """From a checkpoint, and from a file of kept samples."""
    samples = tuple(map(generated_sample, range(count)))
    save_carryover(tmp_path, samples, 0.0)
    assert Carryover.load(tmp_path).scored(generated_prompt, 0.0) == samples
    write_rollouts(tmp_path / "rollouts.jsonl", "digest", samples, 0.0)
    kept = Rollouts.load(tmp_path / "rollouts.jsonl")
    for scored in samples:
        group, sample = scored.trajectory.request.place
        found = kept.scored(Request(group, sample, generated_prompt(group)), 0.0)
        assert found == scored
        for before, after in zip(branches(scored.trajectory), branches(found.trajectory), strict=True):
            assert after.logprobs.array.tobytes() == before.logprobs.array.tobytes()  # type: ignore[attr-defined]


@pytest.mark.promise("read-back")
def test_every_field_of_a_sample_has_several_values_among_the_generated_ones() -> None:
    """So that a field that results get must be carried too."""
    samples = tuple(map(generated_sample, range(400)))
    trajectories = [t for s in samples for t in branches(s.trajectory)]
    for nouns in (samples, trajectories, [t.request for t in trajectories]):
        assert unset(*nouns) == set()
        for f in fields(nouns[0]):
            assert len({repr(getattr(noun, f.name)) for noun in nouns}) > 1, f.name
    assert unset(*(s.judgement for s in samples if s.judgement)) == set()


def written_before(row: dict[str, Any]) -> dict[str, Any]:
    """The row as it was written once: what came before a branch stood there only with other fields of it."""
    forks = [written_before(fork) for fork in row.get("forks", ())]
    if row.get("used") or row.get("mask") or forks:
        return row | {"forks": forks}
    return {name: value for name, value in row.items() if name != "prompt_ids"}


def fork(**fields: Any) -> Trajectory:
    return awkward(prompt_ids=(1, 2, 9, 9), **fields).trajectory


@pytest.mark.parametrize(
    ("fields", "lost"),
    [
        ({}, False),
        ({"used": Used(3, 9, 30, 16, 1, 0), "prompt_ids": (7, 8)}, False),
        ({"used": Used(3, 9, 30, 16, 1, 0), "forks": (fork(mask=b"\1\0\1"),)}, False),
        ({"used": Used(3, 9, 30, 16, 1, 0), "forks": (fork(mask=b"\1\0\1"), fork())}, True),
        ({"used": Used(3, 9, 30, 16, 1, 0), "forks": (awkward().trajectory,)}, True),
    ],
)
def test_a_file_of_an_earlier_version_is_read_right_or_its_samples_are_not_used(
    tmp_path: Path, fields: dict[str, Any], lost: bool
) -> None:
    """Whether a fork without a prompt was sampled behind the request's, nobody can tell."""
    sample, file = awkward(**fields), tmp_path / "rollouts.jsonl"
    save_carryover(tmp_path, [sample], 0.0)
    write_rollouts(file, "digest", [sample], 0.0)
    for path in (tmp_path / CARRIED, file):
        head, row = path.read_text().splitlines()
        path.write_text(f"{head}\n{json.dumps(written_before(json.loads(row)))}\n")
    carried = Carryover.load(tmp_path)
    assert carried.lost_prompts is lost
    if not lost:
        assert back(tmp_path) == (sample,)
        assert Rollouts.load(file).scored(sample.trajectory.request, 0.0) == sample
        return
    told = "its episodes were written by an earlier version, without the prompts of forks .sample g4s1.: make the"
    for read, field in ((lambda: back(tmp_path), "checkpoint"), (lambda: Rollouts.load(file), "--from-rollouts")):
        with pytest.raises(ConfigError, match=f"^{field}='.*': {told} samples again$"):
            read()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward", float("nan")),
        ("reward", "1"),
        pytest.param("reward", 10**400, id="huge"),
        ("logprobs", ""),
        ("logprobs", "AADAfwAAwH8AAMB/"),  # three times NaN
        ("mask", "AQ=="),
        ("mask", "AQIB"),
        ("spans", [[3, 0, 4]]),
        ("spans", [[3, -1, 2]]),
        ("finish", None),
        ("finish", "stopped"),
        ("generated", ""),
        ("request", [1]),
        ("forks", [{"prompt_ids": ""}]),
    ],
)
def test_a_sample_whose_fields_cannot_be_is_told_in_one_line_and_not_learned_from(
    tmp_path: Path, name: str, value: Any
) -> None:
    file = tmp_path / "rollouts.jsonl"
    save_carryover(tmp_path, [awkward()], 0.0)
    write_rollouts(file, "digest", [awkward()], 0.0)
    for path in (tmp_path / CARRIED, file):
        head, row = path.read_text().splitlines()
        path.write_text(f"{head}\n{json.dumps(json.loads(row) | {name: value})}\n")
    for read in (lambda: back(tmp_path), lambda: Rollouts.load(file)):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_rows_nested_without_end_are_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.jsonl"
    write_rollouts(file, "digest", [], 0.0)
    (tmp_path / CARRIED).write_text("[" * 100_000)
    file.write_text(file.read_text() + "[" * 100_000 + "\n")
    for read in (lambda: back(tmp_path), lambda: Rollouts.load(file)):
        with pytest.raises(ConfigError, match="cannot be read"):
            read()


def test_on_another_clock_no_time_has_passed_since_the_checkpoint(tmp_path: Path) -> None:
    save_carryover(tmp_path, [awkward(), given_up()], 20.0)
    first, second = back(tmp_path, 3.0)
    assert (first.trajectory.started_s, first.trajectory.finished_s) == (-7.0, -4.5)
    assert (first.queued_s, first.started_s, first.finished_s) == (-4.5, -4.0, -3.0)
    assert (second.queued_s, second.started_s, second.finished_s) == (0.0, 0.0, 0.0)  # was never verified


def test_a_token_takes_eight_bytes_and_their_base64(tmp_path: Path) -> None:
    tokens = 10_000
    sizes = []
    for one in (awkward(), awkward(token_ids=(9,) * tokens, logprobs=(-0.5,) * tokens)):
        save_carryover(tmp_path, [one], 0.0)
        sizes.append((tmp_path / CARRIED).stat().st_size)
    assert sizes[1] - sizes[0] < 8 * tokens * 4 / 3 + 100


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: "", "cannot be read"),
        (lambda text: text[: len(text) // 2], "cannot be read"),
        (lambda text: text.splitlines()[0] + "\n", "has 0 of 1 samples"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "has another format than 1"),
        (lambda text: text.replace('"token_ids": "', '"token_ids": "!'), "cannot be read"),
        (lambda text: text.replace('"finish"', '"ende"'), "cannot be read"),
        (lambda text: text.replace('"prompt": "p1"', '"prompt": "p2"'), "group 4 was of prompt 'p2', here it is of"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, spoil, told: str) -> None:
    save_carryover(tmp_path, [awkward()], 0.0)
    file = tmp_path / CARRIED
    file.write_text(spoil(file.read_text()))
    with pytest.raises(ConfigError, match=told) as caught:
        back(tmp_path)
    assert str(file) in str(caught.value)
