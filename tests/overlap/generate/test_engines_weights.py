"""Several engines behind one door: how weights come to all of them, and leave, with doubles for engines."""

from __future__ import annotations

import asyncio

import pytest
from flocks import update, with_flock

from overlap.core import WeightUpdate
from overlap.errors import EngineLost


@with_flock(2, sleeps=True)
async def test_all_sleep_and_wake_where_they_share_gpus_and_none_serves_before_it_has_weights_again(flock):
    await flock.door.load(update(1, "ipc"))
    await flock.door.sleep()
    assert flock.sent == [["sleep"], ["sleep"]]
    (task,) = flock.send((0,))
    await flock.door.wake("weights")
    await flock.door.wake("cache")
    await asyncio.sleep(10)
    assert flock.sent == [["sleep", "wake weights", "wake cache"]] * 2
    await flock.door.load(update(1, "ipc"))
    await task


@with_flock(2)
async def test_where_they_share_no_gpus_none_sleeps_and_all_go_on(flock):
    await flock.door.load(update(0))
    await flock.door.sleep()
    await flock.door.wake("weights")
    await asyncio.gather(*flock.send((0,), (1,)))
    assert flock.sent == [["g0s0"], ["g1s0"]]


def in_chunks(version, made, count=3):
    async def chunks():
        for number in range(count):
            made.append(number)
            yield {"number": number}

    return WeightUpdate(version, "ipc", {}, chunks)


@with_flock(3)
async def test_one_buffer_serves_all_engines_and_is_filled_when_each_of_them_is_there(flock):
    made = []
    await flock.door.start()
    slow = flock.engine(1)
    slow.release.clear()
    load = asyncio.create_task(flock.door.load(in_chunks(0, made)))
    await asyncio.sleep(10)
    assert made == []
    slow.release.set()
    await load
    assert made == [0, 1, 2]
    assert [life[0].chunks for life in flock.lives] == [[0, 1, 2]] * 3


@with_flock(2)
async def test_an_engine_that_dies_over_it_is_not_waited_for(flock):
    made = []
    await flock.door.start()
    flock.engine(1).release.clear()
    load = asyncio.create_task(flock.door.load(in_chunks(0, made)))
    await asyncio.sleep(10)
    assert made == []
    flock.engine(1).die()
    await load
    assert made == [0, 1, 2]
    assert flock.engine(0).version == 0
    again = in_chunks(0, made)
    await flock.door.wants_weights()
    await flock.door.load(again)
    assert made == [0, 1, 2] * 2
    assert flock.engine(1).chunks == [0, 1, 2]


@with_flock(2)
async def test_every_engine_is_probed_and_one_that_is_lost_is_left_out(flock):
    await flock.door.load(update(0))
    assert await flock.door.logprobs([1, 2]) == [0.0, 10.0]
    flock.engine(0).die()
    assert await flock.door.logprobs([1, 2]) == [10.0]
    flock.engine(1).die()
    for _ in range(2):
        with pytest.raises(EngineLost, match="no engine is left"):
            await flock.door.logprobs([1, 2])
