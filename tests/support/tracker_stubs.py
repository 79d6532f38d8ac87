"""A tracker of a user's: notes what it is told in a file of the run directory, and misbehaves as ``does`` says."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, ClassVar


class FileTracker:
    """Its calls are lines of ``stub.jsonl``. ``does``: method -> raise, exit or hang."""

    does: ClassVar[dict[str, str]] = {}
    freed: ClassVar[threading.Event] = threading.Event()
    """Set once those that hang shall go on."""

    def on_run_start(self, run: Any, event: Any) -> None:
        self._note(run, "start", event.step, event.resumed)

    async def on_step(self, run: Any, event: Any) -> None:
        self._note(run, "row", {"step": event.step, **event.row}, len(event.batch.samples))

    def on_evaluate(self, run: Any, event: Any) -> None:
        self._note(run, "row", {"step": event.step, **event.row}, len(event.samples))

    def on_run_end(self, run: Any, event: Any) -> None:
        self._note(run, "end", event.exit, bool(event.summary))

    def _note(self, run: Any, *call: Any) -> None:
        match self.does.get(call[0], ""):
            case "raise":
                raise ConnectionError("the network is down")
            case "exit":
                raise SystemExit(3)
            case "hang":
                self.freed.wait(60)
        with (run.path / "stub.jsonl").open("a") as file:
            file.write(json.dumps(call) + "\n")


class NeedsLogin(FileTracker):
    """Refuses to be made."""

    def __init__(self) -> None:
        raise PermissionError("no login here")


def calls(folder: Path, kind: str = "") -> list[list[Any]]:
    """What a ``FileTracker`` got for the run in ``folder``, or those calls of a ``kind``."""
    path = folder / "stub.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [call for call in found if kind in ("", call[0])]
