"""A program and an interactor at the same time, each in a jail of its own, stdin and stdout crossed through us.

    program ──stdout──▶ lane ──▶ stdin── interactor          lanes copy bytes, count them, and never wait for one side
            ◀──stdin── lane ◀──stdout──

consumes two runs in two threads; produces the program's RunResult and a Decision
waits for bytes, for the end of either run, or for the caller's cancel; woken by each

Who caused what is no race: the end of one side reaches the other, as an end of file, only after its run has been
reported here, and what is written to a side that has ended is dropped. A side that closes its stdout and goes on is
distinguished from one that is ending, and the other sees the end of file at once. Which is at fault, in this order:

    the program did what no program may              SEC
    the program wrote more than its output limit     OLE
    the program broke a limit, or did not end well   that verdict; waiting for input that never comes is TLE (wall)
    otherwise                                        what the interactor says, at the end of its input

An interactor that rejects, or fails, may have seen what kills the program first. So the program does not see its end,
and goes on until it ends by itself, sleeps (it waits for an answer), or has used _PARTING_CPU_S more: then it is
stopped, WA. A program that has closed its stdout has nothing more to say: it is judged by how it ends, however long it
lives.

An interactor is at fault when it crashes, breaks a limit, writes without end, or does not end. If it has taken in
something of what the program said, or the end of it, then that brought it there, for the program may say anything: WA.
If it has not, in no run of the case, it is its author's fault: CheckerError.
"""

from __future__ import annotations

import select
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final

from sandbox.core.excerpt import Excerpt, ExcerptWriter
from sandbox.core.nouns import Case, Limits, Verdict
from sandbox.errors import Cancelled, CheckerError, SandboxError, Starved
from sandbox.jail.jail import Jail
from sandbox.jail.run import RunResult
from sandbox.judging import referee
from sandbox.judging.lanes import Lane, Side
from sandbox.judging.prepared import Frame, PreparedProgram, encode_files
from sandbox.judging.verdicts import Decision, check_beside, decide_ending
from sandbox.languages.language import Language
from sandbox.languages.layout import CompileError
from sandbox.zygote.run_clock import WALL_STRETCH

_PARTING_CPU_S: Final = 0.5  # of a program that was rejected; at most a quarter of its limit
_GLANCE_S: Final = 0.01
INTERACTOR_END_S: Final = 60.0
"""Seconds that an interactor may take after the program's end."""


@dataclass(eq=False, slots=True)
class _Parting:
    """Watches a program that was rejected and still runs."""

    jail: Jail
    cpu_max_s: float
    """CPU seconds, all in all, after which it is waited for no longer."""
    look: float = 0.0
    """Time at which it is looked at next."""
    before: tuple[bool, float] | None = None

    def is_over(self, *, moved: bool) -> bool:
        """Return whether it has slept since the last look, or used all that it may."""
        if moved:
            self.before = None
        if time.monotonic() < self.look:
            return False
        seen, before = self.jail.activity(), self.before
        self.before, self.look = seen, time.monotonic() + _GLANCE_S
        busy, cpu_s = seen
        return cpu_s > self.cpu_max_s or (not busy and seen == before)


@dataclass(eq=False, slots=True)
class _Talk:
    """The two sides and the two lanes of one case."""

    program: Side
    interactor: Side
    said: Lane
    """program to interactor"""
    told: Lane
    """interactor to program"""
    patient: Limits
    """The interactor's: it waits for the program, as long as that may take."""
    parting_cpu_s: float
    judge: referee.Referee
    reading: Decision | CheckerError | None = None
    """Meaning of the interactor's end, where the program went on."""
    parting: _Parting | None = None
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
            left = min(deadline, self.parting.look if self.parting else deadline) - time.monotonic()
            ready = {fd for fd, _ in poller.poll(None if left == float("inf") else max(0.0, left) * 1000)}
            if cancel_fd in ready:
                raise Cancelled("the run was cancelled")
            for side in sides:
                if side.done_fd in ready and not side.ended:
                    deadline = self._end(side)
            if (moved := self.said.move()) and not self.told.flooded:
                self.told.passed = 0
            moved |= self.told.move()
            self._see_off(moved=moved)
            if self.said.flooded or self.told.flooded or (not ready and time.monotonic() >= deadline):
                self._note()
                self.program.cancel()
                self.interactor.cancel()
                deadline = float("inf")

    def _part(self) -> None:
        """The interactor has rejected: see the module."""
        jail = self.program.jail
        self.parting = _Parting(jail, jail.activity()[1] + self.parting_cpu_s)
        self.said.counts, self.told.held = False, True

    def _see_off(self, *, moved: bool) -> None:
        """Stop a rejected program that does not end by itself."""
        if self.parting is None:
            return
        if self.program.ended or self.said.shut:
            self.parting, self.told.held = None, False
            self.told.move()
        elif self.parting.is_over(moved=moved):
            self.parting = None
            self.program.cancel()

    def _note(self) -> None:
        if self.heard is None:
            self.heard = self.said.heard()

    def _end(self, side: Side) -> float:
        """Handle the end of a side; returns the time until which the other may continue."""
        side.ended = True
        if side is self.interactor:
            self._note()
            if side.outcome is None:
                self.program.cancel()
            elif not self.program.ended:
                self.reading = self.judge.read(*side.outcome, self.patient)
                if isinstance(self.reading, CheckerError) or self.reading[0] is not Verdict.AC:
                    self._part()  # one that is accepted must still end well, within its own limits
        if side is self.program and side.error is not None:
            self.interactor.cancel()
        return time.monotonic() + INTERACTOR_END_S if side is self.program else float("inf")


