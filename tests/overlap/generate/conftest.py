"""The engine's double, in its place."""

from types import SimpleNamespace

import pytest
from engine_stub import StubEngine

from overlap.generate import client as client_module


@pytest.fixture
def stub(monkeypatch):
    """Holds the engine once a generator has opened it; ``prepare`` is called with it first."""
    opened = SimpleNamespace(engine=None, seat=None, count=0, prepare=lambda engine: None)

    async def open_host(life, module, seat, site):
        opened.count += 1
        opened.engine, opened.seat = StubEngine(life), seat
        opened.prepare(opened.engine)
        return opened.engine

    monkeypatch.setattr(client_module, "open_host", open_host)
    yield opened
    if opened.engine is not None:
        opened.engine.process.kill()
