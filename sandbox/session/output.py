"""Results of calls and runs: text of bounded length, and how the program ended if it did."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from sandbox.core.program_run import ProgramRun
from sandbox.jail.run import RunResult

Ended = Literal["timed out", "out of memory", "killed"]
SHOWN_BYTES: Final = 16 << 10
"""Bytes kept of each stream of a call: its beginning and its end."""
_ENDED: Final[dict[str, Ended]] = {"cpu": "timed out", "wall": "timed out", "memory": "out of memory"}


@dataclass(frozen=True, slots=True)
class Output:
    """Result of one call. All text comes from the program and is not trustworthy; ``ended`` is the sandbox's."""

    stdout: str
    stderr: str
    """Each at most 16 KiB, or as many as the sessions keep: of a longer one its two ends, and the size between."""
    value: str | None
    """The repr of the last statement, where that is an expression and its value is not None."""
    error: str | None
    """The traceback of what the call raised, or of what cannot be compiled; the state is kept."""
    ended: Ended | None
    """The program has ended in this call, and its state with it."""
    cause: str
    """The cause of that end, in words."""
    fresh: bool
    """The call began in a new state: it was the first, or the state before it had ended."""
    wall_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a run of files or of a command. All text is the program's own; the rest is ours."""

    stdout: str
    stderr: str
    """Each at most 16 KiB: where it is longer, its beginning and its end, and how much is between them."""
    exit_code: int | None
    """None where it did not run to its end."""
    ended: Ended | None
    """A limit or a signal was its end."""
    cause: str
    """The cause of that end, or why the program never ran, in words."""
    wall_s: float

    @classmethod
    def of(cls, done: RunResult | ProgramRun, shown_bytes: int) -> Finished:
        """Read the result of a run."""
        went = not done.cause and done.signal is None
        ended, cause = (None, "") if went else read_end(done)
        out, err = (shorten(stream, shown_bytes) for stream in (done.stdout, done.stderr))
        return cls(out, err, done.exit_code if went else None, ended, cause, done.wall_s)


class Stream:
    """Keeps the beginning and the end of a stream."""

    def __init__(self, cap: int = SHOWN_BYTES) -> None:
        self._half, self.size = cap // 2, 0
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        self.size += len(data)
        free = self._half - len(self._head)
        self._head += data[:free]
        self._tail += data[free:][-self._half :]
        del self._tail[: -self._half]

    def text(self) -> str:
        """Decode; bytes that are not UTF-8 are replaced."""
        left_out = self.size - len(self._head) - len(self._tail)
        between = b"\n[... %d bytes ...]\n" % left_out if left_out else b""
        return (self._head + between + self._tail).decode(errors="replace")


def shorten(data: bytes, cap: int) -> str:
    """Return the beginning and the end of what was written, as text."""
    stream = Stream(cap)
    stream.add(data)
    return stream.text()


def read_end(done: RunResult | ProgramRun) -> tuple[Ended, str]:
    """Return how a program ended that should have continued."""
    if done.cause:
        ended = _ENDED.get(done.cause, "killed")
        return ended, done.cause if done.cause.startswith("security") else f"{done.cause} limit"
    if done.signal is not None:
        name = str(done.signal)
        with suppress(ValueError):  # a real-time signal has none
            name = signal.Signals(done.signal).name
        return "killed", f"signal {name}"
    return "killed", f"it ended itself with exit code {done.exit_code}"
