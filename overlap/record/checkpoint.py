"""Checkpoints: a folder for each, with the state of learner and run. The newest few are kept.

checkpoints/step-000020/   learner/        written by Learner.save(kind="state")
                           carried.jsonl   samples that no step had taken, see ``kept_samples``
                           state.json      RunState
                           COMPLETE        written last: without it the checkpoint does not count
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from overlap.core.errors import ConfigError, RunDirError, refusing
from overlap.core.json_types import to_json_types
from overlap.process.atomic import fsync, guarded, write_atomic

STATE, COMPLETE, LEARNER = "state.json", "COMPLETE", "learner"
FORMAT = 3


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run after a step."""

    step: int
    """Steps taken."""
    version: int
    """The policy version that the learner's state holds."""
    groups: int = 0
    """Prompt groups that finished steps consumed. The order of prompts and the group ids follow from this number, the
    seed and ``solved``, so that groups in flight are admitted again, first."""
    metrics_offset: int = 0
    """Bytes of metrics.jsonl that belong to finished steps."""
    trajectories_offset: int = 0
    """Bytes of trajectories.jsonl that belong to finished steps."""
    groups_offset: int = 0
    """Bytes of groups.jsonl that belong to finished steps."""
    trace_offset: int = 0
    """Bytes of trace.json that belong to finished steps, without the closing bracket."""
    trace_end_us: float = 0.0
    """End of the last span of the trace, µs."""
    config: dict[str, Any] = field(default_factory=dict)
    """The configuration of the run, from :meth:`Config.to_dict`: a resumed run must have the same one."""
    data: str = ""
    """Digest of the prompts and problems, see ``digest``."""
    seconds: float = 0.0
    """Wall time of the run up to here, s."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    """Results of evaluations so far, from ``evaluation.EvaluationHistory.to_dict``."""
    carried: int = 0
    """Samples in ``carried.jsonl``."""
    solved: dict[str, int] = field(default_factory=dict)
    """Prompts that later epochs leave out (``data.drop_solved``), with the group that solved each."""


def save_state(folder: Path, state: RunState) -> None:
    """Write ``state.json`` into a checkpoint directory. Raises RunDirError."""
    row = {"format": FORMAT, **asdict(state), "config": to_json_types(state.config)}
    write_atomic(folder / STATE, json.dumps(row, indent=1) + "\n")


def load_state(folder: Path) -> RunState:
    """Read a complete checkpoint. Raises ConfigError when it is incomplete or of another format."""
    if not is_complete(folder):
        raise ConfigError("checkpoint", str(folder), "is incomplete; choose another one")
    errors = OSError, KeyError, TypeError, AttributeError, ValueError
    with refusing("checkpoint", str(folder), "cannot be read", "choose another one", errors):
        stored = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if stored.pop("format") != FORMAT:
            raise ConfigError("checkpoint", str(folder), f"has another format than {FORMAT}; start a new run")
        return RunState(**stored)


@contextmanager
def writing(root: Path, step: int, *, keep: int = 2, spare: Collection[int] = ()) -> Iterator[Path]:
    """Make a new checkpoint folder for ``step``: it is complete when the body ends, and removed when the body raises.

    ``prune`` then removes older ones. Raises RunDirError.
    """
    folder = path_of(root, step)
    with guarded(folder):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    try:
        yield folder
        write_atomic(folder / COMPLETE, "")
        with guarded(folder):
            fsync(folder)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            (folder / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    prune(root, keep, spare)


def complete_checkpoints(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return [path for path in _all(root) if is_complete(path)]


def is_complete(folder: Path) -> bool:
    """True when a checkpoint was written to its end; other checkpoints do not count."""
    return (folder / COMPLETE).is_file()


def path_of(root: Path, step: int) -> Path:
    """Path of the checkpoint of a step, if it exists."""
    return root / f"step-{step:06d}"


def find_checkpoint(root: Path, step: int) -> Path:
    """The complete checkpoint of a step. Raises ConfigError that names the steps that there are."""
    steps = [int(p.name.removeprefix("step-")) for p in complete_checkpoints(root)]
    if step not in steps:
        known = f"there are those of step {', '.join(map(str, steps))}" if steps else "there is none (run.save_every=N)"
        raise ConfigError("--step", step, f"{root} has no complete checkpoint of this step; {known}")
    return path_of(root, step)


def latest(root: Path) -> Path | None:
    """The newest complete checkpoint."""
    return found[-1] if (found := complete_checkpoints(root)) else None


def prune(root: Path, keep: int, spare: Collection[int] = ()) -> None:
    """Remove old and incomplete checkpoints. The ``keep`` newest complete ones stay (at least one), and those of the
    steps ``spare``.
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
