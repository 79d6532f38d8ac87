"""Doors are opened side by side and closed in reverse order, and the reaper knows their processes at every moment.

made ──▶ start, all at once but those that wait ──▶ [work] ──▶ close, the last one first, each within CLOSE_S
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Protocol

from overlap.aio import unwrapped
from overlap.errors import OverlapError
from overlap.process import Reaper

CLOSE_S = 25.0  # a door that has not closed by then is left to the reaper, which kills


class Door(Protocol):
    """Engine, verifier or learner. One that can die by itself also has ``wait_dead``."""

    async def start(self) -> None: ...

    def pids(self) -> tuple[int, ...]: ...

    async def close(self) -> None: ...


Waits = Mapping[str, Callable[[], Awaitable[None]]]
NOTHING: Waits = {}


async def open_doors(
    doors: Mapping[str, Door],
    stack: AsyncExitStack,
    reaper: Reaper,
    say: Callable[[str], None],
    waits: Waits = NOTHING,
) -> None:
    """Start ``doors`` (by the names that messages call them), have ``stack`` close them, and ``reaper`` watch them.
    ``waits``: what has to be done before a door of that name starts.

    They are closed, and their processes watched, also where the start fails or is cancelled; ``say`` is told of one
    that does not close, or not in time. Until then what their start made is set aside.

    Raises the first error of a door, and OverlapError where the machine has no room for one.
    """
    for name, door in doors.items():
        stack.push_async_callback(_close, name, door.close, say)
    try:
        with unwrapped():
            await _start(doors, waits)
    finally:
        for door in doors.values():
            for pid in door.pids():
                reaper.watch_pid(pid)
    stack.enter_context(start_set_aside())


@contextmanager
def start_set_aside() -> Iterator[None]:
    """Whatever there is now is not looked through for garbage inside: of modules and tokenizers that are some 370,000
    objects, and on a slow machine a full collection of them stops the event loop for 215 to 360 ms.
    """
    before = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not before:  # else somebody has set things aside who is still there
            gc.unfreeze()


async def _start(doors: Mapping[str, Door], waits: Waits) -> None:
    """One that dies while another still starts ends it at once."""
    left, watchers = len(doors), list[asyncio.Task[None]]()

    async def start(name: str, door: Door) -> None:
        nonlocal left
        with _telling(name):
            if name in waits:
                await waits[name]()
            await door.start()
        left -= 1
        if left and hasattr(door, "wait_dead"):
            watchers.append(tasks.create_task(door.wait_dead()))
        for watcher in watchers if not left else ():
            watcher.cancel()

    async with asyncio.TaskGroup() as tasks:
        for name, door in doors.items():
            tasks.create_task(start(name, door))


@contextmanager
def _telling(name: str) -> Iterator[None]:
    try:
        yield
    except OverlapError:
        raise
    except OSError as error:  # no process, descriptor or space is left
        where = f"{error.filename}: " if error.filename else ""
        way_out = "free memory, disk space or processes, and begin again"
        raise OverlapError(f"the {name} cannot be started ({where}{error.strerror or error}); {way_out}") from error


async def _close(name: str, close: Callable[[], Awaitable[None]], say: Callable[[str], None]) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await close()
    except TimeoutError:
        say(f"the {name} did not close within {CLOSE_S:g} s; its processes are killed")
    except Exception as error:  # whatever it is, it hides no error of the work, and costs no work that is done
        say(f"the {name} did not close in order ({type(error).__name__}: {error}); its processes are killed")
