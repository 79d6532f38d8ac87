"""The run directory: everything that a run leaves for a person or a tool to look at. ``run_files`` lists it.

``ownership`` decides where the directory may lie. Once the run has begun, no failed write ends it: ``failures`` has
what is missing, and no half-written file or line is left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from overlap.core.errors import RunDirError, count_of, error_reason
from overlap.core.json_types import to_json_types
from overlap.process.atomic import settle_path, write_atomic
from overlap.record import ownership
from overlap.record.checkpoint import RunState
from overlap.record.json_lines import JsonLines, size_until
from overlap.record.run_files import RunFile


class WriteFailures:
    """Collects what could not be written; iterating gives a line for each file."""

    def __init__(self) -> None:
        self.step = 0
        """The step whose files are being written."""
        self.report_line: Callable[[str], None] = lambda line: None
        """Gets lines for a person."""
        self._found: dict[str, tuple[str, int, int]] = {}
        """By file, the reason, the step of its first failure, and how often it failed."""

    def report_to(self, report_line: Callable[[str], None]) -> None:
        """From here on call ``report_line`` when a file fails for the first time; those before are reported now."""
        self.report_line = report_line
        for name, (reason, _, _) in self._found.items():
            self._report(name, reason)

    @contextmanager
    def tolerate_write_errors(self, name: object) -> Iterator[None]:
        """Go on without the file ``name`` when it cannot be written."""
        try:
            yield
        except OSError as exc:  # RunDirError is one
            cause = exc.__cause__ if isinstance(exc, RunDirError) and isinstance(exc.__cause__, OSError) else exc
            self.add(str(name), error_reason(cause))

    def add(self, name: str, reason: str) -> None:
        """Note that the file ``name`` was not written, for ``reason``."""
        if name not in self._found:
            self._report(name, reason)
        reason, step, times = self._found.get(name, (reason, self.step, 0))
        self._found[name] = reason, step, times + 1

    def recovered(self, name: str) -> None:
        """Note that what was missing of ``name`` has been written after all."""
        if self._found.pop(name, None):
            self.report_line(f"{name} is written again, and nothing of it is missing")

    def _report(self, name: str, reason: str) -> None:
        self.report_line(f"{name} is not being written: {reason}; the run goes on without it")

    def __iter__(self) -> Iterator[str]:
        for name, (reason, step, times) in list(self._found.items()):
            when = f"from step {step} on" if step else "from the start on"
            yield f"{name} ({reason}; {count_of(times, 'time')} {when})"


class RunDir:
    """An open run directory. Its methods are quick but block on the disk; call them from one thread at a time."""

    def __init__(self, path: Path, lock: int) -> None:
        """Use ``create`` or ``reopen``. ``lock`` is the descriptor that keeps other runs out; ``close`` closes it."""
        self.path = path
        self.config = RunFile.CONFIG.of(path)
        self.metrics = RunFile.METRICS.of(path)
        self.trajectories = RunFile.TRAJECTORIES.of(path)
        self.groups = RunFile.GROUPS.of(path)
        self.nodes = RunFile.NODES.of(path)
        self.trace = RunFile.TRACE.of(path)
        self.summary = RunFile.SUMMARY.of(path)
        self.picture = RunFile.PICTURE.of(path)
        self.log = RunFile.LOG.of(path)
        self.ctl = RunFile.SOCKET.of(path)
        self.checkpoints = RunFile.CHECKPOINTS.of(path)
        self.policy = RunFile.POLICY.of(path)
        self.best = RunFile.BEST.of(path)
        self.failures = WriteFailures()
        self._lock = lock
        lines = RunFile.METRICS, RunFile.TRAJECTORIES, RunFile.GROUPS, RunFile.NODES
        self._lines = {file: JsonLines(file.of(path)) for file in lines}
        self._late: list[Mapping[str, Any]] = []
        """Rows of metrics.jsonl that could not be written yet."""

    @classmethod
    def create(cls, template: str, cfg: Mapping[str, Any]) -> RunDir:
        """Make a new run directory; "{time}" in ``template`` becomes the start time.

        Raises ConfigError when the place is taken or cannot be written, RunDirError when the disk is full.
        """
        path, lock = ownership.claim_run_dir(template)
        with ExitStack() as undo:
            undo.callback(os.close, lock)
            ownership.write_config(path, cfg, [ownership.history_entry(0)])
            undo.pop_all()
        return cls(path, lock)

    @classmethod
    def reopen(cls, path: Path) -> RunDir:
        """Open the directory of an earlier run; nothing in it is touched until ``rewind``.

        Raises ConfigError where there is no run or another one writes.
        """
        ownership.find_run_file(str(path), RunFile.CONFIG, way_out="name the directory of a run")
        return cls(path, ownership.take_lock(path, str(path)))

    def rewind(self, state: RunState) -> None:
        """Cut off what came after a checkpoint. Raises RunDirError.

        Also repairs what a kill left while a policy was being replaced.
        """
        self.settle()
        last = state.step or -1  # the evaluation before a first step is made again
        self._late.clear()
        for file, step, size in (
            (RunFile.METRICS, last, 0),
            # The evaluation of a run that had ended, and now goes on, is behind its last checkpoint.
            (RunFile.TRAJECTORIES, last, state.trajectories_offset),
            (RunFile.GROUPS, last, state.groups_offset),
            (RunFile.NODES, state.step, 0),
        ):
            self._lines[file].rewind(size_until(file.of(self.path), step, size))

    def settle(self) -> None:
        """Repair policies that a kill or an interrupted save left between two names. Raises RunDirError."""
        for policy in (self.policy, self.best):
            settle_path(policy)

    def remember(self, cfg: Mapping[str, Any], step: int, changes: Mapping[str, Any]) -> None:
        """Write into ``config.yaml`` that the run goes on after ``step`` with ``cfg``, and what of it is changed:
        field -> {was, is}. Raises ConfigError when its history cannot be read, RunDirError.
        """
        history = [*ownership.read_history(self.path), ownership.history_entry(step, changes)]
        ownership.write_config(self.path, cfg, history)

    @property
    def offsets(self) -> dict[str, int]:
        """Bytes in the files of lines, as the fields of a RunState."""
        files = {"metrics": self.metrics, "trajectories": self.trajectories, "groups": self.groups}
        return {f"{name}_offset": path.stat().st_size if path.exists() else 0 for name, path in files.items()}

    def step(self, row: Mapping[str, Any]) -> None:
        """Write the row of a step (``row["step"]``) to metrics.jsonl, behind rows that could not be written before."""
        self.failures.step = int(row["step"])
        self._late.append(row)
        self._write_rows()

    def _write_rows(self) -> None:
        with self.failures.tolerate_write_errors(RunFile.METRICS):
            while self._late:
                self._lines[RunFile.METRICS].append(self._late[0])
                del self._late[0]
            self.failures.recovered(str(RunFile.METRICS))

    def append(self, file: RunFile, rows: Iterable[bytes]) -> None:
        """Write rows, of ``json_line``, to trajectories.jsonl, groups.jsonl or nodes.jsonl."""
        with self.failures.tolerate_write_errors(file):
            for row in rows:
                self._lines[file].append_lines(row)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, and rows of metrics that could not be written before."""
        self._write_rows()
        with self.failures.tolerate_write_errors(RunFile.SUMMARY):
            write_atomic(self.summary, json.dumps(to_json_types(summary), indent=2, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Close the files; safe to call twice."""
        self._write_rows()
        for file, lines in self._lines.items():
            with self.failures.tolerate_write_errors(file):
                lines.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
