"""The loops of the pipeline over seeded fakes, on the virtual clock."""

from __future__ import annotations

import random
from typing import Any

from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from virtual_clock import run_virtual

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import Position, overlapped, serial
from overlap.pipeline.prompts import PromptStream

LOOPS = [serial, overlapped]


def config(**overrides: object) -> Config:
    """Of small steps; ``rollout__refill_groups=2`` overrides the field."""
    small = {"rollout__groups_per_step": 4, "rollout__samples_per_group": 4, "run__steps": 5}
    return load_config(None, [f"{name.replace('__', '.')}={value}" for name, value in (small | overrides).items()])


def jitter(rng: random.Random) -> float:
    """Seconds that mix up the order of the samples."""
    return rng.random() * 0.004


def components(**kinds: Any) -> Components:
    """Fakes, with ``kinds`` in the place of some."""
    return Components(**({"generator": FakeGenerator(), "verifier": FakeVerifier(), "learner": FakeLearner()} | kinds))


def run_loop(
    loop: Any, cfg: Config, made: Components, prompts: int | PromptStream = 7, at: Position | None = None, **asked: Any
) -> list[StepResult]:
    """The steps that ``loop`` takes. ``prompts``: their number, or their stream; ``asked``: further callbacks."""
    results, at = list[StepResult](), at or Position()

    async def on_step(result: StepResult) -> None:
        results.append(result)

    if isinstance(prompts, int):
        prompts = PromptStream(fake_prompts(prompts), cfg.run.seed, at.groups)
    run_virtual(loop(made, cfg, prompts, on_step, at, **asked))
    return results


def position_after(results: list[StepResult]) -> Position:
    """Where a run stands after these first steps, with nothing carried over."""
    last = results[-1]
    version = last.report.version if last.report else last.batch.version
    return Position(len(results), version, sum(len(r.batch.groups) + len(r.batch.dropped) for r in results))
