"""Samples come back as they were, from a checkpoint and from what the steps of a run took; what is no such file is one
clear line.
"""

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

from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory
from overlap.core.errors import ConfigError
from overlap.record.kept_samples import CARRIED, Carryover, KeptSamples, save_carryover
from overlap.record.rundir import RunDir
from overlap.record.sample_rows import SampleRows
from overlap.record.sample_writer import SampleWriter


def back(folder: Path, at_s: float = 0.0, count: int = 1) -> tuple[Scored, ...]:
    return Carryover.load(folder, count).scored(lambda group: Prompt(f"p{group % 3}", (1, 2, group % 3)), at_s)


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
    assert Carryover.load(tmp_path, count).scored(generated_prompt, 0.0) == samples
    kept = KeptSamples.load(tmp_path / CARRIED)
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


@pytest.mark.promise("read-back")
def test_every_sample_of_a_step_comes_back_bit_for_bit(tmp_path: Path) -> None:
    """In memory, each has its reward, end and versions, and two tokens at most."""

    def groups(*of: Scored) -> tuple[Group, ...]:
        return tuple(Group(s.trajectory.request.group, s.trajectory.request.prompt, (s,), (0.0,)) for s in of)

    run = RunDir.create(str(tmp_path / "run"), {})
    writer = SampleWriter(run, lambda prompt: "?", lambda prompt, answer: None, "all", data="digest")
    writer.step(Batch(1, 0, groups(awkward(0), awkward(2)), groups(given_up(1))), {}, 20.0)
    writer.step(Batch(2, 1, groups(awkward(3)), ()), {}, 30.0)
    run.close()
    kept = KeptSamples.load(run.trajectories)
    assert (kept.data, sorted(kept.known)) == ("digest", [(0, 1), (1, 0), (2, 1), (3, 1)])
    assert kept.scored(awkward(3).trajectory.request, 30.0) == awkward(3)
    assert kept.scored(awkward(0).trajectory.request, 25.0) == awkward(0, later_s=5.0)
    assert kept.scored(given_up(1).trajectory.request, 20.0) == given_up(1)
    known = kept.known[0, 1]
    assert (known.reward, known.trajectory.finish, known.trajectory.spans) == (0.1, "stop", awkward(0).trajectory.spans)
    assert (len(known.trajectory.token_ids), known.trajectory.text, known.judgement) == (2, "", None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward", float("nan")),
        ("reward", "1"),
        pytest.param("reward", 10**400, id="huge"),
        ("logprobs", ""),
        ("logprobs", "AADAfwAAwH8AAMB/"),  # three times NaN
        ("mask", "AQIB"),
        ("versions", [[3, 0, 4]]),
        ("versions", [[3, -1, 2]]),
        ("finish", "stopped"),
        ("generated", ""),
        ("request", [1]),
        ("forks", [{"prompt_token_ids": ""}]),
    ],
)
def test_a_sample_whose_fields_cannot_be_is_refused_in_one_line_and_not_trained_on(
    tmp_path: Path, name: str, value: Any
) -> None:
    save_carryover(tmp_path, [awkward()], 0.0)
    row = json.loads((tmp_path / CARRIED).read_text())
    (row["restore"] if name in ("generated", "request") else row)[name] = value
    (tmp_path / CARRIED).write_text(json.dumps(row) + "\n")
    for read in (lambda: back(tmp_path), lambda: KeptSamples.load(tmp_path / CARRIED)):
        with pytest.raises(ConfigError, match=r"cannot be read|holds no sample|is no sample") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_on_another_clock_no_time_has_passed_since_the_checkpoint(tmp_path: Path) -> None:
    save_carryover(tmp_path, [awkward(), given_up()], 20.0)
    first, second = back(tmp_path, 3.0, 2)
    assert (first.trajectory.started_s, first.trajectory.finished_s) == (-7.0, -4.5)
    assert (first.queued_s, first.started_s, first.finished_s) == (-4.5, -4.0, -3.0)
    assert (second.queued_s, second.started_s, second.finished_s) == (0.0, 0.0, 0.0)  # was never verified


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: text[: len(text) // 2], "has 0 of 1 samples"),
        (lambda text: text + text, "has 2 of 1 samples"),
        (lambda text: "[" * 100_000 + "\n", "line 1 holds no sample"),
        (lambda text: text.replace('"prompt_id": "p1"', '"prompt_id": "p2"'), "was of prompt 'p2', here it is of"),
    ],
)
def test_a_checkpoint_whose_samples_cannot_be_used_is_named(tmp_path: Path, spoil, told: str) -> None:
    save_carryover(tmp_path, [awkward()], 0.0)
    file = tmp_path / CARRIED
    file.write_text(spoil(file.read_text()))
    with pytest.raises(ConfigError, match=told) as caught:
        back(tmp_path)
    assert str(file) in str(caught.value)


def kept_lines(*samples: Scored) -> bytes:
    return b"".join(map(SampleRows("train", 0, restore_at_s=0.0, data="d").line, samples))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "has samples to look at alone"),
        (SampleRows("train", 1).line(awkward(0)), "has samples to look at alone"),
        (b"[]\n", "holds no sample"),
        (kept_lines(awkward(0), awkward(0)), "g0s1 is in the file twice"),
    ],
    ids=range(4),
)
def test_what_holds_no_samples_to_train_from_is_refused_in_one_line(tmp_path: Path, data: bytes, told: str) -> None:
    (path := tmp_path / "trajectories.jsonl").write_bytes(data)
    with pytest.raises(ConfigError, match=told) as refused:
        KeptSamples.load(path)
    assert "\n" not in str(refused.value)


def test_a_file_that_changed_under_the_reader_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "trajectories.jsonl").write_bytes(kept_lines(awkward(0)))
    kept = KeptSamples.load(path)
    path.write_text(f"{json.dumps(json.loads(path.read_text()) | {'finish': 'another'})}\n")
    with pytest.raises(ConfigError, match="was changed while it was read"):
        kept.scored(awkward(0).trajectory.request, 0.0)
