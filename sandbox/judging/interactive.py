"""A program and an interactor at the same time, each in a jail of its own, stdin and stdout crossed through us.

    program ──stdout──▶ lane ──▶ stdin── interactor          lanes copy bytes, count them, and never wait for one side
            ◀──stdin── lane ◀──stdout──

consumes two runs in two threads; produces the program's RunResult and a Decision
waits for bytes, for the end of either run, or for the caller's cancel; woken by each

Who caused what is no race: the end of one side reaches the other, as an end of file, only after its run has been
reported here, and what is written to a side that has ended is dropped. A side that closes its stdout and goes on is
told from one that is ending, and the other sees the end of file at once. Who is to blame, in this order:

    the program did what no program may              SEC
    the program wrote more than its output limit     OLE
    the interactor ended first, wrong or at fault    WA: the program is stopped, and not asked further
    the program broke a limit, or did not end well   that verdict; waiting for input that never comes is TLE (wall)
    otherwise                                        what the interactor says, at the end of its input

An interactor is at fault when it crashes, breaks a limit, writes without end, or does not end. If it has taken in
something of what the program said, or the end of it, then that brought it there, for the program may say anything: WA.
If it has not, in no run of the case, it is its author's fault: CheckerError.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from sandbox.core import Case, Excerpt, ExcerptWriter, Limits, Verdict
from sandbox.errors import Cancelled, CheckerError, SandboxError
from sandbox.jail import WALL_STRETCH, Jail, RunResult
from sandbox.judging import referee
from sandbox.judging.frames import Frame
from sandbox.judging.prepared import CompileError, PreparedProgram, encode_files
from sandbox.judging.verdicts import Decision, decide_ending, decide_limits
from sandbox.languages import Language

_CHUNK: Final = 1 << 16
INTERACTOR_END_S: Final = 60.0
"""Seconds that an interactor may take after the program's end."""

Outcome = tuple[RunResult, Frame | None]


@dataclass(eq=False, slots=True)
class _Side:
    """One of the two runs, in a thread."""

    name: str
    done_fd: int
    cancel_fd: int
    jail: Jail
    ends: list[int]
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
            os.close(self.ends.pop())

    def cancel(self) -> None:
        os.eventfd_write(self.cancel_fd, 1)


@dataclass(eq=False, slots=True)
class _Lane:
    """One direction: `source` is this process's end of the writer's stdout, `target` its end of the reader's stdin."""

    writer: _Side
    reader: _Side
    source: int
    target: int
    limit_bytes: int
    pending: bytes = b""
    passed: int = 0
    """Bytes since the reader last wrote something itself."""
    delivered: int = 0
    copy: ExcerptWriter | None = None
    """What the writer said, for people."""
    shut: bool = False
    """No process can write any more."""
    deaf: bool = False
    """No process can read any more."""
    closed: bool = False

    @property
    def flooded(self) -> bool:
        return self.passed > self.limit_bytes

    def interest(self) -> tuple[int, int] | None:
        if self.closed or (self.shut and not self.pending):
            return None
        return (self.target, select.POLLOUT) if self.pending else (self.source, select.POLLIN)

    def move(self) -> bool:
        """Copy what can be copied without waiting; close at the end of the data. Returns whether anything came."""
        before = self.passed
        while not self.closed and not self.flooded and (self.pending or not self.shut):
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
                self.pending = self.pending[self._deliver() :]
            except BlockingIOError:
                break
        if self.flooded or (self.writer.ended and not self.pending):
            self.close()
        return self.passed > before

    def _deliver(self) -> int:
        """Return how many of the pending bytes are written."""
        if self.reader.ended or self.deaf:
            return len(self.pending)
        try:
            size = os.write(self.target, self.pending)
        except BrokenPipeError:
            self.deaf = True
            return len(self.pending)
        self.delivered += size
        return size

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


@dataclass(eq=False, slots=True)
class _Talk:
    """The two sides and the two lanes of one case."""

    program: _Side
    interactor: _Side
    said: _Lane
    """program to interactor"""
    told: _Lane
    """interactor to program"""
    patient: Limits
    """The interactor's: it waits for the program, as long as that may take."""
    rejected: Callable[[], bool]
    """Called when the interactor has ended: whether the program's further behaviour no longer matters."""
    first: _Side | None = None
    heard: bool | None = None
    """The interactor had read something from the program when it ended or was stopped."""

    def pump(self, cancel_fd: int | None) -> None:
        """Copy until both runs have ended. Raises Cancelled when `cancel_fd` becomes readable."""
        sides, lanes = (self.program, self.interactor), (self.said, self.told)
        deadline = float("inf")
        while not all(side.ended for side in sides):
            poller = select.poll()
            for side in sides:
                if not side.ended:
                    poller.register(side.done_fd, select.POLLIN)
            if cancel_fd is not None:
                poller.register(cancel_fd, select.POLLIN)
            for lane in lanes:
                if interest := lane.interest():
                    poller.register(*interest)
            left = deadline - time.monotonic()
            ready = {fd for fd, _ in poller.poll(None if left == float("inf") else max(0.0, left) * 1000)}
            if cancel_fd in ready:
                raise Cancelled("the run was cancelled")
            for side in sides:
                if side.done_fd in ready and not side.ended:
                    deadline = self._end(side)
            if self.said.move() and not self.told.flooded:
                self.told.passed = 0
            self.told.move()
            if self.said.flooded or self.told.flooded or (not ready and time.monotonic() >= deadline):
                self._note()
                self.program.cancel()
                self.interactor.cancel()
                deadline = float("inf")

    def _note(self) -> None:
        if self.heard is None:
            self.heard = self.said.heard()

    def _end(self, side: _Side) -> float:
        """Handle the end of a side; returns the time until which the other may continue."""
        side.ended = True
        self.first = self.first or side
        if side is self.interactor:
            self._note()
            if not self.program.ended and self.rejected():
                self.program.cancel()
        if side is self.program and side.error is not None:
            self.interactor.cancel()
        return time.monotonic() + INTERACTOR_END_S if side is self.program else float("inf")


