"""What a run keeps of its samples comes back as it was, and what is no such file is one clear line."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from overlap.config import Config
from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.errors import ConfigError
from overlap.record import RunState, json_lines
from overlap.record.rollouts import Rollouts, write_rollouts
from overlap.record.rundir import RunDir
from sandbox.core import CaseResult, Judgement, Verdict

CASES = (CaseResult(0, Verdict.WA, 0.1, 0.2, 7),)
JUDGED = Judgement("p", Verdict.WA, CASES, 1, 3, True, "B", "python", "3.11", "warning: \ud800", 0.25, 0.5, 0.125)


def scored(group: int) -> Scored:
    request = Request(group, 1, Prompt(f"p{group}", (1, 2)))
    spans = (VersionSpan(3, 0, 2), VersionSpan(4, 2, 3))
    text = "a lone \udc80, a line's \u2028 end\n"
    trajectory = Trajectory(request, (5, 2**31 - 1, 0), (-0.1, -1e-30, 0.0), text, "stop", spans, 10.0, 12.5)
    return Scored(trajectory, 0.1, JUDGED, "", 12.5, 13.0, 14.0)


def given_up(group: int) -> Scored:
    trajectory = Trajectory(Request(group, 0, Prompt("q", (7,))), (), (), "", "abort", (), 9.0, 11.0)
    return Scored(trajectory, None, None, "no end of generate")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir.create(str(tmp_path / "run"), Config().to_dict())
    yield made
    made.close()


def batch(step: int, *samples: Scored, dropped: tuple[Scored, ...] = ()) -> Batch:
    def groups(of: tuple[Scored, ...]) -> tuple[Group, ...]:
        return tuple(Group(s.trajectory.request.group, s.trajectory.request.prompt, (s,), (0.0,)) for s in of)

    return Batch(step, step - 1, groups(samples), groups(dropped))


def moved(sample: Scored, seconds: float) -> Scored:
    trajectory = sample.trajectory
    trajectory = replace(
        trajectory, started_s=trajectory.started_s + seconds, finished_s=trajectory.finished_s + seconds
    )
    times = {name: getattr(sample, name) + seconds for name in ("queued_s", "started_s", "finished_s")}
    return replace(sample, trajectory=trajectory, **times)


def test_every_sample_of_a_step_comes_back_bit_for_bit(run: RunDir) -> None:
    run.keep(batch(1, scored(0), scored(2), dropped=(given_up(1),)), "digest", 20.0)
    run.keep(batch(2, scored(3)), "digest", 30.0)
    rollouts = Rollouts.load(run.rollouts)
    assert (rollouts.data, sorted(rollouts.known)) == ("digest", [(0, 1), (1, 0), (2, 1), (3, 1)])
    assert rollouts.scored(scored(3).trajectory.request, 30.0) == scored(3)
    assert rollouts.scored(scored(0).trajectory.request, 25.0) == moved(scored(0), 5.0)
    assert rollouts.scored(given_up(1).trajectory.request, 20.0) == given_up(1)


def test_what_is_kept_in_memory_knows_reward_end_and_versions_and_no_tokens(run: RunDir) -> None:
    run.keep(batch(1, scored(0)), "digest", 20.0)
    (known,) = Rollouts.load(run.rollouts).known.values()
    assert (known.reward, known.trajectory.finish) == (0.1, "stop")
    assert known.trajectory.spans == scored(0).trajectory.spans
    assert (len(known.trajectory.token_ids), known.trajectory.text, known.judgement) == (0, "", None)


def test_samples_after_a_checkpoint_are_cut_off_with_it(run: RunDir) -> None:
    run.keep(batch(1, scored(0)), "digest", 20.0)
    state = RunState(1, 1, **run.offsets)
    run.keep(batch(2, scored(1)), "digest", 20.0)
    run.rewind(state)
    run.keep(batch(2, scored(2)), "digest", 20.0)
    assert sorted(Rollouts.load(run.rollouts).known) == [(0, 1), (2, 1)]


def test_a_full_disk_costs_the_samples_and_is_told(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(json_lines.os, "write", full)
    run.keep(batch(1, scored(0)), "digest", 20.0)
    assert ["rollouts.jsonl (No space left on device" in line for line in run.failures] == [True]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    write_rollouts(path, "digest", [scored(0), scored(1)], 0.0)
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


def test_a_sample_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    write_rollouts(path := tmp_path / "rollouts.jsonl", "d", [scored(0), scored(0)], 0.0)
    with pytest.raises(ConfigError, match="g0s1 is in the file twice"):
        Rollouts.load(path)


def test_a_file_that_changed_under_the_reader_is_refused(tmp_path: Path) -> None:
    write_rollouts(path := tmp_path / "rollouts.jsonl", "d", [scored(0)], 0.0)
    rollouts = Rollouts.load(path)
    row = json.loads(path.read_text().splitlines()[1]) | {"prompt": "another"}
    path.write_text(f"{HEAD}{json.dumps(row)}\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        rollouts.scored(scored(0).trajectory.request, 0.0)
