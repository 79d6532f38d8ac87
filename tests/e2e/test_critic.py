"""A critic and a larger reference beside the real learner: any ranks and stages take the steps of plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from learners import PROBE, config, mixed_batch, ppo, run, told
from plain_backend import plain_trainer
from tiny_policy import make_tiny_policy
from wide import wide

from overlap.config.fields import Config
from overlap.learner.micro_batch import flatten

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DISTILLED = {"advantage": "none", "kl_coef": 1.0, "truncated": "zero", "updates_per_step": 2}


def of(kind: str, teacher: Path, **learn: Any) -> Config:
    if kind == "critic":
        return ppo(**learn)
    held = learn | {"reference": str(teacher)}
    if kind == "both":
        return ppo(kl_coef=0.1, kl_in="reward", **held)
    return config(kl_in=kind, **DISTILLED, **held)


@pytest.mark.promise("critic", "kl")
@pytest.mark.parametrize(
    ("kind", "ranks", "zero_stage", "sequence_parallel"),
    [
        ("both", 2, 3, 1),
        wide("both", 2, 1, 1),
        wide("critic", 1, 2, 1),
        wide("critic", 2, 2, 1),
        wide("reward", 2, 3, 1),
        wide("reward", 2, 2, 2),
        wide("loss", 1, 2, 1),
    ],
)
def test_every_stage_and_number_of_ranks_takes_the_steps_of_plain_torch(
    policy, tmp_path, monkeypatch, kind, ranks, zero_stage, sequence_parallel
):
    teacher = make_tiny_policy(tmp_path / "teacher", seed=5, layers=3, hidden=96)
    cut = {"ranks": ranks, "zero_stage": zero_stage, "sequence_parallel": sequence_parallel}
    cfg = of(kind, teacher, **cut, micro_batch_tokens=96 * ranks)

    async def use(learner):
        reports = [await learner.step(mixed_batch(version)) for version in range(3)]
        return [told(r.metrics) for r in reports], await learner.logprobs(PROBE)

    beside = None if kind == "critic" else teacher
    steps, logprobs = run(policy, tmp_path, cfg, use, reference=beside)
    expected = plain_trainer(monkeypatch, of(kind, teacher), policy, 10, beside)
    for version, found in enumerate(steps):
        metrics = told(expected.step(flatten(mixed_batch(version), truncated=cfg.learn.truncated)))
        assert found == pytest.approx(metrics, rel=1e-3, abs=1e-4)
    assert kind == "critic" or abs(steps[0]["kl"]) > 0.01
    assert logprobs == pytest.approx(expected.logprobs(PROBE), abs=2e-3)


@pytest.mark.wide
def test_a_smaller_critic_values_what_the_policy_says(policy, tmp_path):
    small = make_tiny_policy(tmp_path / "small")

    async def use(learner):
        return await learner.step(mixed_batch(0)), await learner.step(mixed_batch(1))

    first, second = run(policy, tmp_path, ppo(), use, critic=small)
    assert (first.version, second.version) == (1, 2)
    assert second.metrics["critic/value_mean"] != first.metrics["critic/value_mean"]
