"""Components are opened side by side and closed in reverse order, whatever happens between."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from overlap.errors import EngineError, OverlapError
from overlap.run import open_close as opening
from overlap.run.open_close import open_components


class Plain:
    """A door that cannot die; ``events`` is what was done to it and to the others."""

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


class Reaper:
    def __init__(self) -> None:
        self.watched: list[int] = []

    def watch_pid(self, pid: int) -> None:
        self.watched.append(pid)


class Scene:
    """Two components, what was done to them, what was said, and which processes are watched."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.said: list[str] = []
        self.verifier, self.engine = Plain("verifier", 1, self.events), Mortal("engine", 2, self.events)
        self.reaper: Any = Reaper()

    async def play(self) -> None:
        async with asyncio.timeout(30), AsyncExitStack() as stack:
            components: dict[str, opening.Component] = {"verifier": self.verifier, "engine": self.engine}
            await open_components(components, stack, self.reaper, self.said.append)
            self.events.append("work")


def scene(change: Callable[[Scene], object]) -> Scene:
    """Play a scene after ``change``, which may raise; returns it."""

    async def run() -> Scene:
        made = Scene()
        change(made)
        await made.play()
        return made

    return asyncio.run(run())


def test_doors_start_side_by_side_and_close_in_reverse_order() -> None:
    played = scene(lambda made: None)
    assert played.events == ["start verifier", "start engine", "work", "close engine", "close verifier"]
    assert played.reaper.watched == [1, 2]
    assert played.said == []


def test_what_the_start_made_is_not_looked_through_for_garbage_until_the_end() -> None:
    class Counts(Plain):
        async def close(self) -> None:
            self.at_close = gc.get_freeze_count()

    async def run() -> None:
        door, made = Counts("engine", 1, []), Scene()
        async with AsyncExitStack() as stack:
            await open_components({"engine": door}, stack, made.reaper, made.said.append)
            assert gc.get_freeze_count() > 1000
            async with AsyncExitStack() as another:  # a run beside it
                await open_components({}, another, made.reaper, made.said.append)
            assert gc.get_freeze_count() > 1000
        assert door.at_close == 0

    before = gc.get_freeze_count()
    gc.unfreeze()  # whatever another test, or pytest, has set aside
    try:
        asyncio.run(run())
    finally:
        if before:
            gc.freeze()


def test_a_door_starts_when_what_it_waits_for_is_done() -> None:
    async def run() -> Scene:
        made = Scene()

        async def asleep() -> None:
            await made.verifier.begun.wait()
            made.events.append("asleep")

        async with AsyncExitStack() as stack:
            components: dict[str, opening.Component] = {"learner": made.engine, "engine": made.verifier}
            await open_components(components, stack, made.reaper, made.said.append, {"learner": asleep})
        return made

    assert asyncio.run(run()).events[:3] == ["start verifier", "asleep", "start engine"]


def test_a_door_that_does_not_close_is_told_and_left_to_the_warden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "CLOSE_S", 0.01)
    played = scene(lambda made: made.engine.closed.clear())
    assert played.said == ["the engine did not close within 0.01 s; its processes are killed"]
    assert played.events[-2:] == ["close engine", "close verifier"]


def test_a_door_that_fails_to_close_is_told_and_hides_nothing() -> None:
    def change(made: Scene) -> None:
        async def close() -> None:
            raise OSError("no more descriptors")

        made.engine.close = close  # type: ignore[method-assign]

    played = scene(change)
    assert played.said == ["the engine did not close in order (OSError: no more descriptors); its processes are killed"]
    assert played.events[-1] == "close verifier"

    def dies_as_well(made: Scene) -> None:
        change(made)
        made.verifier.started.clear()
        asyncio.get_running_loop().call_soon(made.engine.death.set_exception, EngineError("killed"))

    with pytest.raises(EngineError, match="killed"):
        scene(dies_as_well)


def test_a_door_that_dies_while_another_still_starts_ends_the_start() -> None:
    seen: list[Scene] = []

    def change(made: Scene) -> None:
        seen.append(made)
        made.verifier.started.clear()  # it would start for ever
        asyncio.get_running_loop().call_soon(made.engine.death.set_exception, EngineError("killed"))

    with pytest.raises(EngineError, match="killed"):
        scene(change)
    assert seen[0].events == ["start verifier", "start engine", "close engine", "close verifier"]
    assert seen[0].reaper.watched == [1, 2]


def test_processes_are_watched_also_when_the_start_is_cancelled() -> None:
    async def run() -> Scene:
        made = Scene()
        made.engine.started.clear()
        playing = asyncio.create_task(made.play())
        await made.engine.begun.wait()
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        return made

    played = asyncio.run(run())
    assert played.reaper.watched == [1, 2]
    assert played.events[-2:] == ["close engine", "close verifier"]


def test_a_door_that_the_machine_does_not_let_start_is_one_line() -> None:
    def change(made: Scene) -> None:
        async def start() -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        made.engine.start = start  # type: ignore[method-assign]

    with pytest.raises(OverlapError, match=r"the engine cannot be started \(Resource temporarily unavailable\); free"):
        scene(change)
