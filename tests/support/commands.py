"""A command on a machine of a cluster, and what it prints: text, and events as lines of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from machines import Machine, wait_until
from places import ROOT, SUPPORT


class Command:
    """Python with ``args``. An event is a line of JSON with a "what"."""

    def __init__(self, machine: Machine, args: Sequence[str | Path], **environment: str) -> None:
        self.machine = machine
        common = {"PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}", "TMPDIR": "/tmp"}  # /mnt is each machine's own
        self.process = machine.start([sys.executable, *map(str, args)], **common | environment)
        self.events: list[dict[str, Any]] = []
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"') and line.endswith("}\n"):
                self.events.append(json.loads(line))
            self._lines.append(line)

    @property
    def text(self) -> str:
        return "".join(self._lines)

    def find(self, what: str) -> list[dict[str, Any]]:
        """The events of this kind so far."""
        return [event for event in self.events if event["what"] == what]

    def until(self, true: str | Callable[[], Any], seconds: float = 60.0) -> None:
        """Wait until it is, or until it has printed these words."""
        came = true if callable(true) else (lambda: true in self.text)
        try:
            wait_until(lambda: came() or self.process.poll() is not None, seconds)
            if not came():
                self._reader.join(10)
                assert came(), f"it ended before, with {self.process.returncode}"
        except AssertionError as error:
            raise AssertionError(f"{true}: {error}\n{self.text[-4000:]}") from None

    def event(self, what: str, seconds: float = 60.0) -> dict[str, Any]:
        """The first of this kind, when it is there."""
        self.until(lambda: self.find(what), seconds)
        return self.find(what)[0]

    def end(self, seconds: float = 300.0) -> int:
        """Its exit status, when it has ended by itself and everything that it printed is here."""
        self.process.wait(seconds)
        self._reader.join(10)
        return int(self.process.returncode)

    def kill(self) -> None:
        """Nothing but itself: what it started is to notice."""
        for pid in self._pids():
            os.kill(pid, signal.SIGKILL)

    def _pids(self) -> list[int]:
        if self.process.poll() is not None:
            return []
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def close(self) -> None:
        self.kill()
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        if self.machine.lives:  # the folder that the reaper removes is not the machine's own, and stays behind it
            wait_until(lambda: not self.machine.find("overlap.process import reaper"), 30.0)
        assert self.process.stdout is not None
        self.process.stdout.close()


def say(what: str, **more: Any) -> None:
    """Print an event; for drivers."""
    print(json.dumps({"what": what, "at": time.monotonic(), **more}), flush=True)


@contextmanager
def commands(machine: Machine) -> Iterator[Callable[..., Command]]:
    """What starts commands there, which are closed behind."""
    made: list[Command] = []

    def start(*args: str | Path) -> Command:
        made.append(Command(machine, args))
        return made[-1]

    try:
        yield start
    finally:
        for each in made:
            each.close()


def left(machine: Machine, module: str) -> dict[int, str]:
    """What a machine has of processes of that module, of agents that have one, and of what clears up behind them."""
    return machine.find(module) | machine.find("NodeActor") | machine.find("overlap.process import reaper")
