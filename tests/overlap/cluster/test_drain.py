"""A node that is about to go ends what it has, gets nothing more, and is let go."""

from __future__ import annotations

import asyncio

import pytest
from cluster_runs import PROBLEMS, Run, many, played, program, sources, takes
from fake_nodes import FakeNode

from overlap.clock import now


def test_a_drained_node_ends_its_jobs_gets_none_further_and_is_let_go() -> None:
    async def main() -> None:
        leaving, stays = (FakeNode(name, 2, lambda job: 10.0 + job.number % 7 / 3) for name in ("leaving", "stays"))
        async with (run := Run(leaving, stays)) as pool:
            judging = asyncio.create_task(many(pool, 40))
            await asyncio.sleep(15.0)
            leaving.drains = True
            await asyncio.sleep(2.5)
            held, had = pool._router.held("leaving"), len(leaving.judged)
            assert sources(await judging) == [str(i) for i in range(40)]
            assert len(leaving.judged) == had + held
            assert len(leaving.judged) + len(stays.judged) == 40  # none was begun anew elsewhere
            assert leaving.closed
            assert list(pool.nodes()) == ["stays"]
        said = [line for line in run.said if line.startswith("node leaving")]
        assert said[1:] == [
            f"node leaving drains: {held} jobs end there, and it gets no other",
            "node leaving is drained, and let go",
        ]

    played(main)


def test_an_idle_node_that_drains_is_let_go_at_once_and_jobs_wait_for_the_next_one() -> None:
    async def main() -> None:
        leaving = FakeNode("leaving", 2, takes(1.0))
        async with (run := Run(leaving)) as pool:
            leaving.drains = True
            await asyncio.sleep(5.0)
            assert leaving.closed
            waits = asyncio.create_task(pool.judge(PROBLEMS[0], program(0)))
            await asyncio.sleep(5.0)
            run.members.add(FakeNode("next", 2, takes(1.0)))
            assert sources([await waits]) == ["0"]
            assert not leaving.judged

    played(main)


def test_a_draining_node_that_dies_loses_its_jobs_to_others() -> None:
    async def main() -> None:
        leaving, stays = FakeNode("leaving", 2, takes(10.0)), FakeNode("stays", 2, takes(10.0))
        async with Run(leaving, stays) as pool:
            judging = asyncio.create_task(many(pool, 4))
            await asyncio.sleep(1.0)
            leaving.drains = True
            await asyncio.sleep(4.0)
            leaving.die()
            assert sources(await judging) == ["0", "1", "2", "3"]
            assert len(stays.judged) == 4

    played(main)


def test_a_draining_node_that_falls_silent_gets_nothing_when_it_speaks_again() -> None:
    async def main() -> None:
        leaving, stays = FakeNode("leaving", 2, takes(30.0)), FakeNode("stays", 2, takes(30.0))
        async with (run := Run(leaving, stays)) as pool:
            judging = asyncio.create_task(many(pool, 4))
            await asyncio.sleep(1.0)
            leaving.drains = True
            await asyncio.sleep(4.0)
            leaving.freeze()
            await asyncio.sleep(15.0)
            leaving.thaw()
            assert sources(await judging) == ["0", "1", "2", "3"]
            assert not leaving.judged
            assert run.said[-1] == "node leaving is drained, and let go"

    played(main)


def test_a_node_that_drains_before_it_was_ever_used_gets_nothing() -> None:
    async def main() -> None:
        leaving, stays = FakeNode("leaving", 64, takes(1.0)), FakeNode("stays", 1, takes(1.0))
        leaving.drains = True
        async with Run(stays, leaving) as pool:
            await many(pool, 5)
            assert not leaving.judged
            assert now() == pytest.approx(5.0, abs=1.0)

    played(main)
