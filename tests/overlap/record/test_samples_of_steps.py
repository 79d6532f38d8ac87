"""What a run keeps of its steps comes back as it was, and what is no such file is one clear line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from finished_steps import awkward, given_up

from overlap.config.fields import Config
from overlap.core import Batch, Group, Scored
from overlap.core.errors import ConfigError
from overlap.record.checkpoint import RunState
from overlap.record.kept_samples import KeptSamples
from overlap.record.rundir import RunDir
from overlap.record.sample_rows import SampleRows
from overlap.record.sample_writer import SampleWriter


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir.create(str(tmp_path / "run"), Config().to_dict())
    yield made
    made.close()


def keep(run: RunDir, at_s: float, step: int, *samples: Scored, dropped: tuple[Scored, ...] = ()) -> None:
    def groups(of: tuple[Scored, ...]) -> tuple[Group, ...]:
        return tuple(Group(s.trajectory.request.group, s.trajectory.request.prompt, (s,), (0.0,)) for s in of)

    writer = SampleWriter(run, lambda prompt: "?", lambda prompt, answer: None, "all", data="digest")
    writer.step(Batch(step, step - 1, groups(samples), groups(dropped)), {}, at_s)


def kept_file(path: Path, *samples: Scored) -> Path:
    rows = SampleRows("train", 0, restore_at_s=0.0, data="d")
    path.write_bytes(b"".join(map(rows.line, samples)))
    return path


@pytest.mark.promise("read-back")
def test_every_sample_of_a_step_comes_back_bit_for_bit(run: RunDir) -> None:
    """In memory, each has its reward, end and versions, and two tokens at most."""
    keep(run, 20.0, 1, awkward(0), awkward(2), dropped=(given_up(1),))
    keep(run, 30.0, 2, awkward(3))
    kept = KeptSamples.load(run.trajectories)
    assert (kept.data, sorted(kept.known)) == ("digest", [(0, 1), (1, 0), (2, 1), (3, 1)])
    assert kept.scored(awkward(3).trajectory.request, 30.0) == awkward(3)
    assert kept.scored(awkward(0).trajectory.request, 25.0) == awkward(0, later_s=5.0)
    assert kept.scored(given_up(1).trajectory.request, 20.0) == given_up(1)
    known = kept.known[0, 1]
    assert (known.reward, known.trajectory.finish, known.trajectory.spans) == (0.1, "stop", awkward(0).trajectory.spans)
    assert (len(known.trajectory.token_ids), known.trajectory.text, known.judgement) == (2, "", None)


def test_samples_after_a_checkpoint_are_cut_off_with_it(run: RunDir) -> None:
    keep(run, 20.0, 1, awkward(0))
    state = RunState(1, 1, **run.offsets)
    keep(run, 20.0, 2, awkward(1))
    run.rewind(state)
    keep(run, 20.0, 2, awkward(2))
    assert sorted(KeptSamples.load(run.trajectories).known) == [(0, 1), (2, 1)]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = kept_file(tmp_path / "trajectories.jsonl", awkward(0), awkward(1))
    path.write_bytes(path.read_bytes()[:-40])
    assert sorted(KeptSamples.load(path).known) == [(0, 1)]


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "has samples to look at alone"), ("[]\n", "holds no sample"), ('{"group": 0}\n', "holds no sample")],
)
def test_what_is_no_such_file_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    (path := tmp_path / "trajectories.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=told) as refused:
        KeptSamples.load(path)
    assert "\n" not in str(refused.value)


def test_rows_to_look_at_alone_are_not_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    path.write_bytes(SampleRows("train", 1).line(awkward(0)))
    with pytest.raises(ConfigError, match="has samples to look at alone"):
        KeptSamples.load(path)


def test_a_sample_that_is_there_twice_and_a_file_that_changed_under_the_reader_are_refused(tmp_path: Path) -> None:
    path = kept_file(tmp_path / "trajectories.jsonl", awkward(0), awkward(0))
    with pytest.raises(ConfigError, match="g0s1 is in the file twice"):
        KeptSamples.load(path)
    kept = KeptSamples.load(kept_file(path, awkward(0)))
    row = json.loads(path.read_text()) | {"finish": "another"}
    path.write_text(f"{json.dumps(row)}\n")
    with pytest.raises(ConfigError, match="was changed while it was read"):
        kept.scored(awkward(0).trajectory.request, 0.0)
