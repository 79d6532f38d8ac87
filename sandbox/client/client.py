"""See `sandbox.client`.

consumes  judge(problem, program)                     produces  a Judgement, or raises SandboxError
waits for a slot, then for a server's answer; woken by either; cancelling it cancels the job there
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final

from sandbox.client.machine import HttpReply, Machine, Unreachable
from sandbox.core.checks import encode_text
from sandbox.core.nouns import Judgement, Limits, Program
from sandbox.core.problem import Problem
from sandbox.core.program_run import ProgramRun
from sandbox.errors import AccessDenied, PoolClosed, SandboxError, from_wire
from sandbox.judging.single_run import as_problem, checked_names
from sandbox.pool.counts import Counts, PoolStats
from sandbox.pool.slots import Slots

TRIES: Final = 4
"""Tries of a job whose server reports a fault of the sandbox, after the server's own tries."""
_PAUSE_S: Final = 0.5
_PAUSE_MAX_S: Final = 10.0
_ELSEWHERE: Final = (429, 502, 503)
"""A full queue; or a server that ends, or a proxy without one: as if it could not be reached."""
_REACHED_S: Final = 30.0
"""A server that breaks off later than this was reached: after TRIES times the job may be why."""
_PROBLEMS: Final = 64
"""Problems whose JSON is kept."""


_Body = Callable[[Machine], bytes]


