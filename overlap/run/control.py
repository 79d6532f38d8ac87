"""A hand on a run, in every moment of its life: pause, resume, drain, save, status, stop.

    overlap ctl RUN pause  ──▶ RUN/ctl, see ``ctl`` ──▶ Steering ──▶ Control (the loop's)
    run = overlap.start(cfg); run.pause()  ──────────────┘

    preparing ──▶ starting ──▶ running ──▶ ending ──▶ ended
                                 ▲ │
                restarting: 1 of 2 ◀┘

What is asked before the run has started, or while it restarts, is kept until it runs. What can no longer be done is
refused. All methods of ``Steering`` may be called from any thread, but those that are the session's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar, get_args

from overlap.aio import race
from overlap.errors import OverlapError, StoppedError
from overlap.pipeline import Control, OnSave

T = TypeVar("T")
Command = Literal["pause", "resume", "drain", "save", "status", "stop"]
COMMANDS: tuple[Command, ...] = get_args(Command)
Phase = Literal["preparing", "starting", "restarting", "running", "ending", "ended"]
Answer = dict[str, Any]
"""``done``, what a command has brought about; or ``error``, why it is refused; or a status."""
ANSWER_S = 5.0
"""A loop has so long to obey; what it has not begun by then is taken back."""
_AT_ONCE = {
    "pause": "pausing: what is underway is finished, no further step is learned",
    "resume": "going on",
    "drain": "draining: complete steps are learned, then the run ends",
    "save": "saving between two steps",
    "stop": "stopping: what was learned is kept",
}
_WHEN_IT_RUNS = {
    "pause": "it pauses when it has come up, before it takes a step",
    "resume": "it does not pause when it has come up",
    "drain": "it ends when it has come up, and takes no step",
    "save": "it saves when it has come up, before it takes a step",
    "stop": "it stops",
}
_LAST = ("stopping", "finishing", "ending", "ended")
"""States in which no step comes any more."""


class Steering:
    """What is asked of a run, and what the run is doing."""

    def __init__(self) -> None:
        self.control = Control()
        self.stopped = False
        """An end was asked for."""
        self._phase: Phase = "preparing"
        self._note = ""
        self._about: Callable[[], dict[str, Any]] = dict
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._lock = threading.RLock()

    def pause(self) -> None:
        """Finish what is underway, and begin nothing, until ``resume``.

        As the others but ``stop`` it raises OverlapError when the run is about to end, or does not answer in time.
        """
        self._have("pause")

    def resume(self) -> None:
        """Go on after a pause."""
        self._have("resume")

    def drain(self) -> None:
        """Admit nothing more; the run ends when all complete steps are learned."""
        self._have("drain")

    def save(self) -> None:
        """Write a checkpoint between two steps, at once where the run is paused."""
        self._have("save")

    def stop(self) -> None:
        """End the run as Ctrl-C does: the policy is kept. Raises nothing; a run that has ended stays as it is."""
        with self._lock:
            if self._phase in ("ending", "ended"):
                return
            if self._loop is None:
                self._end()
            else:
                self._loop.call_soon_threadsafe(self._end)

    def status(self) -> dict[str, Any]:
        """What the run is doing (``state``), where it stands, and how full it is."""
        return self._have("status")

    @property
    def phase(self) -> Phase:
        """What the run is doing, whatever is asked of it."""
        return self._phase

    @property
    def state(self) -> str:
        """The phase, "restarting: 1 of 2" for one, or what is asked of a run that is in it."""
        if self._phase in ("ending", "ended"):
            return self._phase
        if self.stopped:
            return "stopping"
        if self._phase != "running":
            return f"{self._phase}: {self._note}" if self._note else self._phase
        return self.control.doing

    def ask(self, asked: object) -> Future[Answer]:
        """Have a command obeyed, in the run's loop if it has one."""
        answer: Future[Answer] = Future()

        def work() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self._answer(asked))
                except BaseException as error:  # raised where the answer is waited for
                    answer.set_exception(error)

        with self._lock:
            if self._loop is None or self._loop is _running_loop():
                work()
            else:
                self._loop.call_soon_threadsafe(work)
        return answer

    def enter(self, phase: Phase, note: str = "") -> None:
        """The run's: what it is doing from here on."""
        with self._lock:
            self._phase, self._note = phase, note

    def end(self, **more: object) -> None:
        """The run's: it is over. A status is as it was then, and ``more``; the run is let go of."""
        with self._lock:
            last = self._about() | more
            self._about, self._phase = lambda: last, "ended"

    def refuse_stopped(self) -> None:
        """The run's: raises StoppedError where there is nothing yet that could be kept, and an end was asked for."""
        if self.stopped:
            raise StoppedError("the run was stopped before it began")

    async def unless_stopped(self, work: Coroutine[Any, Any, T], why: str) -> T:
        """The session's: ``work``, which a ``stop`` cancels. Raises StoppedError, with ``why``, then."""
        if self.stopped:
            work.close()
            raise StoppedError(why)
        doing, _ = await race(work, self.wanted_end())
        if doing.cancelled():
            raise StoppedError(why)
        result: T = doing.result()
        return result

    async def wanted_end(self) -> None:
        """The session's: until ``stop``."""
        assert self._stop is not None
        await self._stop.wait()

    @asynccontextmanager
    async def attached(
        self, about: Callable[[], dict[str, Any]], on_save: OnSave, say: Callable[[str], None]
    ) -> AsyncIterator[None]:
        """The session's: inside, its loop obeys; behind it the run ends. ``about`` is what it adds to a status,
        ``on_save`` writes a checkpoint, ``say`` is told of one that was asked for in vain.
        """
        with self._lock:
            self._about, self.control.on_save = about, on_save
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            if self.stopped:
                self._stop.set()
        try:
            yield
        finally:
            with self._lock:
                self._loop, self._phase, self.control.on_save = None, "ending", None
            if self.control.saves:
                say("the run ended before it came to the save that was asked for")

    def _have(self, command: Command) -> Answer:
        asked = self.ask(command)
        wait([asked], ANSWER_S)
        if asked.cancel():
            raise OverlapError(busy(command))
        answer = asked.result()
        if "error" in answer:
            raise OverlapError(str(answer["error"]))
        return answer

    def _answer(self, asked: object) -> Answer:
        if asked not in COMMANDS:
            return {"error": f"{asked!r} is no command: use {', '.join(COMMANDS)}"}
        if asked == "status":
            return {"state": self.state, **self._about(), **self.control.status()}
        return self._obey(str(asked))

    def _obey(self, command: str) -> Answer:
        state, control = self.state, self.control
        if command == "stop" and state in ("stopping", "ending", "ended"):
            return {"done": f"nothing to do: the run {_is(state)}"}
        if command != "stop" and state in _LAST:
            return {"error": f"{command} comes too late: the run {_is(state)}"}
        paused = control.paused
        if command == "resume" and control.draining and not paused:
            return {"error": "resume comes too late: the run is draining, and ends when complete steps are learned"}
        up = self._phase == "running"
        needless = {"pause": up and paused, "resume": not paused, "drain": up and control.draining and not paused}
        if needless.get(command):
            return {"done": f"nothing to do: the run {_is(state)}"}
        if command == "stop":
            self._end()
        else:
            getattr(control, command)()
        if not up:
            return {"done": f"the run {_is(state)}: {_WHEN_IT_RUNS[command]}"}
        lost = "; the save that was asked for is not made" if command == "stop" and control.saves else ""
        return {"done": _AT_ONCE[command] + lost}

    def _end(self) -> None:
        self.stopped = True
        if self._stop is not None and self._loop is not None:
            self._stop.set()


def busy(command: object) -> str:
    """What a run says that does not come to it."""
    return f"the run did not come to {command!r} within {ANSWER_S:g} s, and will not do it: ask again"


def _is(state: str) -> str:
    return "has ended" if state == "ended" else f"is {state}"


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
