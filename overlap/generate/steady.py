"""An engine that comes up again after its death: a Generator around a maker of Generators.

    serving ──death──▶ close it, back off ──▶ start another ──▶ weights are wanted ──load──▶ serving
       └── requests in flight wait, and are sent again ───────────────────────────────────────▶┘

Engines have deaths (killed, out of memory, vLLM's EngineDeadError) and faults (a request that they refuse, a load that
fails). Only a death is answered by another engine. After too many deaths all who wait get an error with the last cause.
One that dies in its sleep leaves its place to the learner: the next is started when it is to wake.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from overlap.core import Generator, Part, Request, Spoken, Trajectory, WeightUpdate
from overlap.errors import ClusterLost, EngineError, EngineLost, OverlapError

Result = TypeVar("Result")

_LONGEST_S = 60.0  # back-off
_SAYS_SO_S = 2.0  # the calls of an engine may fail a moment before its death is known


@dataclass(frozen=True, slots=True)
class Patience:
    """How much is borne. ``restarts`` in any ``window_s`` seconds; ``sends`` of one request, the first included.

    Before the n-th restart of a window ``back_off_s`` passes, doubled n - 1 times, but never more than a minute.
    ``weights_s`` is how long a new engine waits for weights.
    """

    restarts: int = 3
    window_s: float = 3600.0
    sends: int = 3
    back_off_s: float = 1.0
    weights_s: float = 1800.0


PATIENCE = Patience()


class SteadyGenerator:
    """A :class:`~overlap.core.Generator` that outlives its engines; each of them comes from ``make``.

    ``tell`` gets a line for each death, and one when generation goes on after it; ``watch`` the processes of each
    further engine (those of the first are told by ``pids``, as of any door); ``went_on`` the seconds from a death,
    which is noticed within one, to the next response, deaths in between included. ``restarts`` and ``resent`` count
    engines and requests since the beginning. Every method but the constructor belongs to one event loop; they raise
    what the engine raises for a fault, and EngineError with the cause when the patience is at its end. A first start
    that fails is final.

    One that is ``serving`` has engines with weights of their own, without a trainer: nobody is asked for any.

    One that is not ``alone`` has others beside it that can do its work: requests and loads wait for no further engine,
    and raise EngineLost where theirs has died. Generation did not stand still then, so ``went_on`` is not called. One
    that ``sleeps`` takes turns with the learner on its devices: it comes up again only when it is to wake.
    """

    def __init__(
        self,
        make: Callable[[], Generator],
        *,
        patience: Patience = PATIENCE,
        alone: bool = True,
        serving: bool = False,
        sleeps: bool = False,
        tell: Callable[[str], None] = lambda line: None,
        watch: Callable[[int], None] = lambda pid: None,
        went_on: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._make, self._patience, self._alone, self._sleeps = make, patience, alone, sleeps
        self._serves = serving
        self._tell, self._watch, self._went_on = tell, watch, went_on
        self._engine = make()
        self._life: asyncio.Task[None] | None = None
        self._up, self._ended = asyncio.Event(), asyncio.Event()
        self._cause: Exception | None = None
        self._died = False
        self._awake = asyncio.Event()
        self._awake.set()
        self._deaths: deque[float] = deque()
        self._backend, self._bare = "", False
        self._loads, self._wanted = 0, asyncio.Event()
        self.restarts = self.resent = 0
        self._silent_since: float | None = None

    async def start(self) -> None:
        """Bring the first engine up; the first caller does it, the others wait."""
        await self._serving()

    async def generate(self, request: Request) -> Trajectory:
        """Sample one response. One whose engine dies is sent to the next, once that has weights."""
        self._check_lost(f"request {request.id}", bare=True)
        trajectory = await self._steadily(f"request {request.id}", lambda engine: engine.generate(request), resend=True)
        if self._silent_since is not None and self._up.is_set() and not self._bare:  # else the dead one had it ready
            self._break_silence(self._silent_since)
        return trajectory

    async def load(self, update: WeightUpdate) -> None:
        """As the engine's ``load``; where that dies, the next one gets ``update``."""
        self._backend = update.backend
        self._awake.set()
        self._check_lost(f"version {update.version}")
        self._loads += 1
        self._look_for_weights()
        try:
            while not await self._load(update):  # each turn is a death, and these are counted
                if not self._alone:
                    raise EngineLost(f"version {update.version}: the engine died over it")
        finally:
            self._loads -= 1
            self._look_for_weights()

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """As the engine's. EngineLost when that has died: the answer would be of no weights, or of others."""
        if self._bare:
            raise EngineLost("probe: the engine has died, the next one has no weights yet")
        engine = await self._serving()
        try:
            return await engine.logprobs(token_ids)
        except EngineError as error:
            if not await self._is_dead(engine):
                raise
            raise EngineLost(f"probe: {error}") from error

    async def parse(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """As the engine's, of any that is up."""
        return await self._steadily("parse", lambda engine: engine.parse(text, token_ids, tools), resend=True)

    async def sleep(self) -> None:
        """As the engine's; nothing where engine and learner do not take turns."""
        if self._sleeps:
            self._check()
            if self._awake.is_set():  # else it sleeps, or has died in its sleep
                await self._steadily("sleep", lambda engine: engine.sleep())
                self._awake.clear()

    async def wake(self, part: Part) -> None:
        """As the engine's; nothing where engine and learner do not take turns."""
        if self._sleeps:
            if not self._awake.is_set() and not self._up.is_set():
                self._awake.set()
                await self._steadily("sleep", lambda engine: engine.sleep())  # the new one has begun with all of it
            self._awake.set()
            await self._steadily(f"waking the {part}", lambda engine: engine.wake(part))

    async def wants_weights(self) -> None:
        """Return when a new engine is up that nobody is loading: the caller publishes and loads the newest version.

        Returns at once, again and again, until that is done. Raises EngineError at the end.
        """
        await self._wanted.wait()
        self._check()

    async def wait_dead(self) -> None:
        """Raise EngineError with the last cause when too many engines have died; return when this is closed."""
        await self._ended.wait()
        if self._died:
            self._check()

    def pids(self) -> tuple[int, ...]:
        """Processes of the engine that are alive, also during its start."""
        return self._engine.pids()

    async def close(self) -> None:
        """End every process of the engine; safe to call twice or before ``start``."""
        self._end(EngineError("the engine was closed"), died=False)
        if self._life is not None:
            self._life.cancel()
            await asyncio.gather(self._life, return_exceptions=True)
        await self._engine.close()

    async def _serving(self) -> Generator:
        """The engine that is up."""
        self._check()
        if self._life is None:
            self._life = asyncio.create_task(self._live(), name="keep an engine")
        while not self._up.is_set():
            await self._up.wait()
        self._check()
        return self._engine

    def _check_lost(self, what: str, *, bare: bool = False) -> None:
        """EngineLost where others stand by and this one has died, or, ``bare``, has no weights since then."""
        self._check()
        died = self._silent_since is not None and not self._up.is_set()
        if not self._alone and (died or (bare and self._bare)):
            raise EngineLost(f"{what}: the engine has died, the next one has no weights yet")

    async def _steadily(
        self, what: str, call: Callable[[Generator], Awaitable[Result]], *, resend: bool = False
    ) -> Result:
        for sent in range(1, self._patience.sends + 1):
            engine = await self._serving()
            self.resent += resend and sent > 1
            try:
                return await call(engine)
            except EngineError as error:
                if not await self._is_dead(engine):
                    raise
                if resend and not self._alone:
                    await self._noticed(engine)
                    raise EngineLost(f"{what}: {error}") from error
                cause = error
        raise EngineError(f"{what}: {self._patience.sends} engines died with it, the last one so: {cause}") from cause

    async def _noticed(self, engine: Generator) -> None:
        """Its death is known, and will be in a moment here, too: who waits for the next one does not find this one."""
        while self._engine is engine and self._up.is_set() and not self._ended.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def _load(self, update: WeightUpdate) -> bool:
        """False when the engine died over it."""
        engine = await self._serving()
        try:
            await engine.load(update)
        except EngineError:
            if not await self._is_dead(engine):
                raise
            return False
        if engine is not self._engine or not self._up.is_set():
            return False
        self._bare = False
        return True

    @staticmethod
    async def _is_dead(engine: Generator) -> bool:
        death = asyncio.ensure_future(engine.wait_dead())
        try:
            await asyncio.wait([death], timeout=_SAYS_SO_S)
        finally:
            death.cancel()
            await asyncio.gather(death, return_exceptions=True)
        return not death.cancelled() and death.exception() is not None

    async def _live(self) -> None:
        try:
            await self._engine.start()
            cause = await self._serve()
            while cause is not None:
                await self._bury(cause)
                await self._awake.wait()
                cause = await self._begin()
        except Exception as error:  # whatever it is, all who wait get it
            self._end(error, died=True)

    async def _serve(self) -> EngineError | None:
        """Until the engine dies, and of what; None when it is closed."""
        self._up.set()
        self._look_for_weights()
        overdue = asyncio.get_running_loop().call_later(self._patience.weights_s, self._give_up)
        try:
            await self._engine.wait_dead()
        except EngineError as error:
            return error
        finally:
            overdue.cancel()
            self._up.clear()
        return None

    async def _bury(self, cause: EngineError) -> None:
        """Count a death, make room for the next engine, and wait a while. EngineError when it is one too many."""
        allowed, window, now = self._patience.restarts, self._patience.window_s, asyncio.get_running_loop().time()
        self._deaths.append(now)
        if self._silent_since is None:
            self._silent_since = now
        while self._deaths[0] <= now - window:
            self._deaths.popleft()
        count = len(self._deaths)
        if isinstance(cause, ClusterLost):
            raise cause
        if self._backend == "nccl":
            raise EngineError(f"{cause}; the learner's nccl group ended with it, resume from the last checkpoint")
        if count > allowed:
            raise EngineError(f"{count} deaths of the engine within {window:g} s, the last one: {cause}") from cause
        self._tell(f"{cause}; another engine is started, {count} of {allowed} within {window:g} s")
        self._bare = not self._serves
        self._look_for_weights()
        await self._engine.close()
        await asyncio.sleep(min(self._patience.back_off_s * 2 ** (count - 1), _LONGEST_S))

    async def _begin(self) -> EngineError | None:
        """Start another engine and serve with it; what it died of."""
        self._engine = self._make()
        try:
            await self._engine.start()
        except OverlapError as error:
            return error if isinstance(error, EngineError) else EngineError(str(error))
        finally:
            for pid in self._engine.pids():
                self._watch(pid)
        self.restarts += 1
        return await self._serve()

    def _break_silence(self, since: float) -> None:
        """The first response after a death."""
        seconds, self._silent_since = asyncio.get_running_loop().time() - since, None
        if self._alone:
            self._tell(f"generation goes on, {seconds:.1f} s after the death of the engine")
            self._went_on(seconds)
        else:
            self._tell(f"an engine that had died serves again, after {seconds:.1f} s; the others went on")

    def _look_for_weights(self) -> None:
        """Ask for weights when there is an engine without, and nobody is about to load it."""
        if self._bare and self._up.is_set() and not self._loads:
            self._wanted.set()
        elif self._cause is None:
            self._wanted.clear()

    def _give_up(self) -> None:
        if self._bare:
            self._end(EngineError(f"a new engine got no weights within {self._patience.weights_s:g} s"), died=True)

    def _check(self) -> None:
        if self._cause is not None:
            raise copy.copy(self._cause) from self._cause.__cause__

    def _end(self, cause: Exception, *, died: bool) -> None:
        if self._cause is None:
            self._cause, self._died = cause, died
            for event in (self._up, self._wanted, self._ended):
                event.set()
