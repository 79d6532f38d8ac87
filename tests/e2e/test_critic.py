"""The critic beside the real learner: any ranks and stages take the steps of plain torch, and its state comes back."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from learners import PROBE, config, make_batch, run
from wide import wide

from overlap.config import Config
from overlap.core import Batch, Group, Scored
from overlap.errors import ConfigError
from overlap.learner import read_state
from overlap.learner.micro_batch import flatten

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from plain_backend import plain_trainer  # noqa: E402

from overlap.policy import make_tiny_policy  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

CRITIC = {"lr": 1e-2, "lambda_policy": 0.9, "bounded": False}
TIMED = {"critic/step_s", "forward_backward_s", "optimizer_s", "tokens_padded_share"}


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    return make_tiny_policy(tmp_path_factory.mktemp("tiny"), vocab=2048)  # large enough for ZeRO-3 to shard


def ppo(*, critic=None, **learn) -> Config:
    learn = {"advantage": "gae", "truncated": "bootstrap", "updates_per_step": 2} | learn
    return config(critic=CRITIC | (critic or {}), normalize_advantages=True, **learn)


def batch(version: int) -> Batch:
    """Some samples were cut off, and some were drawn by the version before."""
    rng = random.Random(100 + version)

    def some(scored: Scored) -> Scored:
        t = scored.trajectory
        age = rng.randrange(2) if version else 0
        spans = tuple(replace(span, version=version - age) for span in t.spans)
        return replace(scored, trajectory=replace(t, finish=rng.choice(("stop", "length")), spans=spans))

    def group(made: Group) -> Group:
        return replace(made, samples=tuple(map(some, made.samples)))

    made = make_batch(version)
    return replace(made, groups=tuple(map(group, made.groups)))


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def told(metrics) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in TIMED}


def same(found, expected, exact=1e-4) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=10 * exact, abs=exact, nan_ok=True), name


@pytest.mark.parametrize(("ranks", "zero_stage"), [wide(1, 2), wide(2, 1), wide(2, 2), (2, 3)])
def test_every_stage_and_number_of_ranks_takes_the_steps_of_plain_torch(
    policy, tmp_path, monkeypatch, ranks, zero_stage
):
    cfg = ppo(ranks=ranks, zero_stage=zero_stage, micro_batch_tokens=96 * ranks)

    async def use(learner):
        reports = [await learner.step(batch(version)) for version in range(3)]
        return [told(r.metrics) for r in reports], await learner.logprobs(PROBE)

    steps, logprobs = run(policy, tmp_path, cfg, use)
    expected = plain_trainer(monkeypatch, ppo(), policy, total_updates=10)
    for version, found in enumerate(steps):
        same(found, told(expected.step(flatten(batch(version), truncated="bootstrap"))))
    assert logprobs == pytest.approx(expected.logprobs(PROBE), abs=2e-3)


@pytest.mark.parametrize(
    ("wrote", "goes_on", "dtype"),
    [
        wide((1, 2), (1, 2), "float32"),
        wide((1, 2), (1, 2), "bfloat16"),
        wide((2, 3), (2, 3), "float32"),
        wide((2, 2), (1, 1), "float32"),
        wide((1, 3), (2, 3), "float32"),
        ((2, 2), (2, 3), "float32"),
    ],
)
def test_a_restored_learner_goes_on_with_its_critic(policy, tmp_path, wrote, goes_on, dtype):
    def of(cut) -> Config:
        return ppo(ranks=cut[0], zero_stage=cut[1], dtype=dtype, schedule="linear", critic={"warmup_steps": 1})

    async def whole(learner):
        await learner.step(batch(0))
        await learner.step(batch(1))
        await learner.save(tmp_path / "state", kind="state")
        return told((await learner.step(batch(2))).metrics), await learner.logprobs(PROBE)

    async def resumed(learner):
        await learner.restore(tmp_path / "state")
        report = await learner.step(batch(2))
        assert report.version == 3
        return told(report.metrics), await learner.logprobs(PROBE)

    metrics, logprobs = run(policy, tmp_path, of(wrote), whole)
    again, after = run(policy, tmp_path, of(goes_on), resumed)
    exact = 1e-6 if wrote == goes_on else 1e-4
    same(again, metrics, exact)
    assert after == pytest.approx(logprobs, abs=exact * 10)
    state = read_state(tmp_path / "state", of(wrote))
    assert (state.version, state.updates, state.critic_updates) == (2, 2, 4)
    with pytest.raises(ConfigError, match="has a critic"):
        read_state(tmp_path / "state", config(dtype=dtype))


@pytest.mark.wide
@pytest.mark.parametrize(("ranks", "zero_stage"), [wide(1, 2), (2, 3)])
def test_while_the_critic_is_alone_the_published_weights_stay_bit_for_bit(policy, tmp_path, ranks, zero_stage):
    cfg = ppo(ranks=ranks, zero_stage=zero_stage, critic={"warmup_steps": 2})

    async def published(learner, version):
        update = await learner.publish(version)
        data = content(update.info["path"])
        await learner.retire(update)
        return data

    async def use(learner):
        weights, metrics = [await published(learner, 0)], []
        for version in range(3):
            report = await learner.step(batch(version))
            metrics.append(report.metrics)
            weights.append(await published(learner, report.version))
            if version == 1:
                await learner.save(tmp_path / "state", kind="state")
        return weights, metrics

    weights, metrics = run(policy, tmp_path, cfg, use)
    assert weights[0] == weights[1] == weights[2] != weights[3]
    assert ["loss" in found for found in metrics] == [False, False, True]
    assert all(found["critic/grad_norm"] > 0 for found in metrics)
    assert read_state(tmp_path / "state", cfg).updates == 0


@pytest.mark.wide
def test_a_smaller_critic_values_what_the_policy_says(policy, tmp_path):
    small = make_tiny_policy(tmp_path / "small")
    cfg = ppo()

    async def use(learner):
        return await learner.step(batch(0)), await learner.step(batch(1))

    first, second = run(policy, tmp_path, cfg, use, critic=small)
    assert (first.version, second.version) == (1, 2)
    assert second.metrics["critic/value_mean"] != first.metrics["critic/value_mean"]
