"""The virtual clock: time passes when nothing else can."""

from __future__ import annotations

import asyncio
import time

import pytest

from overlap.clock import Deadlock, now, run_virtual


def test_an_hour_passes_at_once_and_in_order() -> None:
    async def scenario() -> list[tuple[str, float]]:
        seen = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, now()))

        await asyncio.gather(sleeper("late", 3600.0), sleeper("early", 0.5))
        return seen

    assert run_virtual(scenario()) == [("early", 0.5), ("late", 3600.0)]


def test_what_waits_for_nothing_is_a_deadlock_and_no_hang() -> None:
    async def scenario() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="no timer is set"):
        run_virtual(scenario())


async def test_on_an_ordinary_loop_the_clock_is_that_of_all_processes() -> None:
    assert time.monotonic() <= now() <= time.monotonic()
