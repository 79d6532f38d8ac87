"""One update in chunks for several readers."""

from __future__ import annotations

import asyncio

import pytest

from overlap.core import WeightUpdate
from overlap.core.errors import EngineError
from overlap.generate.chunk_broadcast import broadcast_chunks


def update(made, count=3, error=None):
    """``made`` is told of each chunk, and of the end."""

    async def chunks():
        try:
            for number in range(count):
                made.append(number)
                yield {"number": number}
            if error:
                raise error
        finally:
            made.append("end")

    return WeightUpdate(1, "ipc", {}, chunks)


async def read(share, seconds, loaded):
    with share as own:
        async for chunk in own.chunks():
            await asyncio.sleep(seconds)
            loaded.append(chunk["number"])


@pytest.mark.virtual
async def test_the_next_chunk_is_made_when_the_slowest_reader_has_loaded_the_last():
    made, loaded, seen = [], [[], []], []
    async with broadcast_chunks(update(made), 2) as shares:
        reads = [asyncio.create_task(read(share, 1 + 9 * i, loaded[i])) for i, share in enumerate(shares)]
        for _ in range(3):
            await asyncio.sleep(5)
            seen.append((list(made), [len(one) for one in loaded]))
            await asyncio.sleep(5)
        await asyncio.gather(*reads)
    assert seen == [([0], [1, 0]), ([0, 1], [2, 1]), ([0, 1, 2], [3, 2])]
    assert loaded == [[0, 1, 2], [0, 1, 2]]
    assert made[-1] == "end"


@pytest.mark.virtual
async def test_who_leaves_is_not_waited_for_and_who_never_reads_neither():
    made, loaded = [], []
    async with broadcast_chunks(update(made), 3) as shares:
        one = asyncio.create_task(read(shares[0], 1, loaded))
        other = asyncio.create_task(read(shares[1], 100, []))
        await asyncio.sleep(5)
        assert made == []  # the third may still begin
        with shares[2]:
            pass
        await asyncio.sleep(5)
        assert made == [0]
        other.cancel()
        await one
    assert loaded == [0, 1, 2]


@pytest.mark.virtual
async def test_an_error_of_the_source_is_raised_by_every_reader():
    async with broadcast_chunks(update([], error=EngineError("no room")), 2) as shares:
        ends = await asyncio.gather(*(read(share, 1, []) for share in shares), return_exceptions=True)
    assert [str(error) for error in ends] == ["no room", "no room"]


@pytest.mark.virtual
async def test_who_leaves_while_he_waits_for_the_others_holds_them_up_no_longer():
    loaded = []
    async with broadcast_chunks(update([]), 2) as shares:
        fast = asyncio.create_task(read(shares[0], 1, []))
        slow = asyncio.create_task(read(shares[1], 10, loaded))
        await asyncio.sleep(5)
        fast.cancel()
        await slow
    assert loaded == [0, 1, 2]


@pytest.mark.virtual
async def test_a_chunk_that_is_still_being_made_is_broken_off_and_nobody_needs_to_have_begun():
    made = []

    async def chunks():
        try:
            made.append("begun")
            await asyncio.sleep(1000)
            yield {}
        finally:
            made.append("end")

    async with broadcast_chunks(WeightUpdate(1, "ipc", {}, chunks), 1) as shares:
        reader = asyncio.create_task(read(shares[0], 1, []))
        await asyncio.sleep(5)
        reader.cancel()
    assert made == ["begun", "end"]
    assert asyncio.get_running_loop().time() < 1000
    async with broadcast_chunks(update(made), 2):
        pass
    assert made == ["begun", "end"]


@pytest.mark.virtual
async def test_the_weights_are_read_once():
    async with broadcast_chunks(update([]), 1) as shares:
        with shares[0] as own:
            async for _ in own.chunks():
                break
            again = own.chunks()
            with pytest.raises(EngineError, match="can be read once"):
                await anext(again)
