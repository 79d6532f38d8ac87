"""A wrong argument of a public function is one ConfigError with its name, its value and the way out; nothing starts."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overlap
from overlap.core import Prompt

CFG = overlap.load_config(None, {"run.device": "cpu"})


class Letters(overlap.Task):
    """A task of one prompt."""

    def prompts(self, tokenizer: Any, split: str) -> list[Prompt]:
        return [Prompt("a", (1, 2))]

    def reward(self, prompt: Prompt, answer: str, judgement: Any) -> float:
        return 0.0


CONFIGS = [
    ("runs/first.yaml", "overlap.load_config('runs/first.yaml')"),
    (Path("first.yaml"), "overlap.load_config('first.yaml')"),
    ({"run.steps": 3}, "overlap.load_config({'run.steps': 3})"),
    (None, "overlap.load_config()"),
    (3, "overlap.load_config()"),
    (Letters(), "overlap.load_config()"),
]


@pytest.mark.parametrize(("cfg", "way_out"), CONFIGS)
@pytest.mark.parametrize("called", [overlap.train, overlap.start, overlap.evaluate, overlap.rollout])
def test_what_is_no_configuration_is_told_how_it_becomes_one(called: Any, cfg: Any, way_out: str) -> None:
    with pytest.raises(overlap.ConfigError, match=f"^cfg=.*: give a Config, as {re.escape(way_out)} returns it$"):
        called(cfg)


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: overlap.load_config(""), "source='': give the path"),
    (lambda: overlap.load_config(CFG), "source=Config.*…: give the path"),  # type: ignore[arg-type]
    (lambda: overlap.load_config(None, None), "overrides=None: give a list"),  # type: ignore[arg-type]
    (lambda: overlap.load_config(None, {"data.task": Letters}), "data.task=<class .*Letters'>: use a string"),
    (lambda: overlap.train(CFG, Letters), "data.task='Letters': is a class: give an object of it, Letters"),  # type: ignore[arg-type]
    (lambda: overlap.train(CFG, "m:T"), "data.task='str': has no prompts; derive it from overlap.Task"),  # type: ignore[arg-type]
    (lambda: overlap.train(CFG, resume="runs/first"), "resume='runs/first': use True"),  # type: ignore[arg-type]
    (lambda: overlap.reward_task(3, []), "='3': int is no function: name a function"),  # type: ignore[arg-type]
    (lambda: overlap.train(CFG, rollouts=3), "rollouts=3: give a path"),  # type: ignore[arg-type]
    (lambda: overlap.train(CFG, rollouts=Path("/none")), "'/none': /none/trajectories.jsonl is missing"),
    (lambda: overlap.start(CFG, console="log.txt"), "console='log.txt': give a stream"),  # type: ignore[arg-type]
    (lambda: overlap.start(CFG, resume=1), "resume=1: use True"),  # type: ignore[arg-type]
    (lambda: overlap.evaluate(CFG, split="test"), "split='test': use one of train, heldout"),  # type: ignore[arg-type]
    (lambda: overlap.evaluate(CFG, limit=True), "limit=True: use a whole number"),
    (lambda: overlap.rollout(CFG, limit=0), "limit=0: use a whole number"),
    (lambda: overlap.rollout(CFG, out=5), "out=5: give a path"),  # type: ignore[arg-type]
    (lambda: overlap.rollout(CFG, out="~nobody-at-all/x"), "out='~nobody-at-all/x': its directory cannot be written"),
    (lambda: overlap.export(CFG), "run=Config.*…: give a path"),  # type: ignore[arg-type]
    (lambda: overlap.export(None), "run=None: give a path"),  # type: ignore[arg-type]
    (lambda: overlap.export("runs/none", step="1"), "step='1': use a whole number"),  # type: ignore[arg-type]
    (lambda: overlap.export("runs/none", out=5), "out=5: give a path"),  # type: ignore[arg-type]
    (lambda: overlap.export("runs/none"), "'runs/none': .*checkpoints is missing"),
]


@pytest.mark.parametrize(("call", "told"), WRONG)
def test_a_wrong_argument_is_one_line_and_leaves_nothing_running(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(overlap.ConfigError, match=told) as raised:
        call()
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500
    assert not [thread.name for thread in threading.enumerate() if thread.name == "overlap-run"]


def test_a_run_that_is_waited_for_with_a_wrong_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlap.run.handle.run_training", lambda *_, **__: {"exit": "finished"})
    run = overlap.start(CFG)
    with pytest.raises(overlap.ConfigError, match="timeout='5': use a number of seconds"):
        run.wait("5")  # type: ignore[arg-type]
    assert run.wait(60)["exit"] == "finished"


def test_numbers_of_numpy_are_taken_as_those_of_python() -> None:
    cfg = overlap.load_config(
        None, {"run.steps": np.int64(3), "learn.lr": np.float32(0.5), "run.stall_s": np.int32(60)}
    )
    found = (cfg.run.steps, cfg.learn.lr, cfg.run.stall_s)
    assert found == (3, 0.5, 60.0)
    assert [type(value) for value in found] == [int, float, float]
