"""A run on the virtual clock that leaves what a real one leaves: config.yaml, metrics.jsonl and trace.json."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from overlap.clock import now, run_virtual
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.fakes import FakeLearner, FakeVerifier, fake_prompts
from overlap.json_types import to_json_types
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import overlapped
from overlap.pipeline.prompts import PromptStream
from overlap.record.metrics import step_row
from overlap.record.ownership import write_config
from overlap.record.timing import result_timing
from overlap.record.trace import Tracer
from overlap.replay.simulate import BusyGenerator

SMALL = ("rollout.groups_per_step=4", "rollout.samples_per_group=4", "run.steps=12", "run.stall_s=100000")
LOAD_S, LEARN_S = 2.0, 30.0


def long_tail(rng: random.Random) -> float:
    return min(120.0, 15.0 * rng.lognormvariate(0.0, 0.8))


def short(rng: random.Random) -> float:
    return 2.0 + 4.0 * rng.random()


class Engine(BusyGenerator):
    """Remembers when it had a sample and was awake. As with a real engine, a response begins when it is asked for."""

    def __init__(self, cfg: Config) -> None:
        super().__init__(
            seconds=long_tail,
            slots=cfg.rollout.at_once,
            landing=cfg.rollout.in_flight,
            load_s=LOAD_S,
            truncated=0.1,
        )

    async def generate(self, request: Any) -> Any:
        began = now()
        self.busy.enter(began)
        trajectory = await super().generate(request)
        self.busy.leave(trajectory.finished_s)
        return replace(trajectory, started_s=began)


class Learner(FakeLearner):
    """Knows how much of its device is free where the engine is on the same one."""

    async def free(self, moment: str) -> float | None:
        return 8.0 if self.shares else None


def config(*overrides: str, workers: int = 2) -> Config:
    cfg = load_config(None, [*SMALL, *overrides])
    object.__setattr__(cfg.verify, "workers", workers)
    return cfg


def timed(cfg: Config, *, turns: bool = False) -> tuple[list[StepResult], Engine, float]:
    """The steps of a run, its engine, and when it began; ``turns``: engine and learner take them on one device."""
    engine, results, began = Engine(cfg), list[StepResult](), [0.0]
    learner = Learner(seconds=lambda _: LEARN_S, shares=turns)
    components = Components(engine, FakeVerifier(seconds=short, workers=cfg.verify.workers), learner)

    async def on_step(result: StepResult) -> None:
        results.append(result)

    async def on_ready() -> None:
        began[0] = now()

    run_virtual(overlapped(components, cfg, PromptStream(fake_prompts(8), 0), on_step, on_ready=on_ready))
    return results, engine, began[0]


def leave(folder: Path, cfg: Config, *, turns: bool = False) -> Path:
    """Run by ``cfg`` and write its directory."""
    results, engine, began = timed(cfg, turns=turns)
    folder.mkdir()
    write_config(folder, cfg.to_dict(), [])
    busy, rows = engine.busy.pop_spans(0.0), []
    tracer = Tracer(folder / "trace.json", origin_s=0.0)
    for result in results:
        timing = result_timing(result, (began, result.parity_span[1]), engine_spans=busy)
        rows.append(json.dumps(to_json_types(step_row(result, timing))))
        began = result.parity_span[1]
        tracer.step(result)
    tracer.close()
    (folder / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return folder
