"""Components are opened side by side and closed in reverse order, whatever happens between."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from overlap.core.errors import EngineError, OverlapError
from overlap.run import open_close as opening
from overlap.run.open_close import COLLECT_AFTER, open_components


class Plain:
    """A component that cannot die; ``events`` is what was done to it and to the others."""

    def __init__(self, name: str, pid: int, events: list[str]) -> None:
        self.name, self.pid, self.events = name, pid, events
        self.begun, self.started, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.started.set()
        self.closed.set()

    async def start(self) -> None:
        self.events.append(f"start {self.name}")
        self.begun.set()
        await self.started.wait()

    def pids(self) -> tuple[int, ...]:
        return (self.pid,)

    async def close(self) -> None:
        self.events.append(f"close {self.name}")
        await self.closed.wait()


class Mortal(Plain):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.death: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_dead(self) -> None:
        await self.death


class Scene:
    """Two components, what was done to them, what was said, and which processes are watched."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.said: list[str] = []
        self.verifier, self.engine = Plain("verifier", 1, self.events), Mortal("engine", 2, self.events)
        watched = list[int]()
        self.reaper: Any = SimpleNamespace(watched=watched, watch_pid=watched.append)

    async def play(self) -> None:
        async with asyncio.timeout(30), AsyncExitStack() as stack:
            components: dict[str, opening.Component] = {"verifier": self.verifier, "engine": self.engine}
            await open_components(components, stack, self.reaper, self.said.append)
            self.events.append("work")


async def scene(*changes: Callable[[Scene], object], error: str = "") -> Scene:
    """Play a scene after ``changes``; returns it. ``error``: what it has to raise."""
    made = Scene()
    for change in changes:
        change(made)
    with pytest.raises(OverlapError, match=error) if error else nullcontext():
        await made.play()
    return made


def dies_while_the_verifier_starts(made: Scene) -> None:
    made.verifier.started.clear()  # it would start for ever
    asyncio.get_running_loop().call_soon(made.engine.death.set_exception, EngineError("killed"))


async def test_components_start_side_by_side_and_close_in_reverse_order() -> None:
    played = await scene()
    assert played.events == ["start verifier", "start engine", "work", "close engine", "close verifier"]
    assert played.reaper.watched == [1, 2]
    assert played.said == []


async def test_what_the_start_made_is_not_looked_through_for_garbage_until_the_end() -> None:
    class Counts(Plain):
        async def close(self) -> None:
            self.at_close = gc.get_freeze_count()

    part, made, before = Counts("engine", 1, []), Scene(), gc.get_freeze_count()
    thresholds = gc.get_threshold()
    gc.unfreeze()  # whatever another test, or pytest, has set aside
    try:
        async with AsyncExitStack() as stack:
            await open_components({"engine": part}, stack, made.reaper, made.said.append)
            assert gc.get_freeze_count() > 1000
            assert gc.get_threshold() == (COLLECT_AFTER, *thresholds[1:])
            async with AsyncExitStack() as another:  # a run beside it
                await open_components({}, another, made.reaper, made.said.append)
            assert gc.get_freeze_count() > 1000
        assert part.at_close == 0
        assert gc.get_threshold() == thresholds
    finally:
        if before:
            gc.freeze()


async def test_a_component_starts_when_what_it_waits_for_is_done() -> None:
    made = Scene()

    async def asleep() -> None:
        await made.verifier.begun.wait()
        made.events.append("asleep")

    async with AsyncExitStack() as stack:
        components: dict[str, opening.Component] = {"learner": made.engine, "engine": made.verifier}
        await open_components(components, stack, made.reaper, made.said.append, {"learner": asleep})
    assert made.events[:3] == ["start verifier", "asleep", "start engine"]


@pytest.mark.promise("deadlines")
async def test_a_component_that_does_not_close_is_told_and_left_to_the_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CLOSE_S", 0.01)
    played = await scene(lambda made: made.engine.closed.clear())
    assert played.said == ["the engine did not close within 0.01 s; its processes are killed"]
    assert played.events[-2:] == ["close engine", "close verifier"]


async def test_a_component_that_dies_while_another_still_starts_ends_the_start() -> None:
    played = await scene(dies_while_the_verifier_starts, error="killed")
    assert played.events == ["start verifier", "start engine", "close engine", "close verifier"]
    assert played.reaper.watched == [1, 2]


async def test_processes_are_watched_also_when_the_start_is_cancelled() -> None:
    made = Scene()
    made.engine.started.clear()
    playing = asyncio.create_task(made.play())
    await made.engine.begun.wait()
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    assert made.reaper.watched == [1, 2]
    assert made.events[-2:] == ["close engine", "close verifier"]
