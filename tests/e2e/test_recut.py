"""A saved state is gone on with as if nothing had been, also by other numbers of ranks and under other ZeRO stages."""

from __future__ import annotations

import pytest
from learners import PROBE, adapted, config, make_batch, mixed_batch, ppo, run, told
from wide import wide

from overlap.learner.saved_state import read_state

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def whole(**learn):
    return config(weight_decay=0.01, **learn)


def penalised(**learn):
    """With several updates a step, a reference policy and a warm-up."""
    return config(updates_per_step=2, kl_coef=0.1, entropy_coef=0.01, warmup_steps=3, **learn)


def with_critic(**learn):
    return ppo(critic={"warmup_steps": 1}, **learn)


# (ranks, ZeRO stage) that wrote and that go on, in float32 for exactness. ZeRO 1 in bfloat16 is a class of its own in
# DeepSpeed.
CASES = [
    wide(whole, (2, 1), (1, 1), "float32"),
    wide(whole, (1, 2), (2, 2), "float32"),
    wide(whole, (2, 3), (1, 3), "float32"),
    wide(whole, (1, 3), (2, 3), "float32"),
    (whole, (2, 2), (2, 3), "bfloat16"),
    wide(whole, (2, 2), (1, 1), "bfloat16"),
    wide(whole, (2, 1), (1, 2), "bfloat16"),
    wide(penalised, (1, 2), (1, 2), "float32"),
    (penalised, (1, 2), (1, 2), "bfloat16"),
    wide(with_critic, (1, 2), (1, 2), "float32"),
    wide(with_critic, (1, 2), (1, 2), "bfloat16"),
    wide(with_critic, (2, 3), (2, 3), "float32"),
    wide(with_critic, (2, 2), (1, 1), "float32"),
    wide(with_critic, (1, 3), (2, 3), "float32"),
    (with_critic, (2, 2), (2, 3), "float32"),
    wide(adapted, (1, 2), (1, 2), "float32"),
    wide(adapted, (1, 2), (1, 2), "bfloat16"),
    wide(adapted, (2, 3), (2, 3), "float32"),
    wide(adapted, (2, 1), (1, 2), "float32"),
    wide(adapted, (2, 3), (1, 3), "float32"),
    wide(adapted, (1, 3), (2, 3), "float32"),
    wide(adapted, (2, 2), (2, 3), "bfloat16"),
    wide(adapted, (2, 1), (1, 2), "bfloat16"),
]


@pytest.mark.promise("restored")
@pytest.mark.parametrize(("kind", "wrote", "goes_on", "dtype"), CASES)
def test_a_restored_learner_goes_on_as_if_it_had_never_stopped(policy, tmp_path, kind, wrote, goes_on, dtype):
    batch = mixed_batch if kind is with_critic else make_batch

    def of(cut):
        return kind(ranks=cut[0], zero_stage=cut[1], dtype=dtype, schedule="linear")

    async def third(learner):
        before = await learner.logprobs(PROBE)
        report = await learner.step(batch(2))
        return before, report, await learner.logprobs(PROBE)

    async def first(learner):
        for version in range(2):
            await learner.step(batch(version))
            await learner.save(tmp_path / "state", kind="state")  # the second one in the place of the first
        return await third(learner)

    async def again(learner):
        await learner.restore(tmp_path / "state")
        found = await third(learner)
        await learner.save(tmp_path / "again", kind="state")
        return found

    before, report, after = run(policy, tmp_path, of(wrote), first)
    same_before, same_report, same_after = run(policy, tmp_path, of(goes_on), again)
    exact = 1e-6 if wrote == goes_on else 1e-5 if dtype == "float32" else 0.05
    assert same_before == pytest.approx(before, abs=1e-6)
    assert same_after == pytest.approx(after, abs=exact)
    assert same_report.version == report.version == 3
    assert same_report.metrics["lr"] == report.metrics["lr"]
    metrics, same = told(report.metrics), told(same_report.metrics)
    assert same.keys() == metrics.keys()
    for name in metrics if kind is with_critic else ("loss", "grad_norm", "entropy", *({"kl"} & metrics.keys())):
        assert same[name] == pytest.approx(metrics[name], abs=exact, rel=exact), name
    assert kind is not penalised or metrics["clip_fraction"] > 0
    assert not list(tmp_path.glob(".*"))
    learn = of(goes_on).learn
    warmup, updates = 1 if kind is with_critic else 0, learn.updates_per_step
    state = read_state(tmp_path / "again", of(goes_on))
    assert (state.version, state.updates, state.critic_updates) == (3, (3 - warmup) * updates, 6 if warmup else None)
    assert (state.ranks, state.zero_stage, state.lora_rank) == (*goes_on, learn.lora_rank)
