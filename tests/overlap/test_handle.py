"""``overlap.start`` hands out a run that goes on; what ``train`` returns or raises comes when it is waited for."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import overlap
from overlap import handle
from overlap.config import load_config
from overlap.errors import ConfigError

CFG = load_config(None, [])


def test_a_run_is_waited_for_and_gives_its_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def train(cfg: Any, task: Any, **options: Any) -> dict[str, Any]:
        assert go.wait(60)
        return {"exit": "finished", "resume": options["resume"]}

    monkeypatch.setattr(handle, "train", train)
    with overlap.start(CFG, resume=True) as run:
        assert not run.done
        with pytest.raises(TimeoutError, match="goes on"):
            run.wait(0.001)
        go.set()
        assert run.wait(60) == {"exit": "finished", "resume": True}
        assert run.done


def test_what_train_raises_is_raised_to_the_one_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: Any, **__: Any) -> dict[str, Any]:
        raise ConfigError("run.dir", "x", "is taken")

    monkeypatch.setattr(handle, "train", train)
    with overlap.start(CFG) as run, pytest.raises(ConfigError, match="is taken"):
        run.wait(60)


def test_leaving_the_block_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(cfg: Any, task: Any, *, steering: handle.Steering, **_: Any) -> dict[str, Any]:
        while not steering.stopped:
            threading.Event().wait(0.001)
        return {"exit": "stopped"}

    monkeypatch.setattr(handle, "train", train)
    with overlap.start(CFG) as run:
        assert run.status()["state"] == "preparing"
    assert run.wait(0) == {"exit": "stopped"}
