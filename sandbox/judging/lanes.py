"""The two sides of an interactive case, each a run in a thread, and the lanes that copy what they say."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from sandbox.core.excerpt import ExcerptWriter
from sandbox.core.nouns import Limits
from sandbox.jail.jail import Jail
from sandbox.jail.run import RunResult
from sandbox.judging.prepared import Frame, PreparedProgram

_CHUNK: Final = 1 << 16
_AT_ONCE: Final = 1 << 20

Outcome = tuple[RunResult, Frame | None]


def _new_event() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC)


@dataclass(eq=False, slots=True)
class Side:
    """One of the two runs, in a thread."""

    name: str
    jail: Jail
    done_fd: int = field(default_factory=_new_event)
    cancel_fd: int = field(default_factory=_new_event)
    ends: list[int] = field(default_factory=lambda: [-1, -1])
    """The descriptors for its stdin and stdout, open here until the jail has them."""
    outcome: Outcome | None = None
    error: BaseException | None = None
    ended: bool = False
    """The end was seen by the copying thread, and reported to the other side."""

    def start(self, prepared: PreparedProgram, limits: Limits, **how: Any) -> threading.Thread:
        def body() -> None:
            try:
                prepared.start(limits, pipes=(self.ends[0], self.ends[1]), **how)
                self.let_go()
                self.outcome = prepared.finish(cancel_fd=self.cancel_fd)
            except BaseException as error:  # raised by the thread that waits for this side
                self.error = error
            finally:
                os.eventfd_write(self.done_fd, 1)

        thread = threading.Thread(target=body, name=f"sandbox {self.name}", daemon=True)
        thread.start()
        return thread

    def let_go(self) -> None:
        while self.ends:
            if (fd := self.ends.pop()) >= 0:
                os.close(fd)

    def cancel(self) -> None:
        os.eventfd_write(self.cancel_fd, 1)

    def close(self) -> None:
        self.let_go()
        os.close(self.done_fd)
        os.close(self.cancel_fd)


@dataclass(eq=False, slots=True)
class Lane:
    """One direction: `source` is this process's end of the writer's stdout, `target` its end of the reader's stdin."""

    writer: Side
    reader: Side
    limit_bytes: int
    source: int = -1
    target: int = -1
    pending: bytes = b""
    passed: int = 0
    """Bytes since the reader last wrote something itself."""
    delivered: int = 0
    copy: ExcerptWriter | None = None
    """Copy of what the writer wrote, for people."""
    shut: bool = False
    """No process can write any more."""
    deaf: bool = False
    """No process can read any more."""
    closed: bool = False
    held: bool = False
    """The end of the writer is not shown to the reader."""
    counts: bool = True
    """False when it no longer matters how much is written."""

    def __post_init__(self) -> None:
        self.source, self.writer.ends[1] = os.pipe()
        self.reader.ends[0], self.target = os.pipe()
        os.set_blocking(self.source, False)
        os.set_blocking(self.target, False)

    @property
    def flooded(self) -> bool:
        return self.counts and self.passed > self.limit_bytes

    def interest(self) -> tuple[int, int] | None:
        if self.closed or self.flooded or (self.shut and not self.pending):
            return None
        return (self.target, select.POLLOUT) if self.pending else (self.source, select.POLLIN)

    def move(self) -> bool:
        """Copy what can be copied without waiting; close at the end of the data. Returns whether anything came."""
        before = self.passed
        while not self.closed and not self.flooded and (self.pending or not self.shut):
            if self.passed - before > _AT_ONCE:
                break
            try:
                if not self.pending:
                    self.pending = os.read(self.source, _CHUNK)
                    self.passed += len(self.pending)
                    if self.copy is not None:
                        self.copy.add(self.pending)
                    if not self.pending:
                        self.shut = True
                        if not self.writer.ended and self.writer.jail.is_running():
                            self.close()  # the program continues without its stdout
                        break
                if not (self.reader.ended or self.deaf):
                    size = os.write(self.target, self.pending)
                    self.delivered += size
                    self.pending = self.pending[size:]
                else:
                    self.pending = b""
            except (BlockingIOError, BrokenPipeError) as error:
                if isinstance(error, BlockingIOError):
                    break
                self.deaf = True
        if self.writer.ended and not self.pending and not self.held:
            self.close()
        return self.passed > before

    def heard(self) -> bool:
        """Return whether the reader has read something, or the end of file."""
        if self.closed:
            return True
        (unread,) = struct.unpack("i", fcntl.ioctl(self.target, termios.FIONREAD, bytes(4)))
        return bool(self.delivered > unread)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.source)
            os.close(self.target)
