"""Each loss against its paper's formula in float64, and its gradient against finite differences."""

from __future__ import annotations

import math
import random
from itertools import combinations
from typing import get_type_hints

import pytest

torch = pytest.importorskip("torch")

from overlap.config import LearnConfig  # noqa: E402
from overlap.config.rules import choices  # noqa: E402
from overlap.errors import ConfigError  # noqa: E402
from overlap.learner.correction import Sampled  # noqa: E402
from overlap.learner.loss import LossConfig, token_loss  # noqa: E402
from overlap.learner.losses import LOSSES, policy_loss  # noqa: E402

LENGTHS = (1, 7, 3, 12, 5)
LOW, HIGH = 0.1, 0.15


def column(rng, low, high):
    return torch.tensor([rng.uniform(low, high) for _ in range(sum(LENGTHS))], dtype=torch.float64)


def made(seed=0):
    """New and old log-probs [T] and what the engine told; a response has one advantage, and moves as one."""
    rng = random.Random(seed)
    owners = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    old = column(rng, -3, -0.5)
    advantages = torch.tensor([1.5, -0.7, 0.4, -1.1, 0.9], dtype=torch.float64)[owners]
    drift = torch.tensor([0.3, -0.3, -0.05, 0.2, 0.25], dtype=torch.float64)[owners]
    new = old + drift + column(rng, -0.1, 0.1)
    sampled = Sampled(old + column(rng, -0.3, 0.3), advantages, owners, torch.zeros_like(owners).bool(), len(LENGTHS))
    return new, old, sampled


def total(name, new, old, sampled, low=LOW, high=HIGH):
    return LOSSES[name](new, old, sampled, low=low, high=high)[0].sum()


def of_sequences(new, old, sampled):
    """GSPO, eq. 5 with eq. 7 and one advantage per response, each counted by its tokens; by autograd."""
    losses = []
    for k, length in enumerate(LENGTHS):
        mine = sampled.owners == k
        s, a = ((new - old)[mine].sum() / length).exp(), sampled.advantages[mine][0]
        losses.append(length * torch.maximum(-a * s, -a * s.clamp(1 - LOW, 1 + HIGH)))
    return torch.stack(losses).sum()


def slope_of(function, x, at, step=1e-6):
    up, down = x.clone(), x.clone()
    up[at] += step
    down[at] -= step
    return (function(up) - function(down)).item() / (2 * step)


def gradient(function, x):
    x = x.clone().requires_grad_()
    function(x).backward()
    return x.grad


def test_gspo_has_value_and_gradient_of_the_objective_of_whole_responses():
    new, old, sampled = made()
    ours = total("gspo", new, old, sampled)
    assert ours.item() == pytest.approx(of_sequences(new, old, sampled).item(), abs=1e-9)
    found = gradient(lambda x: total("gspo", x, old, sampled), new)
    assert found.tolist() == pytest.approx(gradient(lambda x: of_sequences(x, old, sampled), new).tolist(), abs=1e-9)
    assert (found == 0).any()
    assert (found != 0).any()


@pytest.mark.parametrize("name", ["ppo", "gspo"])
def test_a_clipped_surrogate_has_the_gradient_of_finite_differences(name):
    new, old, sampled = made(seed=1)
    found = gradient(lambda x: total(name, x, old, sampled), new)
    for at in range(len(new)):
        assert found[at].item() == pytest.approx(slope_of(lambda x: total(name, x, old, sampled), new, at), abs=1e-6)


def test_cispo_weighs_the_log_prob_by_a_ratio_without_gradient():
    new, old, sampled = made(seed=2)
    weights = torch.tensor([min(math.exp(n - o), 1 + HIGH) for n, o in zip(new.tolist(), old.tolist(), strict=True)])

    def frozen(x):
        return (-weights * sampled.advantages * x).sum()

    assert total("cispo", new, old, sampled).item() == pytest.approx(frozen(new).item(), abs=1e-6)
    found = gradient(lambda x: total("cispo", x, old, sampled), new)
    for at in range(len(new)):
        assert found[at].item() == pytest.approx(slope_of(frozen, new, at), abs=1e-6)


def test_what_a_clip_has_decided_keeps_its_gradient_under_cispo_alone():
    new, old, sampled = made()
    high = torch.exp(new - old) > 1 + HIGH
    good = high & (sampled.advantages > 0)
    assert good.any()
    found = {name: gradient(lambda x, n=name: total(n, x, old, sampled), new)[good] for name in ("ppo", "cispo")}
    assert found["ppo"].tolist() == [0.0] * int(good.sum())
    assert found["cispo"].tolist() == pytest.approx((-(1 + HIGH) * sampled.advantages[good]).tolist())


def test_cispo_has_no_lower_bound():
    new, old, sampled = made()
    assert total("cispo", new, old, sampled, low=0.0).item() == total("cispo", new, old, sampled, low=0.9).item()
    assert (torch.exp(new - old) < 1 - LOW).any()


def test_with_one_token_a_response_gspo_is_ppo():
    new, old, sampled = made()
    single = Sampled(sampled.engine, sampled.advantages, torch.arange(len(new)), torch.zeros(len(new)).bool(), len(new))
    for at in (0, 1):
        ours, ppo = (LOSSES[n](new, old, single, low=LOW, high=HIGH)[at] for n in ("gspo", "ppo"))
        assert torch.allclose(ours.double(), ppo.double(), atol=1e-12)


