"""Which of several engines the turns of an episode go to, with doubles for engines."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from flocks import request, update, with_flock
from mortal import turns


def turn_of(group: int, sample: int, turn: int):
    return replace(request(group, sample), turn=turn)


@with_flock(2)
async def test_an_episode_leaves_an_engine_that_has_a_queue(flock):
    await flock.door.load(update(0))
    await flock.door.generate(turn_of(0, 0, 1))
    flock.engine(0).release.clear()
    queue = [asyncio.create_task(flock.door.generate(turn_of(0, sample, 1))) for sample in (1, 2, 3)]
    await turns()
    assert len(flock.sent[0]) == 4, "its group stays there, up to the slack"
    await flock.door.generate(turn_of(0, 0, 2))
    assert flock.sent[1] == ["g0s0t2"]
    await flock.door.generate(turn_of(0, 0, 3))
    assert flock.sent[1] == ["g0s0t2", "g0s0t3"], "its past is there now"
    flock.engine(0).release.set()
    await asyncio.gather(*queue)
    assert flock.door.moved == 1


@with_flock(2)
async def test_after_a_load_an_episode_goes_where_the_fewest_requests_are(flock):
    await flock.door.load(update(0))
    await flock.door.generate(turn_of(0, 0, 1))
    await flock.door.load(update(1))
    flock.engine(0).release.clear()
    other = asyncio.create_task(flock.door.generate(turn_of(1, 0, 1)))
    await turns()
    await flock.door.generate(turn_of(0, 0, 2))
    assert flock.sent == [["g0s0t1", "g1s0t1"], ["g0s0t2"]]
    flock.engine(0).release.set()
    await other
    assert flock.door.moved == 0
