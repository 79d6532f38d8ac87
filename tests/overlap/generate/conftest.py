"""The engine's double, in its place."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from engine_stub import CFG, StubEngine

from overlap.generate.client import EngineClient
from overlap.generate.service import EngineSite


@pytest.fixture
def stub(monkeypatch):
    """Holds the engine once a generator has opened it; ``prepare`` is called with it first."""
    opened = SimpleNamespace(engine=None, seat=None, count=0, prepare=lambda engine: None)

    async def start(site, life, title, module, environment, seat):
        opened.count += 1
        opened.engine, opened.seat = StubEngine(life), seat
        opened.prepare(opened.engine)
        return opened.engine

    monkeypatch.setattr(EngineSite, "start", start)
    yield opened
    if opened.engine is not None:
        opened.engine.process.kill()


@pytest.fixture
def generator(tmp_path, stub):
    return EngineClient(CFG, tmp_path, tmp_path)


@pytest.fixture
def draining(tmp_path, stub):
    return EngineClient(replace(CFG, rollout=replace(CFG.rollout, in_flight="drain")), tmp_path, tmp_path)
