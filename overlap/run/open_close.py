"""Starts components side by side and closes them in reverse order; the reaper always knows their processes.

made ──▶ start, together unless one waits for another ──▶ [work] ──▶ close, the last one first, each within CLOSE_S
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from types import MappingProxyType
from typing import Protocol

from overlap.core.aio import unwrapped
from overlap.core.errors import OverlapError
from overlap.process.reaper import Reaper

CLOSE_S = 25.0
"""A component that has not closed by then is left to the reaper, which kills its processes."""


class Component(Protocol):
    """Engine, verifier or learner. One that can die by itself also has ``wait_dead``."""

    async def start(self) -> None: ...

    def pids(self) -> tuple[int, ...]: ...

    async def close(self) -> None: ...


async def open_components(
    components: Mapping[str, Component],
    stack: AsyncExitStack,
    reaper: Reaper,
    report_line: Callable[[str], None],
    waits: Mapping[str, Callable[[], Awaitable[None]]] = MappingProxyType({}),
) -> None:
    """Start ``components``, by the names that messages call them; have ``stack`` close them and ``reaper`` watch them.
    ``waits``: what has to be done before the component of that name starts.

    They are closed, and their processes watched, also where the start fails or is cancelled; ``report_line`` gets a
    line for each that does not close in time. Until ``stack`` ends, garbage collection skips what their start made.

    Raises the first error of a component, and OverlapError where the machine lacks memory, disk space or processes.
    """
    for name, component in components.items():
        stack.push_async_callback(_close, name, component.close, report_line)
    try:
        with unwrapped():
            await _start(components, waits)
    finally:
        for component in components.values():
            for pid in component.pids():
                reaper.watch_pid(pid)
    stack.enter_context(gc_frozen())


COLLECT_AFTER = 10_000
"""New objects, by which the youngest of them are looked through; Python's own is 700. With 100,000 programs in flight a
judgement of the simulated cluster then costs the driver 10 to 15 % less."""


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Inside, garbage collection leaves out all objects that exist now: modules and tokenizers are some 370,000 of
    them, and on a slow machine a full collection stops the event loop for 215 to 360 ms. It looks at new ones less
    often than by default, for hardly any of them is in a cycle.
    """
    before, thresholds = gc.get_freeze_count(), gc.get_threshold()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not before:  # else an outer caller still relies on it
            gc.unfreeze()


async def _start(components: Mapping[str, Component], waits: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
    """Start all; the death of one while another still starts is raised at once."""
    left, watchers = len(components), list[asyncio.Task[None]]()

    async def start(name: str, component: Component) -> None:
        nonlocal left
        try:
            if name in waits:
                await waits[name]()
            await component.start()
        except OSError as error:  # out of processes, descriptors or space
            if isinstance(error, OverlapError):
                raise
            where = f"{error.filename}: " if error.filename else ""
            way_out = "free memory, disk space or processes, and start again"
            raise OverlapError(f"the {name} cannot be started ({where}{error.strerror or error}); {way_out}") from error
        left -= 1
        if left and hasattr(component, "wait_dead"):
            watchers.append(tasks.create_task(component.wait_dead()))
        for watcher in watchers if not left else ():
            watcher.cancel()

    async with asyncio.TaskGroup() as tasks:
        for name, component in components.items():
            tasks.create_task(start(name, component))


async def _close(name: str, close: Callable[[], Awaitable[None]], report_line: Callable[[str], None]) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await close()
    except Exception as error:  # whatever it is, it must neither hide an error of the work nor end it
        how = f"in order ({type(error).__name__}: {error})"
        how = f"within {CLOSE_S:g} s" if isinstance(error, TimeoutError) else how
        report_line(f"the {name} did not close {how}; its processes are killed")
