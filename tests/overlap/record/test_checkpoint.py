"""Checkpoints count only when they are complete, and old ones go."""

from __future__ import annotations

import errno

import pytest

from overlap.core.errors import ConfigError, RunDirError
from overlap.record import checkpoint
from overlap.record.checkpoint import RunState, load_state, save_state, writing

STATE = RunState(step=20, version=19, groups=160, metrics_offset=99, trajectories_offset=7)


def save(root, step, **options):
    with writing(root, step, **options) as folder:
        save_state(folder, STATE)
    return folder


def names(root):
    return sorted(path.name for path in root.iterdir())


def test_the_newest_few_are_kept_and_what_the_best_came_from_and_other_files(tmp_path):
    (tmp_path / "step-notes").mkdir()
    (tmp_path / "README").touch()
    for step in (2, 10, 9, 100):
        save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["README", "step-000010", "step-000100", "step-notes"]
    save(tmp_path, 101, keep=1, spare={10})
    assert [p.name for p in checkpoint.complete_checkpoints(tmp_path)] == ["step-000010", "step-000101"]
    checkpoint.prune(tmp_path, 0)  # one is kept whatever is asked
    assert [p.name for p in checkpoint.complete_checkpoints(tmp_path)] == ["step-000101"]


def test_checkpoints_that_may_not_be_read_are_told(tmp_path, monkeypatch):
    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.iterdir", refuse)
    with pytest.raises(RunDirError, match=f"cannot read {tmp_path}: Permission denied; make it readable"):
        checkpoint.latest(tmp_path)


@pytest.mark.parametrize(
    ("error", "name"),
    [(RunDirError, checkpoint.STATE), (KeyboardInterrupt, checkpoint.STATE), (RunDirError, "COMPLETE")],
)
def test_a_checkpoint_that_failed_is_gone_and_the_last_one_stays(tmp_path, error, name, monkeypatch):
    def write(path, data):
        path.write_text(data)
        if path.name == name:
            raise error(f"cannot write {path}: No space left on device")

    save(tmp_path, 1, keep=1)
    monkeypatch.setattr(checkpoint, "write_atomic", write)
    with pytest.raises(error):
        save(tmp_path, 2, keep=1)
    assert names(tmp_path) == ["step-000001"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000001"


@pytest.mark.promise("resume")
def test_a_checkpoint_cut_off_by_a_crash_does_not_count_and_is_swept(tmp_path):
    save(tmp_path, 1)
    half = tmp_path / "step-000002"
    half.mkdir()
    save_state(half, STATE)
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000001"
    with pytest.raises(ConfigError, match="is incomplete; choose another one"):
        load_state(half)
    save(tmp_path, 3, keep=2)
    assert not half.exists()


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}', '{"format": 3, "new": 1}', "[]"])
def test_a_state_that_cannot_be_read_is_named(tmp_path, text):
    folder = save(tmp_path, 1)
    (folder / checkpoint.STATE).write_text(text)
    with pytest.raises(ConfigError, match="step-000001"):
        load_state(folder)


def test_a_step_without_a_checkpoint_is_told_with_those_that_have_one(tmp_path):
    with pytest.raises(ConfigError, match=r"--step=3: .* there is none \(run\.save_every=N\)"):
        checkpoint.find_checkpoint(tmp_path, 3)
    for step in (2, 4):
        save(tmp_path, step)
    with pytest.raises(ConfigError, match="there are those of step 2, 4"):
        checkpoint.find_checkpoint(tmp_path, 3)
    assert checkpoint.find_checkpoint(tmp_path, 4).name == "step-000004"
