"""Foreign coroutines: how they may end, and that none of them keeps whoever waits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from virtual_clock import run_virtual

from overlap.core.clock import now
from overlap.server.bounded import CANCEL_S, CANCELS, IgnoredCancel, OutOfTime, within


def played(work: Callable[[], Any], seconds: float = 5.0) -> tuple[Any, float, int]:
    """What comes of it, after how many s, and how often its end was told."""
    told: list[None] = []

    async def main() -> tuple[Any, float]:
        began = now()
        try:
            return await within(seconds, work(), lambda: told.append(None)), now() - began
        except Exception as error:
            return error, now() - began

    return *run_virtual(main()), len(told)


async def slow() -> str:
    await asyncio.sleep(100.0)
    return "late"


async def tidying() -> str:
    try:
        return await slow()
    finally:
        await asyncio.sleep(3.0)


async def swallowing() -> str:
    try:
        return await slow()
    except asyncio.CancelledError:
        return "late"


async def stubborn() -> str:
    while True:
        try:
            await slow()
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize(("work", "seconds"), [(slow, 5.0), (tidying, 8.0), (swallowing, 5.0)])
def test_what_does_not_is_cancelled_and_has_time_to_tidy_up(
    work: Callable[[], Coroutine[Any, Any, str]], seconds: float
) -> None:
    found, took, told = played(work)
    assert (type(found), took, told) == (OutOfTime, pytest.approx(seconds), 1)


@pytest.mark.promise("deadlines")
def test_what_goes_on_is_left_and_keeps_nobody() -> None:
    found, took, _ = played(stubborn)
    assert isinstance(found, IgnoredCancel)
    assert took == pytest.approx(5.0 + CANCELS * CANCEL_S)  # and the loop could be closed


def test_an_error_while_it_tidies_up_is_its_error() -> None:
    async def breaks() -> None:
        try:
            await slow()
        finally:
            raise KeyError("what was to be tidied up")

    assert isinstance(played(breaks)[0], KeyError)


def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    async def gives_up() -> None:
        task = asyncio.create_task(slow())
        task.cancel()
        await task

    found, _, told = played(gives_up)
    assert (type(found), told) == (RuntimeError, 0)
    assert "without a request" in str(found)


def test_the_wish_to_end_the_process_ends_nothing_but_itself() -> None:
    async def leaves() -> None:
        sys.exit(3)

    assert "SystemExit: 3" in str(played(leaves)[0])


@pytest.mark.parametrize(("work", "seconds"), [(slow, 0.0), (tidying, 3.0), (stubborn, CANCELS * CANCEL_S)])
def test_who_is_cancelled_cancels_it_and_is_not_kept(work: Callable[[], Any], seconds: float) -> None:
    async def main() -> float:
        waits = asyncio.create_task(within(1000.0, work(), lambda: None))
        await asyncio.sleep(1.0)
        began = now()
        waits.cancel()
        await asyncio.wait([waits])
        assert waits.cancelled()
        return now() - began

    assert run_virtual(main()) == pytest.approx(seconds)
