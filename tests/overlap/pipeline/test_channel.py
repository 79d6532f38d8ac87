"""Channels: counted, and ended by closing."""

from __future__ import annotations

import asyncio

import pytest

from overlap.clock import run_virtual
from overlap.pipeline.channel import Channel


def test_what_was_put_before_the_close_is_received_after_it() -> None:
    async def scenario() -> list[int]:
        channel = Channel[int]("numbers")
        for i in range(3):
            channel.put(i)
        channel.close()
        return [i async for i in channel]

    assert run_virtual(scenario()) == [0, 1, 2]


def test_after_the_close_nothing_can_be_put() -> None:
    async def scenario() -> None:
        channel = Channel[int]("numbers")
        channel.close()
        with pytest.raises(RuntimeError, match="'numbers' is closed"):
            channel.put(1)

    run_virtual(scenario())


def test_the_time_that_items_wait_is_counted() -> None:
    async def scenario() -> None:
        channel = Channel[int]("numbers")
        channel.put(0)
        await asyncio.sleep(2.0)
        channel.put(1)
        assert (channel.stats.waiting, channel.stats.full_s) == (2, 2.0)
        await asyncio.sleep(1.0)
        assert [await anext(channel), await anext(channel)] == [0, 1]
        await asyncio.sleep(5.0)
        assert (channel.stats.items, channel.stats.full_s, channel.stats.empty_s) == (2, 3.0, 0.0)

    run_virtual(scenario())


def test_the_time_that_the_receiver_waits_is_counted() -> None:
    async def scenario() -> None:
        channel = Channel[int]("numbers")
        asyncio.get_running_loop().call_later(4.0, channel.put, 5)
        assert await anext(channel) == 5
        assert (channel.stats.empty_s, channel.stats.full_s) == (4.0, 0.0)

    run_virtual(scenario())


def test_cancelling_a_receiver_loses_no_item() -> None:
    async def scenario() -> None:
        channel = Channel[int]("numbers")
        receiver = asyncio.create_task(anext(channel, None))
        await asyncio.sleep(0)
        receiver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiver
        channel.put(1)
        channel.close()
        assert [i async for i in channel] == [1]

    run_virtual(scenario())
