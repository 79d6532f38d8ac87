"""Resumes a run from its newest checkpoint: the same run, or one with changes that the caller allows. The digest
of its prompts, and of the problems that they carry, says whether its data is the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.config.load import Change, changes, check_run_version
from overlap.core import Prompt
from overlap.core.errors import ConfigError, refusing
from overlap.record.checkpoint import RunState, latest, load_state
from overlap.record.kept_samples import Carryover
from overlap.record.metrics import read_steps
from overlap.record.ownership import find_run_file, read_history
from overlap.record.run_files import RunFile
from overlap.record.rundir import RunDir
from overlap.record.timing import NAN, Row

_DEEPEST = 40  # an object that holds itself has no end


@dataclass(frozen=True, slots=True)
class Resumed:
    """Point at which a run is resumed: after ``state``, from the checkpoint in ``folder`` (None: the beginning)."""

    state: RunState
    folder: Path | None = None
    rows: tuple[Row, ...] = ()
    """Metrics of the steps until there."""
    carried: Carryover = field(default_factory=Carryover)
    """Samples that no step had taken."""
    given_up: int = 0
    """Samples of the checkpoint that are generated again."""
    why_given_up: str = ""

    @property
    def line(self) -> str:
        """Point at which the run goes on, for a person; "" for the beginning."""
        if self.folder is None:
            return ""
        told = f"after step {self.state.step}, policy version {self.state.version}"
        return told + (f", with {len(self.carried)} samples of later steps" if self.carried else "")

    def without_carried(self, why: str) -> Resumed:
        """The same, with its samples to be generated again."""
        count = len(self.carried)
        return replace(self, carried=Carryover(), given_up=count, why_given_up=why) if count else self


BEGINNING = Resumed(RunState(step=0, version=0))


def stored_config(template: str) -> Path:
    """The ``config.yaml`` of the run that is to be resumed. Raises ConfigError."""
    if "{time}" in template:
        raise ConfigError("run.dir", template, "a run is resumed by its own name: write the time that it began")
    found = find_run_file(template, RunFile.CONFIG, way_out="name the directory of a run that has a checkpoint")
    check_run_version(found)
    return found


def reopen(
    cfg: Config, data: str, *, fits: Callable[[Path], None], with_changes: bool = False
) -> tuple[RunDir, Resumed]:
    """Open the run in ``cfg.run.dir`` to resume it from its newest checkpoint; ``data`` is the digest of its prompts.

    ``fits`` raises ConfigError for a checkpoint that this run's learner could not load, changes or not.

    What came after the checkpoint is cut off, and the history in ``config.yaml`` gets an entry.

    Raises:
        ConfigError: there is no run or no checkpoint, another process writes there, or configuration or data differ
            (without ``with_changes``). Nothing was changed.
        RunDirError: the directory cannot be written.
    """
    with ExitStack() as undo:
        run, resumed, found = _open(undo, cfg, data, fits, with_changes)
        run.remember(cfg.to_dict(), resumed.state.step, {c.field: {"was": c.was, "is": c.now} for c in found})
        run.rewind(resumed.state)
        undo.pop_all()
    return run, resumed


def check_reopen(cfg: Config, data: str, *, fits: Callable[[Path], None], with_changes: bool = False) -> None:
    """Raise the ConfigError that ``reopen`` would raise, and change nothing."""
    with ExitStack() as undo:
        _open(undo, cfg, data, fits, with_changes)


def _open(
    undo: ExitStack, cfg: Config, data: str, fits: Callable[[Path], None], with_changes: bool
) -> tuple[RunDir, Resumed, Sequence[Change]]:
    """Open the run where it may be resumed; change nothing in it."""
    run = RunDir.reopen(stored_config(cfg.run.dir).parent)
    undo.callback(run.close)
    resumed, found = _compare(run, cfg, data)
    if blocked := [str(c) for c in found if not c.allowed and not with_changes]:
        way_out = "resume it with its own values, or allow the changes by --resume-with-changes"
        raise ConfigError("run.dir", cfg.run.dir, f"is not the same run: {'; '.join(blocked)}; {way_out}")
    if any(not c.allowed for c in found):
        resumed = resumed.without_carried("another run made them")
    if resumed.folder is not None:
        fits(resumed.folder)
    read_history(run.path)
    return run, resumed, found


def _compare(run: RunDir, cfg: Config, data: str) -> tuple[Resumed, Sequence[Change]]:
    folder = latest(run.checkpoints)
    if folder is None:
        way_out = "holds no complete checkpoint to go on from; begin a new run with run.save_every=N"
        raise ConfigError("run.dir", cfg.run.dir, way_out)
    state = load_state(folder)
    if state.step >= cfg.run.steps:
        raise ConfigError("run.steps", cfg.run.steps, f"the run already took {state.step} steps; ask for more")
    found = list(changes(state.config, cfg))
    if data != state.data:
        found.append(Change("the problems of data.train", state.data, data, False))
    return _at(run, state, folder), found


def go_back(run: RunDir, cfg: Config) -> Resumed:
    """Take an open run back to its newest checkpoint, or to its beginning where there is none.

    What came after is cut off, and the history in ``config.yaml`` gets an entry. Raises ConfigError, RunDirError.
    """
    folder = latest(run.checkpoints)
    resumed = BEGINNING if folder is None else _at(run, load_state(folder), folder)
    with run.failures.tolerate_write_errors(RunFile.CONFIG):
        run.remember(cfg.to_dict(), resumed.state.step, {})
    run.rewind(resumed.state)
    return resumed


def _at(run: RunDir, state: RunState, folder: Path) -> Resumed:
    carried = Carryover.load(folder, state.carried) if state.carried else Carryover()
    with refusing("run.dir", str(run.metrics), "cannot be read", "mend it or move it away", (OSError, ValueError)):
        stored = read_steps(run.metrics, size=state.metrics_offset)
    rows = tuple({name: NAN if value is None else value for name, value in row.items()} for row in stored)
    return Resumed(state, folder, rows, carried)


def data_digest(prompts: Iterable[Prompt]) -> str:
    """Hex digest of the prompts, in their order, and of all data that they carry (tests, reference answers).

    It is the same in every process, and wherever the file is: of an object with unknown contents (no dataclass,
    container or plain value), only the type counts.
    """
    digest = hashlib.sha256()
    for prompt in prompts:
        known = prompt.id, list(prompt.token_ids), prompt.prefill, _plain(prompt.data, 0)
        digest.update(json.dumps(known).encode())
    return digest.hexdigest()[:16]


def _plain(value: Any, depth: int) -> Any:
    """``value`` as JSON types, with the names of its types."""
    if value is None or isinstance(value, str | int | float):
        return value
    kind, parts = type(value).__qualname__, list[Any]()
    if isinstance(value, bytes | bytearray):
        parts = [value.hex()]
    elif depth < _DEEPEST and is_dataclass(value) and not isinstance(value, type):
        parts = [_plain(getattr(value, f.name), depth + 1) for f in fields(value) if f.compare]
    elif depth < _DEEPEST and isinstance(value, Mapping):
        parts = [_plain(part, depth + 1) for item in value.items() for part in item]
    elif depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        parts = [_plain(part, depth + 1) for part in value]
        parts = sorted(parts, key=json.dumps) if isinstance(value, set | frozenset) else parts
    return {kind: parts}
