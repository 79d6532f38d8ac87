"""The critic: where its values are read, what it learns, and what the policy is taught by it. By plain torch."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest
import torch
from plain_backend import PlainBackend
from responses import response, some_groups

from overlap.core.errors import ConfigError
from overlap.learner.critic import CriticTrainer, Trunk, ValueHead, read_values
from overlap.learner.gae import gae
from overlap.learner.micro_batch import MicroBatch, PromptGroup, SplitConfig, mini_batches
from overlap.learner.model import load_policy
from overlap.learner.tensors import to_tensors
from overlap.learner.trainer import RankTrainer


@pytest.fixture
def taught(trainer):
    def make(critic=None, **learn) -> RankTrainer:
        return trainer(critic={"lr": 1e-3} | (critic or {}), advantage="gae", **learn)

    return make


def masked(groups):
    """The same with tokens of others in the middle of each response, and half of them cut off."""

    def some(one):
        mask = bytes(t % 3 != 1 or t == len(one.tokens) - 1 for t in range(len(one.tokens)))
        bootstraps = sum(mask) > 1 and sum(one.tokens) % 2 == 0
        return replace(one, mask=mask, bootstraps=bootstraps, advantage=0.0 if bootstraps else one.advantage)

    return [replace(group, responses=tuple(map(some, group.responses))) for group in groups]


def batch():
    return some_groups(groups=4, advantages=(0.0, 1.0))


def with_a_head(trainer: RankTrainer) -> RankTrainer:
    """Values that differ from token to token, as after some training."""
    torch.nn.init.normal_(trainer.critic.head.linear.weight, std=0.5, generator=torch.Generator().manual_seed(3))
    return trainer


# --- values -------------------------------------------------------------------------------------------------


def values_of(trunk, head, prompt, tokens):
    micro = MicroBatch((PromptGroup(array("i", prompt), (response(tokens),)),))
    with torch.no_grad():
        return read_values(trunk, head, to_tensors(micro))[0]


@pytest.mark.promise("critic")
def test_a_value_knows_what_came_before_its_token_and_not_the_token(tiny):
    policy = load_policy(tiny, dtype=torch.float32, temperature=1.0, device=torch.device("cpu")).policy
    trunk = Trunk(policy.base_model)
    head = ValueHead(trunk.base.config.hidden_size)
    torch.nn.init.normal_(head.linear.weight)
    tokens = [10, 20, 30, 40, 50]
    before = values_of(trunk, head, [1, 2], tokens)
    for t in range(len(tokens)):
        changed = values_of(trunk, head, [1, 2], [*tokens[:t], 99, *tokens[t + 1 :]])
        assert torch.equal(changed[: t + 1], before[: t + 1])
        assert not (changed[t + 1 :] == before[t + 1 :]).any()
    assert not (values_of(trunk, head, [1, 3], tokens) == before).any()


def test_a_critic_that_cannot_be_loaded_is_blamed_by_its_own_name(taught, tmp_path):
    made = taught()
    with pytest.raises(ConfigError, match=r"^critic\.policy=.*cannot be loaded"):
        CriticTrainer(made.cfg, tmp_path / "nowhere", made.device, 1, PlainBackend())


# --- advantages ---------------------------------------------------------------------------------------------


def advantages_by_response(trainer: RankTrainer, groups, split: SplitConfig):
    """Of a batch, by the tokens of each response, which are all different; the critic takes its step."""
    minis = mini_batches(groups, split)
    made, told = trainer.critic.step(minis, [None] * len(minis))
    found = {}
    for mini, batch in zip(minis, made, strict=True):
        for micro, advantages in zip(mini.ranks[0], batch, strict=True):
            parts = iter(advantages.split([r.counted for row in micro.rows for r in row.responses]))
            found |= {tuple(r.tokens): next(parts).tolist() for row in micro.rows for r in row.responses}
    return found, told


SPLITS = {
    "one pass": SplitConfig(1, 1, 4096, 64),
    "packed": SplitConfig(1, 1, 60, 64),
    "padded": SplitConfig(1, 1, 200, 64, padded=True),
    "one by one": SplitConfig(1, 1, 1, 64),
}
CRITIC = {"lambda_policy": 0.9}


def test_neither_packing_nor_micro_batches_change_advantages_or_the_step(taught):
    results = []
    for split in SPLITS.values():
        made = with_a_head(taught(CRITIC, truncated="bootstrap", normalize_advantages=True))
        found, told = advantages_by_response(made, masked(batch()), split)
        weights = torch.cat(
            [p.flatten() for p in (*made.critic.head.parameters(), *made.critic.model.module.parameters())]
        )
        results.append((found, told, weights.detach().clone()))
    (first, told, weights), *others = results
    for found, other, moved in others:
        assert found.keys() == first.keys()
        for tokens, advantages in found.items():
            assert advantages == pytest.approx(first[tokens], abs=1e-5)
        for name in ("loss", "explained_variance", "value_mean", "return_mean", "grad_norm"):
            assert other[f"critic/{name}"] == pytest.approx(told[f"critic/{name}"], rel=1e-4, abs=1e-5), name
        # Adam makes steps of equal size from gradients of any size: compare with how far it went.
        assert (moved - weights).abs().mean() < 0.05 * 1e-3


def test_advantages_are_those_of_the_values_and_rewards(taught):
    made = with_a_head(taught(CRITIC, truncated="bootstrap"))
    groups = masked(batch())
    expected = {}
    for group in groups:
        for r in group.responses:
            values = values_of(made.critic.model.module, made.critic.head, group.prompt, r.tokens).tolist()
            sampled = [value for value, own in zip(values, r.mask, strict=True) if own]
            own, behind = sampled[: r.counted], sampled[-1] if r.bootstraps else 0.0
            rewards = [0.0] * (r.counted - 1) + [r.advantage]
            expected[tuple(r.tokens)] = gae(rewards, own, lam=0.9, behind=behind)
    assert any(r.bootstraps for g in groups for r in g.responses)
    found, _ = advantages_by_response(made, groups, SPLITS["packed"])
    assert found.keys() == expected.keys()
    for tokens, advantages in found.items():
        assert advantages == pytest.approx(expected[tokens], abs=1e-5)


def test_advantages_of_all_mini_batches_come_from_the_values_before_the_first_update(taught):
    one = with_a_head(taught(CRITIC))
    many = with_a_head(taught(CRITIC | {"lr": 0.1}))
    first, _ = advantages_by_response(one, batch(), SplitConfig(1, 1, 60, 64))
    later, _ = advantages_by_response(many, batch(), SplitConfig(4, 1, 60, 64))
    assert many.critic.updates == 4
    for tokens, advantages in later.items():
        assert advantages == pytest.approx(first[tokens], abs=1e-5)


def test_each_token_pulls_with_its_own_advantage(taught):
    """The gradient is that of plain torch: the sum of A log p over the tokens."""
    made = with_a_head(taught(CRITIC, correction="none", lr=1e-12))
    groups = batch()
    minis = mini_batches(groups, made._split)
    other = with_a_head(taught(CRITIC))
    (advantages,), _ = other.critic.step(minis, [None])
    policy = other.model.module
    for micro, a in zip(minis[0].ranks[0], advantages, strict=True):
        (-(policy(to_tensors(micro))[0] * a).sum() / minis[0].counted).backward()
    norm = torch.cat([p.grad.flatten() for p in policy.parameters()]).norm().item()
    assert made.step(groups)["grad_norm"] == pytest.approx(norm, rel=1e-4)


# --- steps --------------------------------------------------------------------------------------------------


def weights(module) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in module.parameters()]


def test_a_critic_alone_leaves_the_policy_and_its_optimizer_as_they_are(taught):
    made = taught({"warmup_steps": 2}, schedule="linear")
    before, values = weights(made.model.module), weights(made.critic.head)
    for _ in range(2):
        told = made.step(batch(), alone=True)
        assert not {"loss", "grad_norm", "lr"} & told.keys()
        assert told["tokens"] > 0
    assert weights(made.model.module) == before
    assert (made.updates, made.model.steps, made.model.optimizer.state_dict()["state"]) == (0, 0, {})
    assert all(p.grad is None or not p.grad.any() for p in made.model.module.parameters())
    assert (made.critic.updates, made.critic.model.steps) == (2, 2)
    assert weights(made.critic.head) != values
    told = made.step(some_groups(1, advantages=(0.0, 1.0)))
    assert (made.updates, made.critic.updates) == (1, 3)  # one batch: those before were not kept
    assert told["lr"] == 1e-3  # the policy's schedule begins with its own first step ...
    assert made.total_updates == 98  # ... and ends with the run
    assert told["critic/lr"] == pytest.approx(0.98e-3)
