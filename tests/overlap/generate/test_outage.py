"""How long generation stands still for a dead engine, on a clock that jumps."""

import asyncio

from flocks import update, with_flock

from overlap.core.errors import EngineError


@with_flock(broken={1: EngineError("no memory")})
async def test_an_outage_lasts_from_the_first_death_to_the_next_response_and_is_told_once(flock):
    tasks = await flock.begun(3)
    flock.last.die()
    await flock.door.wants_weights()
    await asyncio.sleep(100)
    await flock.door.load(update(1))
    await asyncio.gather(*tasks)
    assert flock.outages == [1 + 20 + 2 + 20 + 100]
    await asyncio.gather(*flock.send((3, 0), (3, 1)))
    (task,) = flock.send((3,))
    flock.last.release.clear()
    flock.last.die()
    await flock.reload(2)
    await task
    assert flock.outages == [143, 4 + 20]
    assert sum("generation goes on" in line for line in flock.told) == 2
