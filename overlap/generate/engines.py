"""The engines of a run behind one :class:`~overlap.core.Generator`: requests are routed, weights go to all, and an
engine that dies is followed by another one.

    request ──▶ its group's engine, or its episode's, or the one with the fewest requests ──▶ its trajectory
                    └── its engine dies: to one that has the version, once there is one ──▶┘
    update  ──▶ all engines at once ──▶ the gate opens for the engines that have it

An engine gets requests once it has the version that was loaded last, and none gets any before all that live have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from overlap.core import Generator, Part, Request, Spoken, Trajectory, WeightUpdate
from overlap.core.aio import unwrapped
from overlap.core.errors import EngineError, EngineLost
from overlap.generate.chunk_broadcast import broadcast_chunks
from overlap.generate.restart import RESTARTS, EngineChanges, EngineRouting, EngineSlot, RestartPolicy, idlest

Result = TypeVar("Result")


class Engines:
    """A :class:`~overlap.core.Generator` of one engine or several, each of them made by one of ``makes``.

    ``policy`` limits restarts; without one the first death is final. ``serving``: engines have weights of their own,
    without a trainer, and request none. ``sleeps``: they take turns with the learner on their devices.

    ``notify`` gets a line for each death, and one when generation goes on after it; ``watch`` the processes of each
    further engine (those of the first are in ``pids``); ``on_recovered`` the seconds from a death, which is noticed
    within one, to the next response, deaths in between included. It is called for a single engine only: with several
    generation does not stop. ``restarts`` and ``resent`` count engines, and calls that a dead engine left, since
    the beginning; ``moved`` counts episodes that left the engine with their past for one with less to do.

    Every method but the constructor belongs to one event loop. They raise what the engine raises for a fault, and
    EngineError with the cause when an engine has died for good, which is the end of all.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], Generator]],
        *,
        policy: RestartPolicy | None = RESTARTS,
        serving: bool = False,
        sleeps: bool = False,
        notify: Callable[[str], None] = lambda line: None,
        watch: Callable[[int], None] = lambda pid: None,
        on_recovered: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._changes = EngineChanges()
        self._slots = [
            EngineSlot(index, make, policy, self._changes, serving=serving, notify=notify, watch=watch)
            for index, make in enumerate(makes)
        ]
        self._sends, self._sleeps = (policy or RESTARTS).sends, sleeps
        self._notify, self._on_recovered = notify, on_recovered
        self._lives: list[asyncio.Task[None]] = []
        self._routing = EngineRouting()
        self._version: int | None = 0 if serving else None
        self._lock, self._loads = asyncio.Lock(), 0
        self.resent = 0

    @property
    def restarts(self) -> int:
        return sum(slot.restarts for slot in self._slots)

    @property
    def moved(self) -> int:
        return self._routing.moved

    async def start(self) -> None:
        """Start all engines; the first caller does it, the others wait."""
        self._begin()
        await self._changes.until(lambda: all(slot.up for slot in self._slots))

    async def generate(self, request: Request) -> Trajectory:
        """Sample one response, where the other samples of its group are; elsewhere when that engine dies."""

        async def sample(slot: EngineSlot) -> Trajectory:
            with self._routing.counted(slot, request):
                trajectory = await self._on(slot, lambda engine: engine.generate(request))
            self._note_response(slot)
            return trajectory

        return await self._send(f"request {request.id}", lambda: self._routing.choose(request, self._ready()), sample)

    async def parse(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """Read an answer by any engine that is up."""
        return await self._send(
            "parse",
            lambda: idlest([slot for slot in self._slots if slot.up]),
            lambda slot: self._on(slot, lambda engine: engine.parse(text, token_ids, tools)),
        )

    async def load(self, update: WeightUpdate) -> None:
        """Have every engine load the update that lacks its version; requests wait until all have it.

        An engine that dies over it gets the version when another is up in its place (``wants_weights``); where none is
        left this waits for the first that is. After a failure none gets a request until a load has succeeded.
        """
        self._begin()
        self._loads += 1
        try:
            async with self._lock:
                if update.version != self._version:
                    self._shut()
                    self._version = update.version
                for slot in self._slots:
                    slot.backend, slot.awake = update.backend, True
                self._changes.notify()
                while not await self._load(update):
                    await self._changes.until(lambda: any(slot.up for slot in self._slots))
        finally:
            self._loads -= 1
            self._changes.notify()

    async def _load(self, update: WeightUpdate) -> bool:
        """Load the engines that lack the version, except engines that die; False when none has it then."""
        lacking = [slot for slot in self._slots if slot.version != update.version]
        async with broadcast_chunks(update, len(lacking)) as shares:

            async def load(slot: EngineSlot) -> Generator:
                with shares[lacking.index(slot)] as own:
                    return await self._on(slot, lambda engine: _loaded(engine, own))

            loaded = await self._each(lacking, load)
        for slot, engine in loaded.items():
            if slot.up and slot.engine is engine:
                slot.version, slot.needs_weights = update.version, False
        return bool(self._ready())

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs [R x (T-1)] by each of the R engines that have the version, one after the other.

        Raises EngineLost when no engine is left that has the weights.
        """
        self._begin()
        await self._changes.until(lambda: self._ready() or any(slot.lost or slot.needs_weights for slot in self._slots))
        found = await self._each(self._ready(), lambda slot: self._on(slot, lambda engine: engine.logprobs(token_ids)))
        answers = [values for values in found.values() if not isinstance(values, EngineLost)]
        if not answers:
            causes = "".join(f"{error}; " for error in found.values())
            raise EngineLost(f"probe: {causes}no engine is left that has the weights, the next one has no weights yet")
        return [value for values in answers for value in values]

    async def sleep(self) -> None:
        """Have all engines sleep, where they take turns with the learner."""
        if self._sleeps:
            self._begin()
            self._shut()
            await self._each([slot for slot in self._slots if slot.awake], self._put_to_sleep)

    async def wake(self, part: Part) -> None:
        """Have all engines that sleep take memory back; one that died in its sleep is followed by another one now."""

        async def wake(slot: EngineSlot) -> None:
            if not slot.awake and not slot.up:
                slot.awake = True
                self._changes.notify()
                await self._put_to_sleep(slot)  # the new one has begun with all of its memory
            slot.awake = True
            await self._to(slot, f"waking the {part}", lambda engine: engine.wake(part))

        if self._sleeps:
            self._begin()
            await self._each(self._slots, wake)

    async def wants_weights(self) -> None:
        """Return when a new engine is up that no call is loading: the caller publishes and loads the newest version.

        Returns at once, again and again, until that is done. Raises EngineError at the end.
        """
        await self._changes.until(lambda: not self._loads and any(s.up and s.needs_weights for s in self._slots))

    async def wait_dead(self) -> None:
        """Raise the cause when an engine has died for good; return when the engines are closed."""
        await self._changes.wait_end()

    def pids(self) -> tuple[int, ...]:
        """Processes of all engines that are alive, also during their start."""
        return tuple(pid for slot in self._slots for pid in slot.engine.pids())

    async def close(self) -> None:
        """End every process of every engine; safe to call twice or before ``start``."""
        self._changes.end(EngineError("the engine was closed"), died=False)
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)
        closed = await asyncio.gather(*(slot.engine.close() for slot in self._slots), return_exceptions=True)
        for error in closed:
            if error is not None:
                raise error

    def _begin(self) -> None:
        """Start the engines, at the first call of any method that needs one."""
        self._changes.check()
        if not self._lives:
            self._lives = [asyncio.create_task(slot.live(), name=f"engine {slot.index}") for slot in self._slots]
            for life in self._lives:
                life.add_done_callback(self._on_end)

    def _on_end(self, life: asyncio.Task[None]) -> None:
        if not life.cancelled() and isinstance(error := life.exception(), Exception):
            self._changes.end(error, died=True)  # whatever it is, all waiting calls get it

    def _ready(self) -> list[EngineSlot]:
        """Engines that have the version; none while others are still loading it."""
        return [slot for slot in self._slots if slot.version is not None and slot.version == self._version]

    def _shut(self) -> None:
        self._routing.forget_episodes()
        for slot in self._slots:
            slot.version = None

    def _note_response(self, slot: EngineSlot) -> None:
        """Report the first response after a death, but not a response that the dead engine had ready."""
        if slot.died_s is None or not slot.up or slot.needs_weights:
            return
        seconds, slot.died_s = asyncio.get_running_loop().time() - slot.died_s, None
        if len(self._slots) == 1:
            self._notify(f"generation goes on, {seconds:.1f} s after the death of the engine")
            self._on_recovered(seconds)
        else:
            self._notify(f"an engine that had died serves again, after {seconds:.1f} s; the others went on")

    async def _on(self, slot: EngineSlot, call: Callable[[Generator], Awaitable[Result]]) -> Result:
        """Call the engine of a slot, once the first one there is up. Raises EngineLost when it has died, or does."""
        await self._changes.until(lambda: slot.up or slot.lost)
        if slot.lost:
            raise EngineLost("the engine has died")
        engine = slot.engine
        try:
            return await call(engine)
        except EngineError as error:
            if not await slot.is_dead(engine):
                raise
            raise EngineLost(str(error)) from error

    async def _send(
        self,
        what: str,
        choose: Callable[[], EngineSlot | None],
        call: Callable[[EngineSlot], Awaitable[Result]],
    ) -> Result:
        """Call a slot once there is one to choose, and again when its engine dies over it, within the limits."""
        self._begin()
        for sent in range(self._sends):
            slot = await self._changes.until(choose)
            self.resent += sent > 0
            try:
                return await call(slot)
            except EngineLost as error:
                cause = error
        raise EngineError(f"{what}: {self._sends} engines died with it, the last one so: {cause}") from cause

    async def _to(self, slot: EngineSlot, what: str, call: Callable[[Generator], Awaitable[None]]) -> None:
        """Call the engine of one slot, and the next one there when it dies."""
        await self._send(what, lambda: slot if slot.up else None, lambda slot: self._on(slot, call))

    async def _put_to_sleep(self, slot: EngineSlot) -> None:
        await self._to(slot, "sleep", lambda engine: engine.sleep())
        slot.awake = False

    async def _each(
        self, slots: Sequence[EngineSlot], call: Callable[[EngineSlot], Awaitable[Result]]
    ) -> dict[EngineSlot, Result | EngineLost]:
        """Call these slots at once: the result of each, or the error of one whose engine died over it.

        The first other error, also the end of an engine for good, cancels the other calls and is raised.
        """

        async def one(slot: EngineSlot) -> Result | EngineLost:
            try:
                return await call(slot)
            except EngineLost as error:
                return error

        with unwrapped():
            async with asyncio.TaskGroup() as tasks:
                end = tasks.create_task(self.wait_dead())
                results = await asyncio.gather(*(tasks.create_task(one(slot)) for slot in slots))
                end.cancel()
        return dict(zip(slots, results, strict=True))


async def _loaded(engine: Generator, update: WeightUpdate) -> Generator:
    await engine.load(update)
    return engine