class Client:
    """Judges on other machines as `Pool` does here: the same methods, results and errors.

    `urls`: a server, or several, of which the least busy is asked. `token`: what they were started with. `at_once`:
    requests to each of them at a time; others wait, the lowest turn goes first. `patience_s`: seconds that no server
    may be reachable before SandboxError is raised; one whose queue is full is waited for. Raises ValueError for a URL
    that is none. Connections are made on the first await. Raises ImportError where aiohttp is missing.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str = "",
        stop_at_first_failure: bool = True,
        at_once: int = 256,
        patience_s: float = 120.0,
    ) -> None:
        if find_spec("aiohttp") is None:
            raise ImportError("sandbox.Client needs aiohttp: pip install 'overlap-rl[client]'")
        self.urls = (urls,) if isinstance(urls, str) else tuple(urls)
        if not self.urls:
            raise ValueError("urls=(): give at least one, like http://HOST:PORT")
        if at_once < 1:
            raise ValueError(f"at_once={at_once}: must be at least 1")
        self._token = token
        self.stop_at_first_failure = stop_at_first_failure
        self.patience_s = patience_s
        self._at_once = at_once * len(self.urls)
        self._counts = Counts()
        self._closed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._machines = [Machine(url, token) for url in self.urls]
        self._slots = Slots(self._at_once)
        self._packed: OrderedDict[int, tuple[Problem, bytes]] = OrderedDict()

    @property
    def workers(self) -> int:
        """Programs that all servers judge at the same time, as far as they have been asked."""
        return sum(machine.workers for machine in self._machines)

    async def __aenter__(self) -> Client:
        await self._attach()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def judge(
        self,
        problem: Problem | Mapping[str, Any],
        program: Program | str | Mapping[str, Any],
        *,
        turn: int = 0,
        stop_at_first_failure: bool | None = None,
    ) -> Judgement:
        """As `Pool.judge`; `node` is the server where there are several."""
        start = time.monotonic()
        problem = Problem.of(problem)
        program = problem.program(program)
        stop = self.stop_at_first_failure if stop_at_first_failure is None else stop_at_first_failure
        more = {"program": dataclasses.asdict(program), "turn": turn, "stop_at_first_failure": stop}
        rest = b"," + json.dumps(more).encode()[1:]

        def body(machine: Machine) -> bytes:
            name = machine.name_of(problem)
            return b'{"problem":' + (f'"{name}"'.encode() if name else self._pack(problem)) + rest

        data, node = await self._ask("/judge", body, turn, problem)
        done = Judgement.from_json(data)
        done = dataclasses.replace(done, queue_s=max(0.0, time.monotonic() - start - done.run_s), node=node)
        self._counts.record(done, shared=not done.run_s)
        return done

    async def run(
        self,
        program: Program | str | Mapping[str, Any],
        *,
        stdin: str = "",
        arguments: Sequence[str] = (),
        files: Mapping[str, str | bytes] = MappingProxyType({}),
        fetch_files: Sequence[str] = (),
        limits: Limits | None = None,
        turn: int = 0,
    ) -> ProgramRun:
        """As `Pool.run`."""
        start = time.monotonic()
        problem = as_problem(stdin, arguments, files, limits)
        body = {
            "program": dataclasses.asdict(problem.program(program)),
            "stdin": stdin,
            "arguments": list(arguments),
            "files": {name: b64encode(encode_text(text)).decode() for name, text in problem.cases[0].files},
            "fetch_files": checked_names(fetch_files),
            "limits": dataclasses.asdict(problem.limits),
            "turn": turn,
        }
        packed = json.dumps(body).encode()
        data, _ = await self._ask("/run", lambda _: packed, turn)
        done = ProgramRun.from_json(data)
        self._counts.runs += 1
        spent = time.monotonic() - start
        return dataclasses.replace(done, queue_s=max(0.0, spent - done.run_s - done.compile_s))

    def stats(self) -> PoolStats:
        """Counts of this client so far."""
        return self._counts.stats()

    def pids(self) -> tuple[int, ...]:
        """None: its processes are other machines'."""
        return ()

    async def close(self) -> None:
        """Close all connections, which cancels the jobs; waiting judge() calls raise PoolClosed. Safe to call twice."""
        self._closed.set()
        here = self._loop is asyncio.get_running_loop()
        for machine in self._machines:
            await (machine.close() if here else machine.close_connections())

    async def _attach(self) -> None:
        """Belong to the running loop; connections of an earlier one that is closed are forgotten."""
        if self._closed.is_set():
            raise PoolClosed("the client is closed")
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise SandboxError("the client is in use in another event loop; make one client per loop")
        self._loop, self._slots = loop, Slots(self._at_once)
        for machine in self._machines:
            await machine.close_connections()
        self._machines = [Machine(url, self._token) for url in self.urls]

    def _pack(self, problem: Problem) -> bytes:
        """The JSON of a problem; many programs are sent for one."""
        if (kept := self._packed.get(id(problem))) is None:
            kept = self._packed[id(problem)] = problem, json.dumps(problem.to_json()).encode()
        self._packed.move_to_end(id(problem))
        while len(self._packed) > _PROBLEMS:
            self._packed.popitem(last=False)
        return kept[1]

    async def _ask(
        self, path: str, body: _Body, turn: int, problem: Problem | None = None
    ) -> tuple[dict[str, Any], str]:
        """The answer's object, and the server's name where there are several. Raises SandboxError."""
        await self._attach()
        self._counts.waiting += 1
        try:
            async with self._slots.place(turn):
                self._counts.running += 1
                try:
                    return await self._answer(path, body, problem)
                finally:
                    self._counts.running -= 1
        finally:
            self._counts.waiting -= 1

    async def _answer(self, path: str, body: _Body, problem: Problem | None) -> tuple[dict[str, Any], str]:
        """Ask until there is an answer, an error that asking again does not help against, or no more patience."""
        faults, failures = 0, _Failures(self.patience_s)
        while True:
            if self._closed.is_set():
                raise PoolClosed("the client was closed while this job waited")
            machine = await self._choose()
            began = time.monotonic()
            try:
                reply = await machine.ask(path, body(machine))
                if reply.status in _ELSEWHERE and _told(reply)["type"] != "Busy":
                    raise Unreachable(f"{machine.name} answered {reply.status}")
            except Unreachable as error:
                machine.rest(failures.add(time.monotonic() - began, error, self._machines))
                continue
            if problem is not None and reply.status in (200, 409):
                machine.set_name(problem, reply.headers.get("problem-kept", ""))
            if reply.status == 200:
                return json.loads(reply.body), machine.name if len(self._machines) > 1 else ""
            failures.since_s = None
            if reply.status in _ELSEWHERE:
                machine.rest(_retry_after(reply))
            elif reply.status != 409:  # that: the problem was kept there, and is not any more
                faults += 1
                if reply.status != 504 or faults == TRIES:
                    raise _error(reply, machine)
                self._counts.failures += 1
                await self._sleep(_pause(faults))

    async def _choose(self) -> Machine:
        """Return the least busy server that may be asked now; waits while there is none."""
        while True:
            now = asyncio.get_running_loop().time()
            ready = [machine for machine in self._machines if machine.not_before <= now]
            if ready:
                return min(ready, key=lambda machine: (machine.in_hand / machine.workers, random.random()))
            await self._sleep(min(machine.not_before for machine in self._machines) - now)

    async def _sleep(self, seconds: float) -> None:
        """Raises PoolClosed when the client is closed meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
                raise PoolClosed("the client was closed while this job waited")


class _Failures:
    """Servers that could not be reached, or broke off, under one job."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.count = self.broken = 0
        self.since_s: float | None = None
        """Time of the first of the failures without an answer between them."""

    def add(self, spent_s: float, error: Unreachable, machines: Sequence[Machine]) -> float:
        """Count one, after `spent_s` seconds. Returns how long to leave the server alone. Raises SandboxError."""
        now = time.monotonic()
        self.count += 1
        if spent_s > _REACHED_S:
            self.since_s, self.broken = None, self.broken + 1
        self.since_s = self.since_s or now
        if now - self.since_s > self.patience_s:
            names = ", ".join(machine.name for machine in machines)
            what = f"{names} cannot be reached" if len(machines) == 1 else f"none of {names} could be reached"
            raise SandboxError(f"{what} for {self.patience_s:g} s; the last error: {error}") from error
        if self.broken == TRIES:
            raise SandboxError(f"{self.broken} servers broke off under this job; the last error: {error}") from error
        return _pause(self.count)


def _pause(times: int) -> float:
    """Seconds before the next try: twice as many each time, and not the same for all who wait."""
    return min(_PAUSE_MAX_S, _PAUSE_S * 2.0 ** min(times - 1, 10)) * random.uniform(0.5, 1.0)


def _retry_after(reply: HttpReply) -> float:
    said = reply.headers.get("retry-after", "")
    return (float(said) if said.isdigit() else 1.0) * random.uniform(0.5, 1.0)


def _told(reply: HttpReply) -> dict[str, str]:
    """The type and the message of an error that a server of ours tells; empty texts for another's answer."""
    with suppress(ValueError, KeyError, TypeError):
        found = json.loads(reply.body)["error"]
        return {"type": str(found["type"]), "message": str(found["message"])}
    return {"type": "", "message": ""}


def _error(reply: HttpReply, machine: Machine) -> SandboxError:
    """The error that a server tells, of the type that it would have here."""
    if reply.status == 401:
        way_out = "give token=; integrations read SANDBOX_TOKEN"
        return AccessDenied(f"{machine.name}: the token is missing or wrong: {way_out}")
    if (told := _told(reply))["type"]:
        return from_wire(told)
    return SandboxError(f"{machine.name} answered {reply.status}: {reply.body[:200]!r}; is it a `sandbox serve`?")
