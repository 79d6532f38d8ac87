"""What a run keeps of its samples comes back as it was, and what is no such file is one clear line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from finished_steps import awkward, given_up

from overlap.config.fields import Config
from overlap.core import Batch, Group, Scored
from overlap.errors import ConfigError
from overlap.record.checkpoint import RunState
from overlap.record.rollouts import Rollouts, write_rollouts
from overlap.record.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir.create(str(tmp_path / "run"), Config().to_dict())
    yield made
    made.close()


def batch(step: int, *samples: Scored, dropped: tuple[Scored, ...] = ()) -> Batch:
    def groups(of: tuple[Scored, ...]) -> tuple[Group, ...]:
        return tuple(Group(s.trajectory.request.group, s.trajectory.request.prompt, (s,), (0.0,)) for s in of)

    return Batch(step, step - 1, groups(samples), groups(dropped))


@pytest.mark.promise("read-back")
def test_every_sample_of_a_step_comes_back_bit_for_bit(run: RunDir) -> None:
    """In memory, each has its reward, end and versions, and two tokens at most."""
    run.keep(batch(1, awkward(0), awkward(2), dropped=(given_up(1),)), "digest", 20.0)
    run.keep(batch(2, awkward(3)), "digest", 30.0)
    rollouts = Rollouts.load(run.rollouts)
    assert (rollouts.data, sorted(rollouts.known)) == ("digest", [(0, 1), (1, 0), (2, 1), (3, 1)])
    assert rollouts.scored(awkward(3).trajectory.request, 30.0) == awkward(3)
    assert rollouts.scored(awkward(0).trajectory.request, 25.0) == awkward(0, later_s=5.0)
    assert rollouts.scored(given_up(1).trajectory.request, 20.0) == given_up(1)
    known = rollouts.known[0, 1]
    assert (known.reward, known.trajectory.finish, known.trajectory.spans) == (0.1, "stop", awkward(0).trajectory.spans)
    assert (len(known.trajectory.token_ids), known.trajectory.text, known.judgement) == (2, "", None)


def test_samples_after_a_checkpoint_are_cut_off_with_it(run: RunDir) -> None:
    run.keep(batch(1, awkward(0)), "digest", 20.0)
    state = RunState(1, 1, **run.offsets)
    run.keep(batch(2, awkward(1)), "digest", 20.0)
    run.rewind(state)
    run.keep(batch(2, awkward(2)), "digest", 20.0)
    assert sorted(Rollouts.load(run.rollouts).known) == [(0, 1), (2, 1)]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    write_rollouts(path, "digest", [awkward(0), awkward(1)], 0.0)
    path.write_bytes(path.read_bytes()[:-40])
    assert sorted(Rollouts.load(path).known) == [(0, 1)]


HEAD = '{"rollouts": 1, "data": "d"}\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cannot be read"),
        ("[]\n", "cannot be read"),
        ('{"format": 1}\n', "KeyError: 'rollouts'"),
        ('{"rollouts": 9, "data": ""}\n', "has another format than 1"),
        (f"{HEAD}[]\n", "cannot be read"),
        (f'{HEAD}{{"group": 0}}\n', "KeyError"),
    ],
)
def test_what_is_no_such_file_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    (path := tmp_path / "rollouts.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=told) as refused:
        Rollouts.load(path)
    assert "\n" not in str(refused.value)


def test_a_sample_that_is_there_twice_and_a_file_that_changed_under_the_reader_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    write_rollouts(path, "d", [awkward(0), awkward(0)], 0.0)
    with pytest.raises(ConfigError, match="g0s1 is in the file twice"):
        Rollouts.load(path)
    write_rollouts(path, "d", [awkward(0)], 0.0)
    rollouts = Rollouts.load(path)
    row = json.loads(path.read_text().splitlines()[1]) | {"prompt": "another"}
    path.write_text(f"{HEAD}{json.dumps(row)}\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        rollouts.scored(awkward(0).trajectory.request, 0.0)
