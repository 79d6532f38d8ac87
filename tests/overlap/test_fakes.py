"""The doubles behave as what they stand for, in what the loop can see of them."""

from __future__ import annotations

import asyncio

import pytest
from fake_parts import FakeGenerator, fake_prompts

from overlap.core import Request, Trajectory, WeightUpdate
from overlap.core.clock import now

pytestmark = pytest.mark.virtual
PROMPT = fake_prompts(1)[0]


async def landing_at(generator: FakeGenerator, after_s: float) -> Trajectory:
    """A sample of 10 s that is in flight when version 1 lands."""
    await generator.load(WeightUpdate(0, "fake", {}))
    sample = asyncio.create_task(generator.generate(Request(0, 3, PROMPT)))
    await asyncio.sleep(after_s)
    await generator.load(WeightUpdate(1, "fake", {}))
    return await sample


async def test_the_versions_of_a_sample_change_where_the_weights_landed() -> None:
    found = await landing_at(FakeGenerator(seconds=lambda _: 10.0), 5.0)
    length = len(found.token_ids)
    assert [(s.version, s.start, s.end) for s in found.spans] == [(0, 0, -(-length // 2)), (1, -(-length // 2), length)]


@pytest.mark.parametrize(
    ("landing", "ends", "versions"), [("keep", 12.0, [0, 1]), ("recompute", 14.0, [0, 1]), ("drain", 11.0, [0])]
)
async def test_a_load_holds_up_what_is_running_as_its_landing_says(
    landing: str, ends: float, versions: list[int]
) -> None:
    """Each load takes 1 s, the first of them before the sample begins."""
    kinds = {"seconds": lambda _: 10.0, "landing": landing, "load_s": 1.0, "recompute_s": 2.0}
    found = await landing_at(FakeGenerator(**kinds), 5.0)
    assert (found.finished_s, [span.version for span in found.spans]) == (ends, versions)


async def test_a_full_engine_serves_the_oldest_group_first() -> None:
    generator, order = FakeGenerator(seconds=lambda _: 1.0, slots=1), list[str]()
    await generator.load(WeightUpdate(0, "fake", {}))

    async def one(group: int) -> None:
        order.append((await generator.generate(Request(group, 0, PROMPT))).id)

    await asyncio.gather(*(one(group) for group in (7, 5, 2, 4)))
    assert (now(), order) == (4.0, ["g7s0", "g2s0", "g4s0", "g5s0"])
