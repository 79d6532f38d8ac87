"""What an engine on a node makes of the loss of its cluster, and one without a trainer of a death."""

import asyncio

import pytest
from mortal import Nest, turns, update

from overlap.clock import run_virtual as run
from overlap.errors import ClusterLost


def test_where_the_cluster_is_lost_no_other_engine_is_started():
    nest = Nest()

    async def main():
        await nest.steady.load(update(0))
        nest.last.die()
        nest.last._cause = ClusterLost("the cluster is lost")
        with pytest.raises(ClusterLost, match="the cluster is lost"):
            await nest.steady.wait_dead()
        await nest.steady.close()

    run(main())
    assert len(nest.engines) == 1


def test_one_that_serves_its_own_weights_answers_again_when_the_next_engine_is_up_and_asks_nobody_for_any():
    nest = Nest(serving=True)

    async def main():
        nest.opens()
        tasks = nest.send(2)
        await asyncio.sleep(30)
        nest.last.release.clear()
        tasks += nest.send(2)
        await turns()
        nest.opens()
        nest.last.die()
        await asyncio.gather(*tasks)
        assert not nest.steady._wanted.is_set()
        await nest.steady.close()

    run(main())
    assert (len(nest.engines), nest.steady.restarts, nest.steady.resent) == (2, 1, 2)
    assert nest.told[-1].startswith("generation goes on")