def run_interactive(
    prepared: PreparedProgram, judge: referee.Referee, limits: Limits, case: Case
) -> tuple[RunResult, Decision, Excerpt | None]:
    """Return the program's run, the decision, and what the program said.

    Raises CompileError for the program's source, CheckerError for the interactor, SandboxError for us.

    A program that was stopped because the interactor had decided, or for its flood, has no CPU time and memory in its
    RunResult: they are 0.
    """
    theirs = judge.files(case)
    try:
        judge.check_room(theirs)
    except referee.Crash as crash:
        return _unmeasured(0.0), (Verdict.WA, f"on what the program said, the {judge.role} {crash.brief}"), None
    start = time.monotonic()
    with ExitStack() as stack:
        talk = _set_up(stack, prepared, judge, limits)
        said = talk.said.copy = ExcerptWriter()
        mine = {"arguments": case.arguments, "files": encode_files(case.files)}
        threads: list[threading.Thread] = []
        try:
            threads.append(talk.interactor.start(judge.prepared, talk.patient, **judge.how(case), files=theirs))
            threads.append(talk.program.start(prepared, limits, **mine))
            talk.pump(prepared.cancel_fd)
        except RuntimeError as error:  # no thread can be started
            raise SandboxError(f"the two sides of an interactive case cannot be started: {error}") from error
        finally:
            talk.program.cancel()
            talk.interactor.cancel()
            for thread in threads:
                thread.join()
    done = talk.program.outcome[0] if talk.program.outcome else _unmeasured(time.monotonic() - start)
    return done, _decide(talk, judge, limits, prepared.language), said.excerpt()


def _unmeasured(wall_s: float) -> RunResult:
    return RunResult(None, None, None, 0.0, wall_s, 0, 0, b"", b"", b"", None)


def _set_up(stack: ExitStack, prepared: PreparedProgram, judge: referee.Referee, limits: Limits) -> _Talk:
    """The conversation; the stack closes all its descriptors."""

    def own(fd: int) -> int:
        stack.callback(os.close, fd)
        return fd

    def side(name: str, jail: Jail) -> _Side:
        made = _Side(name, own(os.eventfd(0, os.EFD_CLOEXEC)), own(os.eventfd(0, os.EFD_CLOEXEC)), jail, [])
        stack.callback(made.let_go)
        return made

    def lane(writer: _Side, reader: _Side, limit_bytes: int) -> _Lane:
        source, their_stdout = os.pipe()
        their_stdin, target = os.pipe()
        made = _Lane(writer, reader, source, target, limit_bytes)
        stack.callback(made.close)
        writer.ends.append(their_stdout)
        reader.ends.insert(0, their_stdin)
        for fd in (source, target):
            os.set_blocking(fd, False)
        return made

    program, interactor = side("program", prepared.jail), side("interactor", judge.prepared.jail)
    said = lane(program, interactor, limits.output_bytes)
    told = lane(interactor, program, judge.limits.output_bytes)
    patient = replace(judge.limits, wall_s=limits.wall_limit_s * WALL_STRETCH + 2 * INTERACTOR_END_S)
    return _Talk(program, interactor, said, told, patient, lambda: _rejects(judge, interactor, patient))


def _rejects(judge: referee.Referee, interactor: _Side, patient: Limits) -> bool:
    """Return False where the interactor accepts: then the program must still end well, within its own limits."""
    if interactor.outcome is None:
        return True
    try:
        return judge.read(*interactor.outcome, patient)[0] is not Verdict.AC
    except CheckerError:
        return True


def _decide(talk: _Talk, judge: referee.Referee, limits: Limits, language: Language) -> Decision:
    program, interactor = talk.program, talk.interactor
    if isinstance(interactor.error, CompileError):
        raise judge.fault(f"does not compile: {str(interactor.error)[:2000]}") from interactor.error
    for error in (program.error, interactor.error):
        if error is not None and not isinstance(error, Cancelled):
            raise error
    limited = decide_limits(program.outcome[0], limits) if program.outcome else None
    if limited and limited[0] is Verdict.SEC:
        return limited
    if talk.said.flooded:
        return Verdict.OLE, f"output limit of {limits.output_bytes} bytes"
    if talk.told.flooded:
        return _blame(talk, judge, f"wrote more than {judge.limits.output_bytes} bytes to the program")
    if talk.first is interactor and _rejects(judge, interactor, talk.patient) and interactor.outcome:
        return _read(talk, judge, interactor.outcome)
    if program.outcome is None:
        raise Cancelled("the program was cancelled")
    if ending := decide_ending(*program.outcome, limits, language):
        return ending
    if interactor.outcome is None:
        return _blame(talk, judge, f"did not end within {INTERACTOR_END_S:g} s of the program's end")
    return _read(talk, judge, interactor.outcome)


def _read(talk: _Talk, judge: referee.Referee, outcome: Outcome) -> Decision:
    try:
        return judge.read(*outcome, talk.patient)
    except referee.Crash as crash:
        return _blame(talk, judge, crash.brief, crash)


def _blame(talk: _Talk, judge: referee.Referee, brief: str, crash: referee.Crash | None = None) -> Decision:
    """Blame a failure of the interactor. Raises CheckerError where the program had no part in it."""
    if not (talk.heard or judge.again):
        raise judge.fault(brief) if crash is None else CheckerError(str(crash))
    return Verdict.WA, f"on what the program said, the {judge.role} {brief}"
