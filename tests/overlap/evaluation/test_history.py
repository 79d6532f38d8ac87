"""Evaluations in the course of a run, on the doubles: what they measure, what they keep, and what they leave alone."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from journal import essence

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Request, Scored, Trajectory
from overlap.core.errors import RunDirError
from overlap.evaluation.evaluate import PassRate, ProblemTally
from overlap.evaluation.history import RECORD, EvaluationHistory, Evaluator, row
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import Position, overlapped, serial
from overlap.pipeline.prompts import PromptStream
from overlap.record.logs import Console
from overlap.record.progress import Progress

HELDOUT = tuple(fake_prompts(6))
START = Position()


def config(**overrides: object) -> Config:
    base = {"rollout.groups_per_step": 4, "rollout.samples_per_group": 4, "run.steps": 6, "run.eval_every": 2}
    return load_config(None, [f"{k}={v}" for k, v in (base | overrides).items()])


class Skilled(FakeVerifier):
    """Held-out answers pass with the chance ``skill[version]``; it remembers what it was asked."""

    def __init__(self, *skill: float, broken: bool = False) -> None:
        super().__init__(seed=1)
        self.skill, self.broken = skill, broken
        self.asked: list[Trajectory] = []

    async def score(self, trajectory: Trajectory) -> Scored:
        scored = await super().score(trajectory)
        if trajectory.request.group >= 0 or scored.reward is None:
            return scored
        self.asked.append(trajectory)
        if self.broken:
            return replace(scored, reward=None, failure="broken")
        newest = max(span.version for span in trajectory.spans)
        chance = self.skill[min(newest, len(self.skill) - 1)] if self.skill else 0.5
        return replace(scored, reward=float(trajectory.request.sample < round(4 * chance)))


class Run:
    """A run on doubles, as a session makes it."""

    def __init__(
        self, cfg: Config, folder: Path, *skill: float, course: EvaluationHistory | None = None, **kinds: Any
    ) -> None:
        self.cfg, self.text, self.best = cfg, StringIO(), folder / "policy-best"
        self.verifier = kinds.get("verifier") or Skilled(*skill)
        self.generator = kinds.get("generator") or FakeGenerator(seed=1)
        self.learner = FakeLearner()
        self.results: list[StepResult] = []
        self.rows: dict[int, dict[str, float]] = {}
        self.course = course or EvaluationHistory()
        save = kinds.get("save") or partial(self.learner.save, kind="policy")
        components, progress = (self.generator, self.verifier), Progress(Console(self.text), cfg.run.steps)
        self.recorded: dict[int, list[str]] = {}
        self.evaluator = Evaluator(
            cfg, HELDOUT, components, save, self.best, progress, self.course, self.lost, self.record
        )

    async def record(self, step: int, samples: Sequence[Scored]) -> None:
        self.recorded[step] = [sample.id for sample in samples]

    def lost(self, name: str, reason: str) -> None:
        self.text.write(f"{name}: {reason}\n")

    async def on_weights(self, result: StepResult) -> None:
        self.rows[result.batch.step] = await self.evaluator.after_step(result.batch.step)

    async def on_step(self, result: StepResult) -> None:
        self.results.append(result)

    async def __call__(self, loop: Callable[..., Awaitable[None]] = overlapped, at: Position = START) -> None:
        components = Components(self.generator, self.verifier, self.learner)
        prompts = PromptStream(fake_prompts(7), 0, at.groups)

        async def on_ready() -> None:
            await self.evaluator.begin(at.step)

        self.learner.version = at.version
        async with asyncio.timeout(20):
            await loop(components, self.cfg, prompts, self.on_step, at, on_ready, self.on_weights)
            await self.evaluator.end(self.cfg.run.steps)

    @property
    def kept(self) -> int:
        return int((self.best / "policy").read_text())


def finished(cfg: Config, folder: Path, *skill: float, **kinds: Any) -> Run:
    run = Run(cfg, folder, *skill, **kinds)
    asyncio.run(run())
    return run


def jitter(rng: random.Random) -> float:
    return rng.random() * 0.003


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize(("loop", "staleness"), [(serial, 0), (overlapped, 0), (overlapped, 1)])
def test_evaluations_change_no_batch(tmp_path: Path, loop: Callable[..., Awaitable[None]], staleness: int) -> None:
    found = []
    for every in (0, 1, 2):
        cfg = config(**{"run.eval_every": every, "rollout.max_staleness": staleness})
        run = Run(cfg, tmp_path / str(every), generator=FakeGenerator(seed=1, seconds=jitter))
        asyncio.run(run(loop))
        found.append([essence(result.batch) for result in run.results])
        assert all(0 <= age <= staleness for result in run.results for age in result.batch.staleness)
    assert found[0] == found[1] == found[2]


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize("staleness", [0, 1])
def test_an_evaluation_sees_the_weights_of_its_step_and_no_others(tmp_path: Path, staleness: int) -> None:
    generator = FakeGenerator(seed=1, seconds=jitter)
    run = finished(config(**{"rollout.max_staleness": staleness}), tmp_path, generator=generator)
    versions = [{span.version for span in t.spans} for t in run.verifier.asked]
    each = 4 * len(HELDOUT)
    assert versions == [{v} for v in (0, 2, 4, 6) for _ in range(each)]
    whole = [f"g{-1 - n}s{k}" for n in range(len(HELDOUT)) for k in range(4)]
    assert run.recorded == dict.fromkeys((0, 2, 4, 6), whole), "each is handed on whole, in order, with its step"


def test_on_policy_nothing_else_is_generated_during_an_evaluation(tmp_path: Path) -> None:
    """So the step's clock can leave it out: the engine served nobody else in that time."""
    mixed: list[tuple[int, int]] = []

    class Watching(FakeGenerator):
        def __init__(self) -> None:
            super().__init__(seconds=jitter)
            self.now: set[int] = set()

        async def generate(self, request: Request) -> Trajectory:
            self.now.add(request.group)
            mixed.append((min(self.now), max(self.now)))
            try:
                return await super().generate(request)
            finally:
                self.now.discard(request.group)

    finished(config(), tmp_path, generator=Watching())
    assert not [pair for pair in mixed if pair[0] < 0 <= pair[1]]