def test_under_gspo_each_token_keeps_its_own_advantage():
    """The form for tokens: the value of the ratio is that of the response, the gradient that of the token."""
    new, old, sampled = made(seed=3)
    advantages = torch.linspace(-1, 1, len(new), dtype=torch.float64)
    varied = Sampled(sampled.engine, advantages, sampled.owners, sampled.landed, sampled.responses)
    found = gradient(lambda x: total("gspo", x, old, varied, low=0.9, high=9.0), new)
    means = torch.stack([(new - old)[sampled.owners == k].mean() for k in range(len(LENGTHS))])
    assert torch.allclose(found, -advantages * means.exp()[sampled.owners], atol=1e-9)


def test_a_clip_counts_the_tokens_that_it_decided():
    new, old, sampled = made()
    ratio, decided = (new - old).exp(), {}
    for name in LOSSES:
        loss = token_loss(new, sampled, LossConfig(loss=name, clip_low=LOW, clip_high=HIGH), old=old, first=False)
        decided[name] = int(loss.statistics[0].sums["clip_fraction"])
    good = sampled.advantages > 0
    assert decided["pg"] == 0
    assert decided["ppo"] == int(((ratio > 1 + HIGH) & good).sum() + ((ratio < 1 - LOW) & ~good).sum())
    assert decided["cispo"] == int((ratio > 1 + HIGH).sum())
    assert decided["gspo"] == 1 + 7 + 5  # the responses that went too far to where they were pushed


def test_cispo_around_the_policy_that_sampled_is_the_plain_gradient_with_truncated_weights():
    """ScaleRL's form of it: one ratio to the engine's policy, cut."""
    new, _, sampled = made(seed=4)
    cispo = LossConfig(loss="cispo", correction="none", clip_high=HIGH)
    scale_rl = LossConfig(loss="pg", correction="tis", correction_bound=1 + HIGH)
    first = gradient(lambda x: token_loss(x, sampled, cispo, old=sampled.engine, first=False).total, new)
    second = gradient(lambda x: token_loss(x, sampled, scale_rl, first=False).total, new)
    assert torch.allclose(first, second, atol=1e-12)
    assert (torch.exp(new - sampled.engine) > 1 + HIGH).any()


@pytest.mark.parametrize(("name", "low", "high"), [("ppo", 0.2, 0.28), ("cispo", 1.0, 4.0), ("gspo", 3e-4, 4e-4)])
def test_bounds_that_are_not_given_are_the_published_ones(name, low, high):
    new, old, sampled = made()
    far = old + 2 * (new - old) * (4 if name == "cispo" else 1)
    ours = LOSSES[name](far, old, sampled, low=None, high=None)
    assert [x.tolist() for x in ours] == [x.tolist() for x in LOSSES[name](far, old, sampled, low=low, high=high)]
    assert ours[1].any()
    assert not ours[1].all()
    assert (LearnConfig().clip_low, LearnConfig().clip_high) == (None, None)


def test_every_choice_of_the_field_is_a_loss_of_its_own():
    assert set(choices(get_type_hints(LearnConfig)["loss"])) == set(LOSSES)
    new, old, sampled = made()
    found = [gradient(lambda x, n=name: total(n, x, old, sampled), new).tolist() for name in LOSSES]
    assert all(one != other for one, other in combinations(found, 2))


MINE = """
import torch

def my_loss(new, anchor, sampled, low, high):
    return -sampled.advantages * new * (1 + low + high), torch.zeros_like(new, dtype=torch.bool)

def five(new, anchor, sampled, low):
    return my_loss(new, anchor, sampled, low, 1.0)

def raises(new, anchor, sampled, low, high):
    return new.nothing

def scalar(new, anchor, sampled, low, high):
    return new.sum()

def half(new, anchor, sampled, low, high):
    return new[:2], new[:2] > 0

def frozen(new, anchor, sampled, low, high):
    return new.detach(), new > 0
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "losses_of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_function_of_the_user_is_a_loss_like_the_others(mine):
    new, old, sampled = made()
    cfg = LossConfig(loss="losses_of_mine:my_loss", correction="none", clip_low=0.5)
    found = gradient(lambda x: token_loss(x, sampled, cfg, old=old, first=False).total, new)
    assert found.tolist() == pytest.approx((-sampled.advantages * 1.78).tolist())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("five", r"cannot be called with 5 arguments \(too many .*write `def five\(new, anchor, sampled, low, high\)`"),
        ("raises", r"cannot be used \(AttributeError: .*nothing"),
        ("scalar", r"cannot be used \(TypeError: "),
        ("half", r"cannot be used \(ValueError: losses: \[2\] of torch.float32, and not \[3\]\)"),
        ("frozen", r"cannot be used \(ValueError: losses have no gradient\)"),
    ],
)
def test_a_loss_of_the_user_that_cannot_be_used_is_refused_in_one_line(mine, name, says):
    with pytest.raises(ConfigError, match=rf"^learn\.loss='losses_of_mine:{name}': .*{says}.*PolicyLoss$"):
        policy_loss(f"losses_of_mine:{name}")


def test_a_long_response_is_summed_in_float64():
    count = 100_000
    old = torch.full((count,), -1.0)
    new = old + torch.linspace(-3.0, 3.0, count) + 2e-4
    no = torch.zeros(count)
    losses, _ = LOSSES["gspo"](new, old, Sampled(old, no - 1.0, no.long(), no.bool(), 1), low=None, high=None)
    mean = math.fsum((new.double() - old.double()).tolist()) / count
    assert losses[0].item() == pytest.approx(math.exp(mean), abs=1e-6)
