"""An engine that shares GPUs: it sleeps and wakes in parts, and takes its weights in chunks."""

import asyncio
from dataclasses import replace

import pytest
from engine_stub import CFG, UPDATE, request, run, turns

from overlap.core import WeightUpdate
from overlap.errors import EngineError
from overlap.generate.client import EngineClient


@pytest.fixture
def generator(tmp_path, stub):
    return EngineClient(CFG, tmp_path, tmp_path)


def sharing(engine):
    engine.shares_gpus = True


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


def test_where_no_gpu_is_shared_nobody_sleeps(generator, stub):
    async def main():
        await generator.load(UPDATE)
        await generator.sleep()
        await generator.generate(request())
        await generator.wake("weights")
        await generator.wake("cache")
        await generator.close()
        return stub.engine.calls

    assert not {"sleep", "wake weights", "wake cache"} & set(run(main()))


def test_an_engine_that_shares_gpus_samples_when_weights_and_cache_are_back(generator, stub):
    stub.prepare = sharing

    async def main():
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
        await generator.close()
        return stub.engine.calls

    calls = run(main())
    chunks = ["begin", "chunk {'number': 0}", "chunk {'number': 1}", "version 3"]
    join = ["meet {'packed': True}"]
    end = ["wake cache", "resume", "sample g7s0"]
    first = ["sleep", "wake weights", "pause", *join, *chunks, *end]
    assert calls[1:-1] == [*first, *(call for call in first if call not in join)]


async def served(generator):
    """Whole weights and a cache, and a request that was answered by them."""
    await generator.load(in_chunks())
    await generator.wake("cache")
    await generator.generate(request())


def test_while_it_sleeps_and_until_it_has_weights_again_requests_wait(generator, stub):
    stub.prepare = sharing

    async def main():
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

    run(main(), generator)


def test_weights_of_which_only_a_part_came_are_not_served_by_a_cache_that_wakes(generator, stub):
    stub.prepare = sharing

    async def main():
        await served(generator)
        stub.engine.broken_loads = 1
        with pytest.raises(EngineError, match="no such file"):
            await generator.load(in_chunks())
        await generator.wake("cache")
        task = asyncio.create_task(generator.generate(request(1)))
        await turns()
        assert "sample g7s1" not in stub.engine.calls
        task.cancel()

    run(main(), generator)


def test_a_load_does_not_wait_for_requests_that_sleep_with_the_engine(tmp_path, stub):
    stub.prepare = sharing
    generator = EngineClient(replace(CFG, rollout=replace(CFG.rollout, in_flight="drain")), tmp_path, tmp_path)

    async def main():
        await served(generator)
        stub.engine.release.clear()
        asleep = asyncio.create_task(generator.generate(request(1)))
        await turns()
        await generator.sleep()
        await generator.wake("weights")
        await generator.load(in_chunks())
        await generator.wake("cache")
        stub.engine.release.set()
        await asleep

    run(main(), generator)


def test_after_a_load_that_failed_the_next_one_meets_and_begins_anew(generator, stub):
    passes = []

    def prepare(engine):
        engine.shares_gpus, engine.broken_loads = True, 1

    stub.prepare = prepare

    async def main():
        with pytest.raises(EngineError, match="version 3, chunk 1: RuntimeError: no such file"):
            await generator.load(in_chunks(passes=passes))
        assert passes == ["begun", "ended"]
        stub.engine.calls.clear()
        await generator.load(in_chunks(passes=passes))
        await generator.load(in_chunks(passes=passes))
        await generator.close()
        return stub.engine.calls[:-1]

    chunks = ["begin", "chunk {'number': 0}", "chunk {'number': 1}", "version 3"]
    assert run(main()) == ["pause", "abandon", "meet {'packed': True}", *chunks, "pause", *chunks]


def test_a_load_that_failed_is_forgotten_before_the_engine_sleeps_again(generator, stub):
    def prepare(engine):
        engine.shares_gpus, engine.broken_loads = True, 1

    stub.prepare = prepare

    async def main():
        await generator.sleep()
        await generator.wake("weights")
        with pytest.raises(EngineError, match="no such file"):
            await generator.load(in_chunks())
        stub.engine.calls.clear()
        await generator.sleep()
        await generator.wake("weights")
        await generator.load(in_chunks(0))
        await generator.close()
        return stub.engine.calls[:-1]

    again = ["sleep", "wake weights", "pause", "meet {'packed': True}", "begin", "version 3"]
    assert run(main()) == ["abandon", *again]


def test_a_learner_that_meets_elsewhere_is_met_there(generator, stub):
    async def main():
        for port in (1, 1, 2):
            await generator.load(WeightUpdate(3, "shm", {"init": {"port": port}, "update": {}}))
        await generator.close()
        return [call for call in stub.engine.calls if call.startswith("meet")]

    assert run(main()) == ["meet {'port': 1}", "meet {'port': 2}"]
