"""A verifier whose pool is many machines says what they do."""

from __future__ import annotations

import asyncio

import pytest
from verifying import Judged, StandIn, config, says, trajectory

from overlap.verify import ClusterFigures, SandboxVerifier
from sandbox.core import Verdict


class OverNodes(StandIn):
    """A pool over nodes that judge twelve programs at once."""

    concurrency = 12

    def take_nodes(self) -> ClusterFigures:
        return ClusterFigures(1.0, ())


@pytest.mark.parametrize(
    ("pool", "concurrency", "figures"), [(StandIn, 1, None), (OverNodes, 12, ClusterFigures(1.0, ()))]
)
def test_a_pool_over_nodes_says_how_much_it_judges_concurrency_and_what_its_nodes_did(
    pool, concurrency, figures
) -> None:
    async def run() -> None:
        verifier = SandboxVerifier(config(workers=1), Judged(), pool=lambda: pool(says(Verdict.AC)))
        assert (verifier.concurrency, verifier.take_nodes()) == (1, None)  # it has not begun
        await verifier.score(trajectory("x"))
        assert (verifier.concurrency, verifier.take_nodes()) == (concurrency, figures)
        await verifier.close()

    asyncio.run(run())
