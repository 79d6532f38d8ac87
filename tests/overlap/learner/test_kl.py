"""KL estimates by the formulas of TRL and verl, and the gradients of each by brute force over a tiny vocabulary."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from overlap.config.learn import CriticConfig, LearnConfig
from overlap.learner.correction import Sampled
from overlap.learner.gae import credit
from overlap.learner.losses import KL_ESTIMATES, token_loss

LOGITS = torch.tensor([0.3, -1.1, 0.8, 0.0, -0.4], dtype=torch.float64)
REFERENCE = torch.tensor([-0.5, 0.9, 0.1, -1.3, 0.6], dtype=torch.float64).log_softmax(-1)


def sampled_of(engine, advantages=None, owners=None) -> Sampled:
    engine = engine.detach()
    owners = torch.zeros(len(engine), dtype=torch.long) if owners is None else torch.tensor(owners)
    advantages = torch.zeros_like(engine) if advantages is None else torch.tensor(advantages, dtype=engine.dtype)
    return Sampled(engine, advantages, owners, torch.zeros(len(engine), dtype=torch.bool), int(owners.max()) + 1)


def distilling(where: str) -> LearnConfig:
    return LearnConfig(advantage="none", kl_coef=1.0, kl_in=where)  # type: ignore[arg-type]


# --- values -------------------------------------------------------------------------------------------------

BY_HAND = [
    # p, q of a token; log(p / q), q / p - 1 + log(p / q)
    (0.50, 0.25, math.log(2), 0.193147),
    (0.25, 0.50, -math.log(2), 0.306853),
    (0.30, 0.30, 0.0, 0.0),
    (0.01, 0.90, -math.log(90), 84.500190),
]


@pytest.mark.promise("kl")
@pytest.mark.parametrize(("p", "q", "k1", "k3"), BY_HAND)
def test_estimates_are_those_of_the_note(p, q, k1, k3):
    new, reference = torch.tensor([p]).double().log(), torch.tensor([q]).double().log()
    found = {name: estimate(new, reference).item() for name, estimate in KL_ESTIMATES.items()}
    assert found == pytest.approx({"k1": k1, "k3": k3}, abs=1e-5)


def trl(name, new, ref):
    """``PPOTrainer`` computes with logr = ref - new, ``GRPOTrainer`` has k3 in the loss."""
    logr = ref - new
    return {"k1": -logr, "k3": (math.exp(logr) - 1) - logr}[name]


def verl(name, new, ref):
    """``kl_penalty`` "kl" and "low_var_kl", without the bound of 10 that verl has on the value of the last."""
    ratio = math.exp(ref - new)
    return {"k1": new - ref, "k3": ratio - (ref - new) - 1}[name]


@pytest.mark.promise("kl")
@pytest.mark.parametrize(("theirs", "name"), [(trl, "k1"), (trl, "k3"), (verl, "k1"), (verl, "k3")])
def test_estimates_are_those_of_trl_and_verl(theirs, name):
    new, reference = LOGITS.log_softmax(-1), REFERENCE
    slow = [theirs(name, n, r) for n, r in zip(new.tolist(), reference.tolist(), strict=True)]
    assert KL_ESTIMATES[name](new, reference).tolist() == pytest.approx(slow, abs=1e-12)


# --- gradients of one token ---------------------------------------------------------------------------------


def expected_gradient(cfg: LearnConfig) -> torch.Tensor:
    """Of ``token_loss`` in the logits: the mean over all tokens, by the probabilities with which they are drawn."""
    logits = LOGITS.clone().requires_grad_()
    new = logits.log_softmax(-1)
    for token, chance in enumerate(new.detach().exp()):
        at = slice(token, token + 1)
        found = token_loss(new[at], sampled_of(new[at]), cfg, reference=REFERENCE[at]).total
        (chance * found).backward(retain_graph=True)
    assert logits.grad is not None
    return logits.grad


def gradient_of(divergence) -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    divergence(logits.log_softmax(-1)).backward()
    assert logits.grad is not None
    return logits.grad


def reverse(new):
    return (new.exp() * (new - REFERENCE)).sum()


def forward(new):
    return (REFERENCE.exp() * (REFERENCE - new)).sum()


@pytest.mark.promise("kl")
@pytest.mark.parametrize(("where", "divergence"), [("loss", forward), ("reward", reverse)])
def test_the_penalty_has_the_gradient_that_the_page_says(where, divergence):
    found, exact = expected_gradient(distilling(where)), gradient_of(divergence)
    assert found.tolist() == pytest.approx(exact.tolist(), abs=1e-12)
    assert exact.norm() > 0.1


# --- gradients of a response --------------------------------------------------------------------------------

FIRST = torch.tensor([0.2, -0.7, 0.5], dtype=torch.float64)
SECOND = torch.tensor([[0.1, 0.9, -0.3], [-0.8, 0.0, 0.4], [0.6, -0.2, 0.3]], dtype=torch.float64)
"""Logits of two tokens of three; those of the second one by the first."""
TEACHER = (
    torch.tensor([-0.4, 0.8, 0.0], dtype=torch.float64).log_softmax(-1),
    torch.tensor([[0.7, -0.5, 0.2], [0.3, 0.3, -0.9], [-0.6, 0.1, 0.9]], dtype=torch.float64).log_softmax(-1),
)


def response_gradient(cfg: LearnConfig) -> list[float]:
    """The mean over all responses of two tokens, by their chances."""
    first, second = FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()
    p, p2 = first.log_softmax(-1), second.log_softmax(-1)
    for a, b in itertools.product(range(3), repeat=2):
        new = torch.stack([p[a], p2[a, b]])
        reference = torch.stack([TEACHER[0][a], TEACHER[1][a, b]])
        chance = new.detach().sum().exp()
        (chance * token_loss(new, sampled_of(new), cfg, reference=reference).total).backward(retain_graph=True)
    return [*first.grad.tolist(), *second.grad.flatten().tolist()]


def test_beside_rewards_a_kl_in_the_reward_has_the_gradient_of_that_of_whole_responses():
    """All rewards are equal here, so it is the KL alone that moves the policy."""
    first, second = FIRST.clone().requires_grad_(), SECOND.clone().requires_grad_()
    p, p2 = first.log_softmax(-1), second.log_softmax(-1)
    joint = p[:, None] + p2
    (joint.exp() * (joint - TEACHER[0][:, None] - TEACHER[1])).sum().backward()
    exact = [*first.grad.tolist(), *second.grad.flatten().tolist()]
    found = response_gradient(LearnConfig(advantage="group", kl_coef=1.0, kl_in="reward"))
    assert found == pytest.approx(exact, abs=1e-12)


# --- in the reward ------------------------------------------------------------------------------------------


def test_later_updates_of_a_step_keep_the_penalty_of_the_policy_before_it():
    """As the rewards of PPO, and unlike a penalty in the loss."""
    old = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    new = torch.tensor([-1.1, -0.9], dtype=torch.float64, requires_grad=True)
    cfg = LearnConfig(advantage="none", kl_coef=1.0, kl_in="reward", correction="none")
    reference = torch.tensor([-1.5, -0.2], dtype=torch.float64)
    token_loss(new, sampled_of(old), cfg, old=old, first=False, reference=reference).total.backward()
    slow = [-(r - o) * -1 * math.exp(n - o) * -1 for n, o, r in zip((-1.1, -0.9), (-1, -1), (-1.5, -0.2), strict=True)]
    assert new.grad.tolist() == pytest.approx(slow)


def test_a_stale_token_is_weighed_by_the_correction_in_the_reward_and_not_in_the_loss():
    new = torch.tensor([-1.0], dtype=torch.float64)
    reference, engine = new - 0.4, new + math.log(2)  # drawn with twice the chance
    found = {}
    for where in ("reward", "loss"):
        given = new.clone().requires_grad_()
        token_loss(given, sampled_of(engine), distilling(where), reference=reference).total.backward()
        found[where] = given.grad.item()
    assert found == pytest.approx({"reward": 0.2, "loss": 1 - math.exp(-0.4)})


def test_a_critic_sees_the_penalty_on_every_token_and_the_reward_on_the_last():
    """TRL's ``PPOTrainer``: -kl_coef * kl on each token, and the score added to that of the last."""
    values = torch.tensor([0.5, 0.25, 0.75], dtype=torch.float64)
    cfg = CriticConfig(lambda_policy=0.5)
    costs = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)
    found = credit(values, torch.zeros(1), sampled_of(values, [1.0] * 3), cfg, costs)
    rewards = [-0.1, 0.2, 0.7]
    last = rewards[2] - 0.75
    middle = rewards[1] + 0.75 - 0.25 + 0.5 * last
    assert found.advantages.tolist() == pytest.approx([rewards[0] + 0.25 - 0.5 + 0.5 * middle, middle, last])
    assert found.targets.tolist() == pytest.approx([0.8, 0.9, 0.7])  # what is still to come