def test_what_a_run_found_is_in_its_rows_in_its_summary_and_beside_its_best_policy(tmp_path: Path) -> None:
    run = finished(config(), tmp_path, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 0.5)
    assert [sorted(run.rows[step]) == [] for step in range(1, 7)] == [True, False] * 3
    found = run.rows[2]
    assert [found[f"eval/{name}"] for name in ("pass_at_1", "pass_at_4", "samples", "failed")] == [0.5, 1, 24, 0]
    assert found["eval/pass_at_1_low"] < 0.5 < found["eval/pass_at_1_high"]
    made = run.course.summary(6)
    assert (made["before"]["value"], made["after"]["value"], made["best"]["value"]) == (0.25, 0.5, 0.75)
    assert made["change"]["value"] == 0.25
    assert made["change"]["low"] < 0.25 < made["change"]["high"]
    assert [figures["step"] for figures in made["during"]] == [2, 4]
    cut_short = run.course.summary(None)
    assert (cut_short["after"], cut_short["change"]) == (None, None)
    assert json.loads((run.best / RECORD).read_text())["step"] == 4 == made["best"]["step"] == run.kept
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy-best"]


def test_only_a_better_policy_that_was_evaluated_during_the_run_is_kept(tmp_path: Path) -> None:
    assert finished(config(), tmp_path / "equal", 0.5).kept == 2
    unjudged = finished(config(), tmp_path, verifier=Skilled(broken=True))
    assert (unjudged.best.exists(), unjudged.course.summary(6)["best"]) == (False, None)
    run = finished(config(**{"run.eval_every": 0}), tmp_path, 0.25, 0.5)
    assert (run.best.exists(), run.course.before is not None, list(run.course.points)) == (False, True, [6])


def test_what_was_found_survives_a_resume(tmp_path: Path) -> None:
    first = finished(config(**{"run.steps": 4}), tmp_path, 0.25, 0.25, 0.5, 0.5, 0.75)
    stored = json.loads(json.dumps(first.course.to_dict()))
    again = Run(config(), tmp_path, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 0.5, course=EvaluationHistory.from_dict(stored))
    asyncio.run(again(at=Position(4, 4, 16)))
    assert {span.version for t in again.verifier.asked for span in t.spans} == {6}  # "before" is not measured again
    assert "before training: pass@1 0.250" in again.text.getvalue()
    made = again.course.summary(6)
    assert [figures["step"] for figures in made["during"]] == [2, 4]
    assert (made["before"]["value"], made["change"]["value"], made["best"]["step"]) == (0.25, 0.25, 4)
    assert again.kept == 4
    assert sorted(again.course.curve()) == [0, 2, 4, 6]
    assert EvaluationHistory.from_dict({}) == EvaluationHistory()


def test_the_best_of_a_resumed_run_is_the_one_that_lies_there(tmp_path: Path) -> None:
    """Its step may come after the checkpoint: what was learned since then is gone, the policy is not."""
    finished(config(**{"run.steps": 4}), tmp_path, 0.25, 0.25, 0.5, 0.5, 0.75)
    again = Run(config(), tmp_path, 0.5, course=EvaluationHistory(best={"step": 2, "value": 0.5}))
    asyncio.run(again(at=Position(2, 2, 8)))
    assert (again.kept, (again.course.best or {})["value"]) == (4, 0.75)


def test_a_best_policy_that_cannot_be_written_costs_neither_the_run_nor_the_earlier_one(tmp_path: Path) -> None:
    saves: list[Path] = []

    async def save(path: Path) -> None:
        saves.append(path)
        path.mkdir(parents=True)
        (path / "policy").write_text(str(len(saves)))
        if len(saves) > 1:
            raise RunDirError(f"cannot write {path}: No space left on device")

    run = finished(config(), tmp_path, 0.25, 0.25, 0.5, 0.5, 0.75, save=save)
    assert len(run.results) == 6
    assert run.kept == 1
    assert run.course.summary(6)["best"]["step"] == 2
    assert "No space left" in run.text.getvalue()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy-best"]


def test_figures_of_nothing_are_columns_without_a_number_and_other_temperatures_are_not_compared() -> None:
    course = EvaluationHistory(before=PassRate((ProblemTally("a", 1, 4),), temperature=1.0))
    nothing = row(course.add(3, PassRate((ProblemTally("a", 0, 0, failed=2),), 2)))
    assert nothing["eval/failed"] == 2
    assert math.isnan(nothing["eval/pass_at_1"])
    course.add(5, PassRate((ProblemTally("a", 2, 4),), temperature=0.2))
    assert course.summary(5)["change"] is None
