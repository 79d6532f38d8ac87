"""Several engines behind one door: how weights come to all of them, and leave, with doubles for engines."""

from __future__ import annotations

import asyncio

import pytest
from flocks import update, with_flock
from mortal import turns

from overlap.core import WeightUpdate
from overlap.core.errors import EngineLost


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


def in_chunks(version, made, count=3):
    async def chunks():
        for number in range(count):
            made.append(number)
            yield {"number": number}

    return WeightUpdate(version, "ipc", {}, chunks)


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


@with_flock(2, sleeps=True)
async def test_what_slept_in_an_engine_that_died_is_begun_anew_once_and_what_slept_in_the_other_goes_on(flock):
    await flock.door.load(update(1, "ipc"))
    flock.hold()
    tasks = flock.send((0, 0), (1, 0), (0, 1), (1, 1), (0, 2))
    await turns()
    await flock.door.sleep()
    flock.engine(0).die()
    await turns()
    late = flock.send((2, 0))
    tasks[-1].cancel()  # while it waits for another engine
    await asyncio.sleep(600)
    assert flock.sent == [["g0s0", "g0s1", "g0s2", "sleep"], ["g1s0", "g1s1", "sleep"]]
    await flock.door.sleep()
    await flock.door.wake("weights")
    for index in range(2):
        flock.engine(index).release.set()
    await flock.door.load(update(2, "ipc"))
    await flock.door.wake("cache")
    done = await asyncio.gather(*tasks[:-1], *late)
    again = {t.request.id: t.spans[0].version for t in done if t.request.group != 1}
    assert again == {"g0s0": 2, "g0s1": 2, "g2s0": 2}
    sent = [id for ids in flock.sent for id in ids if id.startswith("g")]
    assert sorted(sent) == sorted(["g0s0", "g0s1", "g0s2", "g1s0", "g1s1", "g0s0", "g0s1", "g2s0"])
    assert flock.door.resent == 2
