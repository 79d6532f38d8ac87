"""Helpers for asyncio: a race has one winner and no survivors, and a thread is never abandoned."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from overlap.core.aio import race, shielded_thread, threaded, together, unwrapped
from overlap.core.clock import now


@pytest.mark.virtual
async def test_a_race_ends_with_the_first_and_the_losers_have_ended_then() -> None:
    ended: list[str] = []

    async def runner(name: str, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(name)
        return name

    theirs = asyncio.create_task(runner("theirs", 3.0))
    slow, fast, given = await race(runner("slow", 2.0), runner("fast", 1.0), theirs)
    assert (now(), ended, slow.cancelled(), fast.result()) == (1.0, ["fast", "slow"], True, "fast")
    assert given is theirs
    assert await theirs == "theirs"


@pytest.mark.virtual
async def test_an_error_stays_in_the_future_of_a_race_and_a_cancelled_race_leaves_nothing_running() -> None:
    async def fails() -> None:
        raise ValueError("lost")

    failed, _ = await race(fails(), asyncio.sleep(5))
    with pytest.raises(ValueError, match="lost"):
        failed.result()
    racing = asyncio.create_task(race(asyncio.sleep(5), asyncio.Event().wait()))
    await asyncio.sleep(1)
    racing.cancel()
    await asyncio.wait([racing])
    assert racing.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.virtual
async def test_of_several_together_all_results_come_in_order_or_the_first_error_after_the_others_have_ended() -> None:
    async def fails() -> None:
        raise ValueError("lost")

    assert await together(asyncio.sleep(2, "slow"), asyncio.sleep(1, "fast")) == ["slow", "fast"]
    with pytest.raises(ValueError, match="lost"):
        await together(asyncio.sleep(5), fails())
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_the_first_error_of_a_group_comes_alone_and_with_its_cause() -> None:
    cause, first = KeyError("cause"), ValueError("first")
    first.__cause__ = cause
    with pytest.raises(ValueError, match="first") as caught, unwrapped():
        raise BaseExceptionGroup("outer", [ExceptionGroup("inner", [first]), OSError("later")])
    assert caught.value is first
    assert caught.value.__cause__ is cause
    with pytest.raises(OSError, match="plain"), unwrapped():
        raise OSError("plain")


async def test_a_cancellation_is_raised_when_the_work_has_ended() -> None:
    entered, release, done = threading.Event(), threading.Event(), []

    def work() -> None:
        entered.set()
        assert release.wait(20)
        done.append(True)

    task = asyncio.create_task(shielded_thread(work))
    assert await asyncio.to_thread(entered.wait, 20)
    for _ in range(2):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [True]


@contextmanager
def noted(said: list[str], *, fails: bool = False) -> Iterator[str]:
    said.append(f"begun in {'the loop' if threading.current_thread() is threading.main_thread() else 'a thread'}")
    if fails:
        raise OSError("no place")
    try:
        yield "value"
    except BaseException as error:
        said.append(f"broken by {type(error).__name__}")
        raise
    else:
        said.append("ended")


async def test_a_context_in_threads_begins_ends_and_breaks_as_it_would_without() -> None:
    async def within(said: list[str], error: BaseException | None = None, **how: bool) -> None:
        async with threaded(noted(said, **how)) as value:
            assert value == "value"
            if error is not None:
                raise error

    said: list[str] = []
    await within(said)
    assert said == ["begun in a thread", "ended"]
    for error in (OSError("full"), asyncio.CancelledError()):
        said.clear()
        with pytest.raises(type(error)):
            await within(said, error)
        assert said == ["begun in a thread", f"broken by {type(error).__name__}"]
    said.clear()
    with pytest.raises(OSError, match="no place"):
        await within(said, fails=True)
    assert said == ["begun in a thread"]


async def test_a_context_whose_begin_is_cancelled_is_ended_all_the_same() -> None:
    said: list[str] = []
    entered, go_on = threading.Event(), threading.Event()

    @contextmanager
    def slow() -> Iterator[None]:
        entered.set()
        go_on.wait(10)
        with noted(said):
            yield

    async def within() -> None:
        async with threaded(slow()):
            raise AssertionError("must not be reached")

    task = asyncio.create_task(within())
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    asyncio.get_running_loop().call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said == ["begun in a thread", "broken by CancelledError"]
