"""The channel between the stages: the time that either side stands still is counted, and closing ends it."""

from __future__ import annotations

import asyncio

import pytest

from overlap.pipeline.channel import Channel


@pytest.mark.virtual
async def test_the_time_that_items_wait_or_the_receiver_does_is_counted_and_the_close_loses_nothing() -> None:
    channel = Channel[int]()
    asyncio.get_running_loop().call_later(4.0, channel.put, 0)
    await channel.ready()
    assert (channel.empty_s, channel.full_s) == (4.0, 0.0)
    await asyncio.sleep(2.0)
    channel.put(1)
    assert (channel.waiting, channel.full_s) == ((0, 1), 2.0)
    await asyncio.sleep(1.0)
    channel.close()
    assert not channel.ended
    assert [channel.take(), channel.take(), channel.take()] == [0, 1, None]
    await asyncio.sleep(5.0)
    await channel.ready()
    assert (channel.full_s, channel.empty_s, channel.ended) == (3.0, 4.0, True)
