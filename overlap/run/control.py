"""Commands to a run at any moment of its life: pause, resume, drain, save, status, stop.

    overlap ctl RUN pause  ──▶ RUN/ctl ──▶ RunControl ──▶ Control (of the pipeline's loop)
    run = overlap.start(cfg); run.pause()  ──────────────┘

    preparing ──▶ starting ──▶ running ──▶ ending ──▶ ended
                                 ▲ │
                restarting: 1 of 2 ◀┘

A command that comes before the run has started, or while it restarts, is kept until it runs. One that can no longer be
obeyed is refused. Any thread may call a method of ``RunControl``, unless its text says "the session calls this".
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from typing import Any, Literal, TypedDict, TypeVar, cast, get_args

from overlap.core.aio import race
from overlap.core.errors import OverlapError, StoppedError
from overlap.pipeline.control import Control, OnSave
from overlap.record.resume import BEGINNING, Resumed

T = TypeVar("T")
Command = Literal["pause", "resume", "drain", "save", "status", "stop"]
COMMANDS: tuple[Command, ...] = get_args(Command)
Phase = Literal["preparing", "starting", "restarting", "running", "ending", "ended"]
Answer = dict[str, Any]
"""``done``, the effect of a command; or a ``RunStatus``."""


class RunStatus(TypedDict, total=False):
    """Activity and position of a run; while it takes steps, with the figures of its loop (``LoopState``)."""

    state: str
    """"preparing", "starting", "running", "pausing", "paused", "draining", "stopping", "restarting: 1 of 2",
    "finishing", "ending" or "ended"."""
    run: str
    """The run directory."""
    step: int
    """The last step that was taken; 0 before the first."""
    steps: int
    """Steps that the run is to take."""
    version: int
    """Policy version in the engine."""
    seconds: float
    """Wall time, that before a resumption included."""
    checkpoint: str | None
    """Name of the newest checkpoint."""
    restarts: int
    not_written: list[str]
    paused: bool
    draining: bool
    saving: bool
    exit: str
    """The end of the run, once it has ended: as in its summary, or the error."""
    generating: int
    verifying: int
    steps_waiting: int
    leases_out: int
    leases_allowed: int
    step_waited_s: float
    learner_waited_s: float
    admission_waited_s: float
    submitted: int
    scored: int
    failed: int
    oldest: list[dict[str, Any]]
    """The samples that have been in the loop for longest (``overlap.pipeline.flow.Pending``)."""


ANSWER_S = 5.0
"""Time for the loop to obey, s; a command that it has not begun by then is withdrawn."""
_DONE: dict[Command, str] = {
    "pause": "pausing: samples in flight are finished, and no further step is learned",
    "resume": "resumed",
    "drain": "draining: no further prompts are admitted; the run ends when all complete steps are learned",
    "save": "saving between two steps",
    "stop": "stopping: the policy is saved",
}
_WHEN_IT_RUNS: dict[Command, str] = {
    "pause": "it will pause once it has started, before it takes a step",
    "resume": "it will not pause once it has started",
    "drain": "it will end once it has started, without taking a step",
    "save": "it will save once it has started, before it takes a step",
    "stop": "it will stop",
}
_LAST = ("stopping", "finishing", "ending", "ended")
"""States after the last step."""


class RunControl:
    """Takes commands for a run, and knows what the run is doing."""

    def __init__(self) -> None:
        self.loop_control = Control()
        self.stopped = False
        """True when ``stop`` was called."""
        self._phase: Phase = "preparing"
        self._note = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._stop: asyncio.Event | None = None
        self._lock = threading.RLock()
        self._session_status: Callable[[], dict[str, Any]]
        self.expect("", 0)

    def pause(self) -> None:
        """Finish the samples in flight, and begin nothing, until ``resume``.

        Like ``resume``, ``drain``, ``save`` and ``status`` it raises OverlapError when the run is about to end, or does
        not answer in time.
        """
        self.request("pause")

    def resume(self) -> None:
        """Continue after a pause."""
        self.request("resume")

    def drain(self) -> None:
        """Admit no further prompts; the run ends when all complete steps are learned."""
        self.request("drain")

    def save(self) -> None:
        """Write a checkpoint between two steps; immediately, if the run is paused."""
        self.request("save")

    def stop(self) -> None:
        """End the run as Ctrl-C does: the policy is saved. Raises nothing; no effect on a run that has ended."""
        self.ask("stop")

    def status(self) -> RunStatus:
        """Return the run's activity (``state``), its position, and how full it is."""
        return cast(RunStatus, self.request("status"))

    @property
    def state(self) -> str:
        """The phase with its note ("restarting: 1 of 2"), or the state that a command set ("stopping", "paused")."""
        if self._phase in ("ending", "ended"):
            return self._phase
        if self.stopped:
            return "stopping"
        if self._phase != "running":
            return f"{self._phase}: {self._note}" if self._note else self._phase
        return self.loop_control.doing

    def ask(self, asked: object) -> Future[Answer]:
        """Obey a command, in the run's event loop if it has one. The future gets the answer."""
        answer: Future[Answer] = Future()

        def work() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self._answer(asked))
                except BaseException as error:  # raised where the answer is waited for
                    answer.set_exception(error)

        with self._lock:
            if self._loop is None or self._thread == threading.get_ident():
                work()
            else:
                self._loop.call_soon_threadsafe(work)
        return answer

    def request(self, asked: object) -> Answer:
        """Obey a command; returns the answer. Raises OverlapError for one that is refused, or not obeyed in time."""
        answer = self.ask(asked)
        wait([answer], ANSWER_S)
        if answer.cancel():
            why = f"was too busy to obey {asked!r} within {ANSWER_S:g} s and has dropped it: try again"
            raise OverlapError(f"the run {why}")
        return answer.result()

    def expect(self, run: str, steps: int, at: Resumed = BEGINNING) -> None:
        """Set the status until the session is up; the run calls this. ``at`` is the point at which the run begins."""
        state, checkpoint = at.state, at.folder.name if at.folder else None
        known = {"run": run, "step": state.step, "steps": steps, "version": state.version}
        known |= {"seconds": round(state.seconds, 1), "checkpoint": checkpoint, "restarts": 0, "not_written": []}
        with self._lock:
            self._session_status = lambda: known

    def enter(self, phase: Phase, note: str = "") -> None:
        """Set the activity from here on; the run calls this."""
        with self._lock:
            self._phase, self._note = phase, note

    def end(self, **more: object) -> None:
        """Note the run's end; the run calls this. Later statuses are the last one with ``more``; no reference to the
        run is kept.
        """
        with self._lock:
            last = self._session_status() | more
            self._session_status, self._phase = lambda: last, "ended"

    def raise_if_stopped(self) -> None:
        """Raise StoppedError if ``stop`` was called; the run calls this before it has anything to save."""
        if self.stopped:
            raise StoppedError("the run was stopped before it began")

    async def unless_stopped(self, work: Coroutine[Any, Any, T], why: str) -> T:
        """Do ``work``, which ``stop`` cancels; the session calls this. Raises StoppedError with ``why`` then."""
        if self.stopped:
            work.close()
            raise StoppedError(why)
        doing, _ = await race(work, self.wait_stopped())
        if doing.cancelled():
            raise StoppedError(why)
        result: T = doing.result()
        return result

    async def wait_stopped(self) -> None:
        """Wait until ``stop`` is called; the session calls this."""
        assert self._stop is not None
        await self._stop.wait()

    @asynccontextmanager
    async def attached(
        self, status: Callable[[], dict[str, Any]], on_save: OnSave, report_line: Callable[[str], None]
    ) -> AsyncIterator[None]:
        """Let the session's event loop obey commands inside the block; afterwards the run ends. ``status`` returns what
        the session adds to a status, ``on_save`` writes a checkpoint, ``report_line`` gets a line if a requested
        checkpoint was not written.
        """
        with self._lock:
            self._session_status, self.loop_control.on_save = status, on_save
            self._loop, self._thread, self._stop = asyncio.get_running_loop(), threading.get_ident(), asyncio.Event()
            if self.stopped:
                self._stop.set()
        try:
            yield
        finally:
            with self._lock:
                self._loop, self._phase, self.loop_control.on_save = None, "ending", None
            if self.loop_control.saves:
                report_line("the run ended before it wrote the checkpoint that was requested")

    def _answer(self, asked: object) -> Answer:
        if asked not in COMMANDS:
            raise OverlapError(f"{asked!r} is not a command: use {', '.join(COMMANDS)}")
        command, state, loop = asked, self.state, self.loop_control
        if command == "status":
            return {"state": state, **self._session_status(), **loop.status()}
        if command == "stop" and state in ("stopping", "ending", "ended"):
            return {"done": f"nothing to do: the run {_is(state)}"}
        if command != "stop" and state in _LAST:
            raise OverlapError(f"{command} comes too late: the run {_is(state)}")
        paused = loop.paused
        if command == "resume" and loop.draining and not paused:
            why = "the run is draining, and ends when all complete steps are learned"
            raise OverlapError(f"resume comes too late: {why}")
        up = self._phase == "running"
        needless = {"pause": up and paused, "resume": not paused, "drain": up and loop.draining and not paused}
        if needless.get(command):
            return {"done": f"nothing to do: the run {_is(state)}"}
        if command == "stop":
            self.stopped = True
            if self._stop is not None and self._loop is not None:
                self._stop.set()
        else:
            getattr(loop, command)()
        if not up:
            return {"done": f"the run {_is(state)}: {_WHEN_IT_RUNS[command]}"}
        lost = "; the requested checkpoint is not written" if command == "stop" and loop.saves else ""
        return {"done": _DONE[command] + lost}


def _is(state: str) -> str:
    return "has ended" if state == "ended" else f"is {state}"
