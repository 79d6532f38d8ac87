"""``rollout.in_flight=drain``: weights wait until the engine has nothing left."""

import asyncio

import pytest
from engine_stub import UPDATE, request, turns

from overlap.core.errors import EngineError
from overlap.generate import client as client_module


async def test_a_load_that_drains_waits_for_what_the_engine_has_and_new_requests_wait_for_the_load(draining, stub):
    await draining.load(UPDATE)
    stub.engine.release.clear()
    inside = asyncio.create_task(draining.generate(request(0)))
    await turns()
    load = asyncio.create_task(draining.load(UPDATE))
    await turns()
    late = asyncio.create_task(draining.generate(request(1)))
    await turns()
    assert stub.engine.calls[-1] == "sample g7s0"
    stub.engine.release.set()
    await asyncio.gather(inside, load, late)
    assert stub.engine.calls[-4:] == ["pause", "version 3", "resume", "sample g7s1"]


async def test_a_load_that_drains_lands_at_its_deadline_whatever_is_left(draining, stub, monkeypatch):
    monkeypatch.setattr(client_module, "_DRAIN_S", 0)
    await draining.load(UPDATE)
    stub.engine.release.clear()
    left = asyncio.create_task(draining.generate(request(0)))
    await turns()
    await draining.load(UPDATE)
    assert (stub.engine.calls[-1], left.done()) == ("resume", False)
    stub.engine.release.set()
    await left


async def test_after_a_failed_load_nothing_moves_in_the_engine_and_the_next_waits_for_nothing(draining, stub):
    await draining.load(UPDATE)
    stub.engine.broken_loads = 1
    with pytest.raises(EngineError):
        await draining.load(UPDATE)
    draining._empty.clear()  # a request is frozen in there
    await draining.load(UPDATE)
    assert stub.engine.calls[-1] == "resume"
