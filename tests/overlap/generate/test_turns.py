"""An engine that shares GPUs: it sleeps and wakes in parts, and takes its weights in chunks."""

import asyncio
from dataclasses import replace

import pytest
from engine_stub import request, turns

from overlap.core import WeightUpdate
from overlap.core.errors import EngineError


@pytest.fixture
def sharing(generator, draining):
    """Has the engines share GPUs."""
    for client in (generator, draining):
        client._spec = replace(client._spec, backend="ipc", sleeps=True)


def in_chunks(count=2, passes=None):
    """An update that comes in parts; ``passes`` is told of each pass and its end."""

    async def chunks():
        passes is not None and passes.append("begun")
        try:
            for number in range(count):
                yield {"number": number}
        finally:
            passes is not None and passes.append("ended")

    return WeightUpdate(3, "ipc", {"init": {"packed": True}}, chunks)


async def test_an_engine_that_shares_gpus_samples_when_weights_and_cache_are_back(generator, stub, sharing):
    for _ in range(2):
        await generator.sleep()
        await generator.sleep()
        task = asyncio.create_task(generator.generate(request()))
        await generator.wake("weights")
        await generator.load(in_chunks())
        await turns()
        assert not task.done()
        await generator.wake("cache")
        await task
    chunks = ["begin", "chunk {'number': 0}", "chunk {'number': 1}", "version 3"]
    join = ["meet {'packed': True}"]
    end = ["wake cache", "resume", "sample g7s0"]
    first = ["sleep", "wake weights", "pause", *join, *chunks, *end]
    assert stub.engine.calls == [*first, *(call for call in first if call not in join)]


async def served(generator):
    """Whole weights and a cache, and a request that was answered by them."""
    await generator.load(in_chunks())
    await generator.wake("cache")
    await generator.generate(request())


async def test_while_it_sleeps_and_until_it_has_weights_again_requests_wait(generator, stub, sharing):
    await served(generator)
    await generator.sleep()
    task = asyncio.create_task(generator.generate(request(1)))
    await turns()
    await generator.wake("weights")
    await generator.wake("cache")  # what it had is lost
    await turns()
    assert "sample g7s1" not in stub.engine.calls
    await generator.load(in_chunks())
    await generator.wake("cache")
    await task


async def running(generator, stub):
    """A request in the engine that does not end before ``stub.engine.release`` is set."""
    await served(generator)
    stub.engine.release.clear()
    task = asyncio.create_task(generator.generate(request(1)))
    await turns()
    return task


async def slept(generator):
    await generator.sleep()
    await generator.wake("weights")
    await generator.load(in_chunks())
    await generator.wake("cache")


async def test_requests_in_the_engine_sleep_with_it_and_no_load_waits_for_them(generator, stub, sharing):
    task = await running(generator, stub)
    for _ in range(2):
        await slept(generator)
    stub.engine.release.set()
    await task
    assert stub.engine.calls.count("sample g7s1") == 1
    assert "abort g7s1" not in stub.engine.calls


async def test_a_draining_engine_sleeps_when_what_it_has_has_ended(draining, stub, sharing):
    task = await running(draining, stub)
    asleep = asyncio.create_task(draining.sleep())
    late = asyncio.create_task(draining.generate(request(2)))
    await turns()
    assert "sleep" not in stub.engine.calls
    stub.engine.release.set()
    await task
    await asleep
    assert stub.engine.calls[-2:] == ["sample g7s1", "sleep"]
    late.cancel()


@pytest.mark.promise("sleeping")
async def test_what_an_engine_has_kept_never_goes_on_without_whole_weights(generator, stub, sharing):
    task = await running(generator, stub)
    await generator.sleep()
    await generator.wake("weights")
    stub.engine.broken_loads = 1
    with pytest.raises(EngineError, match="no such file"):
        await generator.load(in_chunks())
    with pytest.raises(EngineError, match="kept in an engine without whole weights: load a version"):
        await generator.wake("cache")
    assert "wake cache" not in stub.engine.calls
    await generator.load(in_chunks())
    await generator.wake("cache")
    stub.engine.release.set()
    await task


async def test_after_a_load_that_failed_the_next_one_meets_and_begins_anew(generator, stub, sharing):
    passes = []
    await generator.start()
    stub.engine.broken_loads = 1
    with pytest.raises(EngineError, match="version 3, chunk 1: RuntimeError: no such file"):
        await generator.load(in_chunks(passes=passes))
    assert passes == ["begun", "ended"]
    stub.engine.calls.clear()
    await generator.load(in_chunks(passes=passes))
    await generator.load(in_chunks(passes=passes))
    chunks = ["begin", "chunk {'number': 0}", "chunk {'number': 1}", "version 3"]
    assert stub.engine.calls == ["pause", "abandon", "meet {'packed': True}", *chunks, "pause", *chunks]


async def test_a_load_that_failed_is_forgotten_before_the_engine_sleeps_again(generator, stub, sharing):
    await generator.sleep()
    await generator.wake("weights")
    stub.engine.broken_loads = 1
    with pytest.raises(EngineError, match="no such file"):
        await generator.load(in_chunks())
    stub.engine.calls.clear()
    await generator.sleep()
    await generator.wake("weights")
    await generator.load(in_chunks(0))
    again = ["sleep", "wake weights", "pause", "meet {'packed': True}", "begin", "version 3"]
    assert stub.engine.calls == ["abandon", *again]


async def test_weights_of_which_only_a_part_came_are_not_served_by_a_cache_that_wakes(generator, stub, sharing):
    await served(generator)
    stub.engine.broken_loads = 1
    with pytest.raises(EngineError, match="no such file"):
        await generator.load(in_chunks())
    await generator.wake("cache")
    task = asyncio.create_task(generator.generate(request(1)))
    await turns()
    assert "sample g7s1" not in stub.engine.calls
    task.cancel()
