"""How long generation stands still for a dead engine, on a clock that jumps."""

import asyncio

from mortal import Nest, begun, reload, turns, update

from overlap.errors import EngineError


def test_an_outage_lasts_from_the_first_death_to_the_next_response_and_is_told_once():
    nest = Nest(broken={1: EngineError("no memory")})

    async def main():
        tasks = await begun(nest, 3)
        nest.last.die()
        await nest.steady.wants_weights()
        await asyncio.sleep(100)
        await nest.steady.load(update(1))
        await asyncio.gather(*tasks)
        assert nest.outages == [1 + 20 + 2 + 20 + 100]
        await asyncio.gather(*nest.send(2))
        (task,) = nest.send()
        nest.last.release.clear()
        nest.last.die()
        await reload(nest, 2)
        await task

    nest.run(main())
    assert nest.outages == [143, 4 + 20]
    assert sum("generation goes on" in line for line in nest.told) == 2


def test_a_response_that_the_dead_engine_had_ready_ends_no_outage():
    nest = Nest()

    async def main():
        await nest.steady.load(update(0))
        dead, generate = nest.last, nest.last.generate

        async def late(request):
            trajectory = await generate(request)
            await asyncio.sleep(0.5)
            return trajectory

        dead.generate = late
        (task,) = nest.send()
        await turns()
        dead.die()
        await task
        assert (nest.last, nest.outages) == (dead, [])

    nest.run(main())
