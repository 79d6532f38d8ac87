"""Checkpoints: what a resume needs besides the learner's own state. JSON, atomic, the newest few kept.

checkpoints/step-000020/   learner/        written by Learner.save(kind="state")
                           carried.jsonl   results that no step had taken, see ``carried``
                           state.json      RunState
                           COMPLETE        written last: without it the checkpoint does not count
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from overlap.atomic import guarded, write_atomic
from overlap.errors import ConfigError, RunDirError

STATE, COMPLETE, LEARNER = "state.json", "COMPLETE", "learner"
FORMAT = 3
READABLE = (2, FORMAT)
"""Format 2 has no ``carried``: what no step had taken is made again."""


@dataclass(frozen=True, slots=True)
class RunState:
    """Where the run stands after a step."""

    step: int
    """Steps taken."""
    version: int
    """The policy version that the learner's state holds."""
    groups: int = 0
    """Prompt groups that finished steps consumed. Prompt order and group ids follow from it, the seed and ``solved``,
    so groups that were in flight are admitted again, first."""
    metrics_offset: int = 0
    """Bytes of metrics.jsonl that belong to finished steps."""
    trajectories_offset: int = 0
    """Bytes of trajectories.jsonl that belong to finished steps."""
    trace_offset: int = 0
    """Bytes of trace.json that belong to finished steps, its closing bracket left out."""
    trace_end_us: float = 0.0
    """Where its last span ends."""
    config: dict[str, Any] = field(default_factory=dict)
    """The configuration that the run went by, as :meth:`Config.to_dict` makes it: a resumed run must be the same."""
    data: str = ""
    """Digest of the prompts and problems, see ``digest``."""
    seconds: float = 0.0
    """Wall time of the run up to here, s."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    """What evaluations found so far, as ``evaluation.Course.to_dict`` says it."""
    carried: int = 0
    """Results in ``carried.jsonl``."""
    rollouts_offset: int = 0
    """Bytes of rollouts.jsonl that belong to finished steps."""
    solved: dict[str, int] = field(default_factory=dict)
    """Prompts that are left out of epochs to come (``data.drop_solved``), and the group that solved each."""


def save_state(folder: Path, state: RunState) -> None:
    """Write ``state.json`` into a checkpoint directory. Raises RunDirError."""
    write_atomic(folder / STATE, json.dumps({"format": FORMAT, **asdict(state)}, indent=1) + "\n")


def load_state(folder: Path) -> RunState:
    """Read a complete checkpoint. Raises ConfigError when it is incomplete or of another format."""
    if not is_complete(folder):
        raise ConfigError("checkpoint", str(folder), "is incomplete; choose another one")
    try:
        stored = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if stored.pop("format") not in READABLE:
            raise ConfigError("checkpoint", str(folder), f"has another format than {FORMAT}; start a new run")
        return RunState(**stored)
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as exc:
        if isinstance(exc, ConfigError):
            raise
        raise ConfigError("checkpoint", str(folder), f"cannot be read ({exc}); choose another one") from exc


@contextmanager
def writing(root: Path, step: int, *, keep: int = 2, spare: Collection[int] = ()) -> Iterator[Path]:
    """A new checkpoint directory for ``step``: complete when the body ends, gone when it raises.

    Then ``prune`` removes what is too old. Raises RunDirError.
    """
    folder = path_of(root, step)
    with guarded(folder):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    try:
        yield folder
        write_atomic(folder / COMPLETE, "")
        _sync(folder)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            (folder / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    prune(root, keep, spare)


def complete_checkpoints(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return [path for path in _all(root) if is_complete(path)]


def is_complete(folder: Path) -> bool:
    """Whether a checkpoint directory counts."""
    return (folder / COMPLETE).is_file()


def path_of(root: Path, step: int) -> Path:
    """The checkpoint of a step, there or not."""
    return root / f"step-{step:06d}"


def find_checkpoint(root: Path, step: int) -> Path:
    """The complete checkpoint of a step. Raises ConfigError that names the steps that there are."""
    steps = [int(p.name.removeprefix("step-")) for p in complete_checkpoints(root)]
    if step not in steps:
        known = f"there are those of step {', '.join(map(str, steps))}" if steps else "there is none (run.save_every=N)"
        raise ConfigError("--step", step, f"{root} has no complete checkpoint of it; {known}")
    return path_of(root, step)


def latest(root: Path) -> Path | None:
    """The newest complete checkpoint."""
    return found[-1] if (found := complete_checkpoints(root)) else None


def prune(root: Path, keep: int, spare: Collection[int] = ()) -> None:
    """Remove all but the ``keep`` newest complete checkpoints, those of the steps ``spare``, and any newest one; what
    was never completed goes too.
    """
    kept = {*complete_checkpoints(root)[-max(1, keep) :], *(path_of(root, step) for step in spare)}
    for path in _all(root):
        if path not in kept:
            (path / COMPLETE).unlink(missing_ok=True)  # first: half a checkpoint must not count
            shutil.rmtree(path, ignore_errors=True)


def _all(root: Path) -> list[Path]:
    try:
        if not root.is_dir():
            return []
        found = [p for p in root.iterdir() if p.is_dir() and re.fullmatch(r"step-\d{6,}", p.name)]
    except OSError as error:
        raise RunDirError(f"cannot read {root}: {error.strerror or error}; make it readable") from error
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def _sync(folder: Path) -> None:
    with guarded(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