def run_interactive(
    prepared: PreparedProgram, judge: referee.Referee, limits: Limits, case: Case, job: Frame | None = None
) -> tuple[RunResult, Decision, Excerpt | None]:
    """Return the program's run, the decision, and what the program said. `job`: further input of its harness.

    Raises CompileError for the program's source, CheckerError for the interactor, SandboxError for us.

    A program that was stopped because the interactor had decided, or for its flood, has no CPU time and memory in its
    RunResult: they are 0.
    """
    theirs = judge.files(case)
    if crash := judge.check_room(theirs):
        return _unmeasured(0.0), _blamed(judge, crash), None
    start = time.monotonic()
    with ExitStack() as stack:
        talk = _set_up(stack, prepared, judge, limits)
        said = talk.said.copy = ExcerptWriter()
        mine = {"arguments": case.arguments, "files": encode_files(case.files), "job": job}
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
    return done, _decide(talk, limits, prepared.language), said.excerpt()


def _unmeasured(wall_s: float) -> RunResult:
    return RunResult(None, None, None, 0.0, wall_s, 0, 0, b"", b"", b"", None)


def _set_up(stack: ExitStack, prepared: PreparedProgram, judge: referee.Referee, limits: Limits) -> _Talk:
    """The conversation; the stack closes all its descriptors."""
    program = stack.enter_context(closing(Side("program", prepared.jail)))
    interactor = stack.enter_context(closing(Side("interactor", judge.prepared.jail)))
    said = stack.enter_context(closing(Lane(program, interactor, limits.output_bytes)))
    told = stack.enter_context(closing(Lane(interactor, program, judge.limits.output_bytes)))
    patient = replace(judge.limits, wall_s=limits.wall_limit_s * WALL_STRETCH + 2 * INTERACTOR_END_S)
    parting_cpu_s = min(_PARTING_CPU_S, limits.cpu_s / 4)
    return _Talk(program, interactor, said, told, patient, parting_cpu_s, judge)


def _decide(talk: _Talk, limits: Limits, language: Language) -> Decision:
    program, interactor, judge = talk.program, talk.interactor, talk.judge
    if isinstance(interactor.error, CompileError):
        raise judge.fault(f"does not compile: {str(interactor.error)[:2000]}") from interactor.error
    for error in (program.error, interactor.error):
        if error is not None and not isinstance(error, Cancelled):
            raise error
    ending = None
    if program.outcome:
        check_beside(program.outcome[0], limits, interactor.jail)
        ending = decide_ending(*program.outcome, limits, language)
    if ending and ending[0] is Verdict.SEC:
        return ending
    if talk.said.flooded:
        return Verdict.OLE, f"output limit of {limits.output_bytes} bytes"
    if ending:
        return ending
    if talk.told.flooded:
        return _settle(talk, judge.crash(f"wrote more than {judge.limits.output_bytes} bytes to the program"))
    if interactor.outcome:
        return _settle(talk, talk.reading or judge.read(*interactor.outcome, talk.patient))
    if program.outcome is None:
        raise Cancelled("the program was cancelled")
    if interactor.jail.lost_s > INTERACTOR_END_S / 2:
        raise Starved(f"the {judge.role} waited {interactor.jail.lost_s:.0f} s for the machine; use fewer workers")
    return _settle(talk, judge.crash(f"did not end within {INTERACTOR_END_S:g} s of the program's end"))


def _settle(talk: _Talk, reading: Decision | CheckerError) -> Decision:
    """Blame a crash of the interactor on the program. Raises CheckerError where the program had no part in it."""
    if not isinstance(reading, CheckerError):
        return reading
    if isinstance(reading, referee.Crash) and (talk.heard or talk.judge.again):
        return _blamed(talk.judge, reading)
    raise CheckerError(str(reading))


def _blamed(judge: referee.Referee, crash: referee.Crash) -> Decision:
    return Verdict.WA, f"on what the program said, the {judge.role} {crash.brief}"
