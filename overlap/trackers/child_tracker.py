"""A tracker in a process of its own: calls go there as JSON lines, and each is answered by one.

    {"call": "row", "args": [{"step": 3, ...}]}  ──▶  child: python -m overlap.trackers.child module:Class
                            {}, {"error": "..."} ◀──  or {"refused": "..."}

The child ends when its input ends, also where this process was killed, after it has told the tracker.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from overlap.process import process_tree
from overlap.process.run_environment import child_environment
from overlap.trackers.feed import TrackerGone
from overlap.trackers.tracker import TrackedRun, TrackerFault, TrackerRefused

START_S, CALL_S = 120.0, 60.0
"""Time for a tracker to start, and to take a call; one that needs longer is ended."""
KILL_S = 5.0
"""Time for the kernel to end its processes."""


class ChildTracker:
    """Implements ``Tracker`` in a thread of the run. ``path``: class of the tracker; ``log`` takes what it prints;
    ``scratch`` has its temporary files, which packages leave there.
    """

    def __init__(self, path: str, log: Path, scratch: Path) -> None:
        self._path, self._log, self._scratch = path, log, scratch
        self._child: subprocess.Popen[bytes] | None = None
        self._answers = b""
        self._reading = False

    def start(self, run: TrackedRun) -> None:
        # In a session of its own: the Ctrl-C of a terminal is for the run, which ends its trackers in order.
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "overlap.trackers.child", self._path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(CUDA_VISIBLE_DEVICES="", TMPDIR=str(self._scratch)),
                start_new_session=True,
            )
        self._call("start", asdict(run), wait_s=START_S)

    def row(self, row: Mapping[str, Any]) -> None:
        self._call("row", row)

    def samples(self, split: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._call("samples", split, step, rows)

    def rewind(self, step: int) -> None:
        self._call("rewind", step)

    def end(self, exit: str, figures: Mapping[str, Any]) -> None:
        self._call("end", exit, figures)

    def kill(self) -> None:
        """End the process, and what it has started, at once. Safe to call twice, from any thread."""
        child = self._child
        if child is None:
            return
        with suppress(OSError):
            if child.stdin is not None:
                child.stdin.close()
        process_tree.kill_tree([child.pid], KILL_S, reap=False)
        with suppress(subprocess.TimeoutExpired):
            child.wait(KILL_S)
        if child.stdout is not None and not self._reading:  # else whoever reads there comes here next
            child.stdout.close()

    def _call(self, method: str, *args: Any, wait_s: float = CALL_S) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        line = json.dumps({"call": method, "args": args}).encode() + b"\n"
        try:
            self._child.stdin.write(line)
            self._child.stdin.flush()
            self._reading = True
            try:
                answer = json.loads(self._answer(wait_s))
            finally:
                self._reading = False
        except (OSError, ValueError, EOFError, TimeoutError) as error:
            if not isinstance(error, TimeoutError):
                with suppress(subprocess.TimeoutExpired):
                    self._child.wait(KILL_S)  # it is about to end, and says how
            self.kill()
            ended = self._child.returncode
            why = str(error) if isinstance(error, TimeoutError) else f"its process has ended ({ended})"
            raise TrackerGone(f"{why}, see {self._log.name}") from error
        if "refused" in answer:
            self.kill()
            raise TrackerRefused(answer["refused"])
        if "error" in answer:
            if method == "start":
                self.kill()
            raise TrackerFault(answer["error"])

    def _answer(self, wait_s: float) -> bytes:
        """The next line of the child. Raises TimeoutError, EOFError."""
        assert self._child is not None
        assert self._child.stdout is not None
        until_s, file = time.monotonic() + wait_s, self._child.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            while b"\n" not in self._answers:
                if not selector.select(max(0.0, until_s - time.monotonic())):
                    raise TimeoutError(f"it has not answered within {wait_s:g} s")
                if not (part := os.read(file.fileno(), 65_536)):
                    raise EOFError
                self._answers += part
        line, _, self._answers = self._answers.partition(b"\n")
        return line
