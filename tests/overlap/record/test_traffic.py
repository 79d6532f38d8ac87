"""Samples on their way are counted, and generator and verifier behave as if nobody counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from overlap.core import Prompt, Request, Scored, Trajectory
from overlap.record import traffic as traffic_module
from overlap.record.traffic import Span, Traffic


class _Inner:
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def generate(self, request: Request) -> Trajectory:
        await self.gate.wait()
        return Trajectory(request, (7,) * 4, (-0.1,) * 4, "x", "stop", (), 0.0, 1.0)

    async def score(self, trajectory: Trajectory) -> Scored:
        raise RuntimeError("verifier failed")

    async def sleep(self) -> None: ...

    async def wake(self, part: str) -> None: ...

    def pids(self) -> tuple[int, ...]:
        return (1, 2)


async def _run(move_to: Callable[[float], None], seen: list[str]) -> list[Span]:
    """Two requests that overlap, a sleep and a wake while they wait, a failed verdict, a request open at the end."""
    inner: Any = _Inner()
    traffic = Traffic(seen.append)
    generator: Any = traffic.generator(inner)

    def ask() -> asyncio.Task[Trajectory]:
        return asyncio.create_task(generator.generate(Request(0, 0, Prompt("p", (1, 2)))))

    first = ask()
    await asyncio.sleep(0)
    for at, change in ((2, generator.sleep()), (3, generator.wake("weights")), (5, generator.wake("cache"))):
        move_to(at)
        await change
    second = ask()
    await asyncio.sleep(0)
    assert (traffic.generating, generator.pids()) == (2, (1, 2))
    move_to(6)
    inner.gate.set()
    await asyncio.gather(first, second)
    with pytest.raises(RuntimeError, match="verifier failed"):
        await traffic.verifier(inner).score(first.result())
    assert (traffic.generating, traffic.verifying) == (0, 0)
    inner.gate.clear()
    move_to(8)
    third = ask()
    await asyncio.sleep(0)
    move_to(9)
    spans = traffic.pop_engine_spans()
    move_to(10)
    inner.gate.set()
    await third
    return [*spans, *traffic.pop_engine_spans(), *traffic.pop_engine_spans()]


def test_an_engine_is_busy_while_it_has_requests_and_its_cache_is_awake(monkeypatch):
    at, seen = [1.0], []
    monkeypatch.setattr(traffic_module, "time", SimpleNamespace(monotonic=lambda: at[0]))
    spans = asyncio.run(asyncio.wait_for(_run(lambda moment: at.__setitem__(0, moment), seen), 20))
    assert spans == [(1, 2), (5, 6), (8, 9), (9, 10)]
    assert seen[:2] == ["1 generating, 0 verifying", "0 generating, 0 verifying"]
