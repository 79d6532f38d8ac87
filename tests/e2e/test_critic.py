"""The critic beside the real learner: any ranks and stages take the steps of plain torch, and its state comes back."""

from __future__ import annotations

import pytest
from learners import PROBE, mixed_batch, ppo, run, told
from plain_backend import plain_trainer
from wide import wide

from overlap.learner.micro_batch import flatten
from overlap.policy.tiny import make_tiny_policy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.promise("critic")
@pytest.mark.parametrize(("ranks", "zero_stage"), [wide(1, 2), wide(2, 1), wide(2, 2), (2, 3)])
def test_every_stage_and_number_of_ranks_takes_the_steps_of_plain_torch(
    policy, tmp_path, monkeypatch, ranks, zero_stage
):
    cfg = ppo(ranks=ranks, zero_stage=zero_stage, micro_batch_tokens=96 * ranks)

    async def use(learner):
        reports = [await learner.step(mixed_batch(version)) for version in range(3)]
        return [told(r.metrics) for r in reports], await learner.logprobs(PROBE)

    steps, logprobs = run(policy, tmp_path, cfg, use)
    expected = plain_trainer(monkeypatch, ppo(), policy, total_updates=10)
    for version, found in enumerate(steps):
        metrics = told(expected.step(flatten(mixed_batch(version), truncated="bootstrap")))
        assert found == pytest.approx(metrics, rel=1e-3, abs=1e-4)
    assert logprobs == pytest.approx(expected.logprobs(PROBE), abs=2e-3)


@pytest.mark.wide
def test_a_smaller_critic_values_what_the_policy_says(policy, tmp_path):
    small = make_tiny_policy(tmp_path / "small")
    cfg = ppo()

    async def use(learner):
        return await learner.step(mixed_batch(0)), await learner.step(mixed_batch(1))

    first, second = run(policy, tmp_path, cfg, use, critic=small)
    assert (first.version, second.version) == (1, 2)
    assert second.metrics["critic/value_mean"] != first.metrics["critic/value_mean"]
