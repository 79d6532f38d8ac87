"""The driver's end of an engine: a process of its own behind :class:`~overlap.core.Generator`.

    engine = EngineClient(cfg, policy, scratch)       # starts nothing
    await engine.load(update)                         # starts the engine, opens the gate
    trajectory = await engine.generate(request)       # one sample; cancelling aborts it

The process runs ``host``, which serves the calls of ``engine.VllmEngine``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from time import monotonic
from typing import Any

from overlap.config.fields import Config
from overlap.core import Part, Request, Spoken, Trajectory, WeightUpdate
from overlap.core.errors import EngineError
from overlap.generate.service import EngineSample, EngineSite, EngineSpec, Sampling
from overlap.generate.start import READY_S, engine_environment
from overlap.placement.seats import Placement, place_here
from overlap.process.calls import Peer, RemoteFault
from overlap.process.child_processes import ChildProcesses, is_vague, log_hint

_CALL_S, _LOAD_S = 120.0, 600.0
_LOADING = ("connect", "abandon_weights", "begin_weights", "receive_weights", "commit_weights")
_DEADLINES_S = {"sample": None, **dict.fromkeys(_LOADING, _LOAD_S)}
"""Longest wait for the answer to a call of the service, s; ``_CALL_S`` for any other but ``open`` (``READY_S``)."""
_DRAIN_S = 300.0  # over nccl the learner already waits to send, for no longer than 600 s


class EngineClient:
    """One engine. Every method but the constructor belongs to the event loop that starts it.

    ``standalone``: the engine loads the policy's own weights as version 0 and opens at once (no trainer).
    ``log`` takes what the engine and its processes print; by default ``scratch/engine.log``. ``host`` is the module
    that the engine's process runs, at ``site``, by default this machine. The engine has seat ``engine`` of
    ``placement``; by default it is placed for itself, as every part of a run on this machine would be.

    All methods raise :class:`~overlap.core.errors.EngineError` when the engine fails, dies, or does not answer in time.
    """

    moved = 0
    """Always 0: there is one engine only."""

    def __init__(
        self,
        cfg: Config,
        policy: Path,
        scratch: Path,
        *,
        standalone: bool = False,
        log: Path | None = None,
        host: str = "overlap.generate.host",
        placement: Placement | None = None,
        engine: int = 0,
        site: EngineSite | None = None,
    ) -> None:
        placement = placement or place_here(cfg, learner=not standalone)
        self._cfg, self._host, self._site = cfg, host, site or EngineSite()
        self._seat = placement.engines[engine]
        name = "engine" if len(placement.engines) == 1 else f"engine-{engine}"
        self._log = log or scratch / f"{name}.log"
        self._spec = EngineSpec(
            cfg=cfg,
            policy=policy.absolute(),
            device=placement.kind,
            backend=placement.backend,
            seed=self._seat.seed,
            load_weights=standalone,
            sleeps=placement.sleeps,
            engines=len(placement.on(self._seat.node)),
        )
        self._life = ChildProcesses(name, EngineError, scratch, self._log)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Task[None] | None = None
        self._peer: Peer | None = None
        self._loading = asyncio.Lock()
        self._gate = asyncio.Event()
        self._inside, self._empty = 0, asyncio.Event()
        self._empty.set()
        self._probes = 0
        self._joined: Any = None
        self._frozen = self._broken = self._whole = False
        self._awake: set[Part] = {"weights", "cache"}

    async def start(self) -> None:
        """Start the engine; the first caller does it, the others wait."""
        self._life.check()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise EngineError("this engine belongs to another event loop: make one EngineClient for each loop")
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="open engine")
            self._opening.add_done_callback(self._on_open)
        with self._life.guard():
            await asyncio.shield(self._opening)  # a cancelled caller leaves it to the others

    async def generate(self, request: Request) -> Trajectory:
        """Sample one response. Waits while the gate is shut; cancelling aborts the request in the engine.

        The engine serves older groups (lower numbers) first.
        """
        await self.start()
        async with self._admitted():
            started, prompt = monotonic(), request.prompt.token_ids
            what, sampling = f"request {request.id}", self._sampling(request)
            sample: EngineSample = await self._ask(what, "sample", prompt, request.id, sampling)
        made = {field.name: getattr(sample, field.name) for field in fields(sample)}
        return Trajectory(request=request, started_s=started, finished_s=monotonic(), **made)

    async def parse(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """Read an answer by the engine's parsers."""
        await self.start()
        spoken: Spoken = await self._ask("parse", "parse", text, tuple(token_ids), tools)
        return spoken

    async def load(self, update: WeightUpdate) -> None:
        """Pause, load a version in full, resume and open the gate.

        Requests in the engine go on under the new weights (their spans say from where), with what ``rollout.in_flight``
        says of their KV cache. With ``drain`` they end before the load; requests that have not after five minutes go on
        as with ``recompute``. After a failure nothing is sampled, neither new nor frozen, until a load has succeeded:
        the weights may be half old and half new. An engine that shares GPUs resumes with ``wake("cache")``.
        """
        await self.start()
        if update.backend != self._spec.backend:
            raise EngineError(f"a {update.backend} update for an engine that was opened for {self._spec.backend}")
        async with self._loading:
            await self._shut()
            await self._ask("pause", "pause")
            await self._abandon()
            self._broken, self._whole = True, False
            if (meeting := update.info.get("init")) is not None and meeting != self._joined:
                own = {"rank_offset": self._seat.first_rank} if "rank_offset" in meeting else {}  # among all engines
                await self._ask("joining the weight transfer", "connect", dict(meeting) | own)
                self._joined = meeting
            await self._receive(update)
            self._broken, self._whole = False, True
            if not self._spec.sleeps:
                await self._go_on()

    async def _shut(self) -> None:
        """Admit no request; with ``drain`` wait until the requests in the engine have ended, unless it is frozen."""
        self._gate.clear()
        if self._cfg.rollout.in_flight == "drain" and not self._frozen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    await self._empty.wait()
        self._frozen = True

    async def _abandon(self) -> None:
        """Have the engine forget a load that failed, if one has."""
        if self._broken:
            await self._ask("forgetting a load that failed", "abandon_weights")
            self._broken, self._joined = False, None

    async def _receive(self, update: WeightUpdate) -> None:
        """The weights in one part, or in chunks of which each is loaded before the next is made."""
        what, number = f"version {update.version}", 0
        await self._ask(what, "begin_weights")
        if update.chunks is None:
            info = dict(update.info.get("update", update.info))
            async with self._site.brought(self._life, info, update.version) as found:
                await self._ask(what, "receive_weights", found)
        else:
            async with contextlib.aclosing(update.chunks()) as chunks:
                async for chunk in chunks:
                    number += 1
                    await self._ask(f"{what}, chunk {number}", "receive_weights", chunk)
        await self._ask(what, "commit_weights", update.version)

    async def _go_on(self) -> None:
        await self._ask("resume", "resume")
        self._frozen = False
        self._gate.set()

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs [T-1] of tokens 1..T-1 given their past, at the sampling temperature; never from a cache."""
        await self.start()
        if len(token_ids) < 2:
            return []
        self._probes += 1
        async with self._admitted():
            found: list[float] = await self._ask("probe", "prompt_logprobs", token_ids, f"probe{self._probes}")
            return found

    async def sleep(self) -> None:
        """Give memory to a learner on the same GPUs, and shut the gate until the next ``load``; else nothing. Requests
        in the engine are kept, without their KV cache, and go on under the weights of that load; with ``drain`` they
        end before, and requests that have not after five minutes are kept.
        """
        await self.start()
        if self._spec.sleeps and self._awake:
            await self._shut()
            self._whole = False  # weights are sent anew
            await self._abandon()  # it has layers without memory, which cannot sleep
            await self._ask("sleep", "sleep")
            self._awake.clear()

    async def wake(self, part: Part) -> None:
        """Take the memory back that ``sleep`` gave: first for weights to be loaded, then the rest, to go on with the
        weights that were loaded. Only where GPUs are shared; without whole weights the gate stays shut.
        """
        await self.start()
        if not self._spec.sleeps:
            return
        if part == "cache" and self._inside and not self._whole:  # vLLM would go on with what it has kept
            raise EngineError("requests are kept in an engine without whole weights: load a version before it wakes")
        if part not in self._awake:
            await self._ask(f"waking the {part}", "wake", part)
            self._awake.add(part)
        if part == "cache" and self._whole:
            await self._go_on()

    async def wants_weights(self) -> None:
        """Never: an engine that died does not come up again (see ``Engines``). Waits until it is cancelled."""
        await asyncio.Event().wait()

    async def wait_dead(self) -> None:
        """Raise EngineError with the cause when the engine dies; return when it is closed."""
        await self._life.wait_dead()

    def pids(self) -> tuple[int, ...]:
        """Processes of the engine that are alive, also during its start."""
        return self._life.pids()

    async def close(self) -> None:
        """End every process of the engine within some seconds; safe to call twice or before ``start``."""
        try:
            await self._life.close()
        finally:
            if self._opening is not None:
                await asyncio.wait([self._opening])  # the end of its life has woken it
            if self._peer is not None:
                await self._peer.close()

    async def _open(self) -> None:
        """Start the host and have it open the engine."""
        title, device = f"the {self._life.name} process", self._spec.device
        self._peer = await self._site.start(self._life, title, self._host, engine_environment(device), self._seat)
        await self._ask("start", "open", self._spec)
        if self._spec.load_weights:
            self._gate.set()

    def _on_open(self, opening: asyncio.Task[None]) -> None:
        """An engine that did not start is not tried again."""
        if not opening.cancelled() and isinstance(error := opening.exception(), Exception):
            self._life.fail(error)

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Wait for the gate, then be counted among what the engine has."""
        with self._life.guard():
            while not self._gate.is_set():  # it may be shut again before the waiting calls go on
                await self._gate.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    def _sampling(self, request: Request) -> Sampling:
        model, rollout = self._cfg.model, self._cfg.rollout
        room = self._cfg.context_tokens - len(request.prompt.token_ids)
        if room < 1:
            raise EngineError(
                f"request {request.id}: a prompt of {len(request.prompt.token_ids)} tokens leaves no room in a context "
                f"of {self._cfg.context_tokens} (model.prompt_tokens + model.response_tokens)"
            )
        seed = hash((self._cfg.run.seed, *request.place, *([request.turn] if request.turn else ()))) & 0x7FFFFFFF
        temperature = rollout.temperature if request.temperature is None else request.temperature
        tokens = min(model.response_tokens, room, request.max_tokens or room)
        return Sampling(temperature, tokens, (*rollout.stop, *request.stop), request.group, seed, request.top_p)

    async def _ask(self, what: str, name: str, *args: Any) -> Any:
        """Call ``name`` of the engine's process; any failure becomes an EngineError that says ``what`` was asked.

        An engine that does not answer in time is as good as dead, and is ended.
        """
        self._life.check()
        assert self._peer is not None
        try:
            open_s = READY_S[self._spec.device] + 30
            async with asyncio.timeout(open_s if name == "open" else _DEADLINES_S.get(name, _CALL_S)):
                return await self._peer.call(name, *args)
        except (TimeoutError, RemoteFault) as fault:
            late = isinstance(fault, TimeoutError)
            said = "the engine did not answer in time" if late else str(fault)
            where = log_hint(self._log) if late or is_vague(said) else f"; see {self._log}"
            error = EngineError(f"{what}: {said}{where}")
            if late:
                self._life.fail(error)
            raise error from None
