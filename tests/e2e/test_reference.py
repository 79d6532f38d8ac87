"""A larger reference policy beside the real learner: any ranks and stages take the steps of plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from learners import PROBE, config, mixed_batch, ppo, run, told
from plain_backend import plain_trainer
from wide import wide

from overlap.config.fields import Config
from overlap.learner.micro_batch import flatten
from overlap.policy.tiny import make_tiny_policy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DISTILLED = {"advantage": "none", "kl_coef": 1.0, "truncated": "zero", "updates_per_step": 2}


def of(kind: str, teacher: Path, **learn: Any) -> Config:
    held = learn | {"reference": str(teacher)}
    if kind == "critic":
        return ppo(kl_coef=0.1, kl_in="reward", truncated="zero", **held)
    return config(kl_in=kind, **DISTILLED, **held)


@pytest.mark.promise("kl")
@pytest.mark.parametrize(
    ("kind", "ranks", "zero_stage", "sequence_parallel"),
    [
        ("critic", 2, 3, 1),
        wide("reward", 2, 3, 1),
        wide("reward", 2, 2, 2),
        wide("loss", 1, 2, 1),
        wide("critic", 2, 1, 1),
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

    steps, logprobs = run(policy, tmp_path, cfg, use, reference=teacher)
    expected = plain_trainer(monkeypatch, of(kind, teacher), policy, 10, teacher)
    for version, found in enumerate(steps):
        metrics = told(expected.step(flatten(mixed_batch(version), truncated="zero")))
        assert found == pytest.approx(metrics, rel=1e-3, abs=1e-4)
    assert abs(steps[0]["kl"]) > 0.01
    assert logprobs == pytest.approx(expected.logprobs(PROBE), abs=2e-3)
