"""Trackers that stand for services: what they got is in a file; ``config["does"]`` says how they misbehave."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from overlap.trackers.tracker import TrackedRun, TrackerRefused


class FileTracker:
    """Writes its calls into ``stub.jsonl`` in the run directory. ``does``: method -> refuse,
    import, raise, print, leave, die, hang.
    """

    def start(self, run: TrackedRun) -> None:
        self._path = Path(run.folder) / "stub.jsonl"
        self._does: Mapping[str, str] = run.config.get("does", {})
        self._note("start", run.id, run.step, run.resumed, os.getpid())

    def row(self, row: Mapping[str, Any]) -> None:
        self._note("row", dict(row))

    def samples(self, split: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._note("samples", split, step, list(rows))

    def rewind(self, step: int) -> None:
        self._note("rewind", step)

    def end(self, exit: str, figures: Mapping[str, Any]) -> None:
        self._note("end", exit, dict(figures))

    def _note(self, *call: Any) -> None:
        self._misbehave(self._does.get(call[0], ""))
        with self._path.open("a") as file:
            file.write(json.dumps(call) + "\n")

    def _misbehave(self, how: str) -> None:
        match how:
            case "refuse":
                raise TrackerRefused("no login here")
            case "import":
                import_module("no_such_package")
            case "raise":
                raise ConnectionError("the network is down")
            case "print":
                print("chatter of a package")
                sys.stderr.write("more of it\n")
            case "leave":
                Path(tempfile.gettempdir(), "left-behind").mkdir()
            case "die":
                os._exit(3)
            case "hang":
                threading.Event().wait()


class DiesOnce(FileTracker):
    """Its first process dies at the second row."""

    def row(self, row: Mapping[str, Any]) -> None:
        mark = self._path.with_suffix(".died")
        if row["step"] == 2 and not mark.exists():
            mark.touch()
            os._exit(3)
        super().row(row)


def calls(folder: Path) -> list[list[Any]]:
    """What a ``FileTracker`` got for the run in ``folder``."""
    path = folder / "stub.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
