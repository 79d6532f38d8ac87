"""Each loss against its paper's formula in float64, and its gradient against finite differences."""

from __future__ import annotations

import math
import random

import pytest
import torch

from overlap.config.learn import LearnConfig
from overlap.core.errors import ConfigError
from overlap.learner.correction import Sampled
from overlap.learner.losses import LOSSES, policy_loss, token_loss

LENGTHS = (1, 7, 3, 12, 5)
LOW, HIGH = 0.08, 0.09


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


def gradient(function, x):
    x = x.clone().requires_grad_()
    function(x).backward()
    return x.grad


def test_under_gspo_each_token_keeps_its_own_advantage():
    """The form for tokens: the value of the ratio is that of the response, the gradient that of the token."""
    new, old, sampled = made(seed=3)
    advantages = torch.linspace(-1, 1, len(new), dtype=torch.float64)
    varied = Sampled(sampled.engine, advantages, sampled.owners, sampled.landed, sampled.responses)
    found = gradient(lambda x: total("gspo", x, old, varied, low=0.9, high=9.0), new)
    means = torch.stack([(new - old)[sampled.owners == k].mean() for k in range(len(LENGTHS))])
    assert torch.allclose(found, -advantages * means.exp()[sampled.owners], atol=1e-9)


def by_eq_5(ratio, advantage, bound):
    """The objective of Ye et al. 2020, eq. 5, of one token: PPO's, and for a bad one no less than c A."""
    clip = min(max(ratio, 1 - LOW), 1 + HIGH)
    plain = min(ratio * advantage, clip * advantage)
    return max(plain, bound * advantage) if advantage < 0 else plain


@pytest.mark.promise("losses")
@pytest.mark.parametrize("bound", [1.05, 1.2, 3.0])
@pytest.mark.parametrize("first", [True, False])
def test_dual_clip_is_its_papers_formula_and_leaves_a_bounded_token_without_gradient(bound, first):
    new, old, sampled = made(seed=5)
    new = new + 1.2 * (torch.arange(len(new)) % 4 == 0)  # some are far likelier, also among the bad ones
    cfg = LearnConfig(dual_clip=bound, clip_low=LOW, clip_high=HIGH, correction="none")
    before = None if first else old
    anchors = new if first else old
    rows = list(zip((new - anchors).exp().tolist(), sampled.advantages.tolist(), strict=True))
    losses = [-by_eq_5(ratio, advantage, bound) for ratio, advantage in rows]
    slopes = [
        -ratio * advantage if loss == -ratio * advantage else 0.0
        for (ratio, advantage), loss in zip(rows, losses, strict=True)
    ]
    found = token_loss(new, sampled, cfg, old=before, first=first)
    assert found.total.item() == pytest.approx(math.fsum(losses), abs=1e-9)
    slope = gradient(lambda x: token_loss(x, sampled, cfg, old=before, first=first).total, new)
    assert slope.tolist() == pytest.approx(slopes, abs=1e-9)
    bounded = sum(advantage < 0 and ratio > bound for ratio, advantage in rows)
    assert (bounded > 0) is not first, "in the first update of a step all ratios are 1"
    plain = LearnConfig(clip_low=LOW, clip_high=HIGH, correction="none")
    clips = [
        token_loss(new, sampled, c, old=before, first=first).statistics[0].sums["clip_fraction"] for c in (cfg, plain)
    ]
    assert clips[0] - clips[1] == bounded


def test_a_dual_clip_is_off_unless_it_is_asked_for_and_belongs_to_ppo():
    assert LearnConfig().dual_clip is None
    for name in ("pg", "cispo", "gspo"):
        with pytest.raises(ConfigError, match=r"^learn\.dual_clip=3.0: it bounds the ratio of ppo"):
            LearnConfig(loss=name, dual_clip=3.0)
    with pytest.raises(ConfigError, match=r"^learn\.dual_clip=1: use a number above 1"):
        LearnConfig(dual_clip=1)


@pytest.mark.promise("losses")
@pytest.mark.parametrize(("name", "low", "high"), [("ppo", 0.2, 0.28), ("cispo", 1.0, 4.0), ("gspo", 3e-4, 4e-4)])
def test_bounds_that_are_not_given_are_the_published_ones(name, low, high):
    new, old, sampled = made()
    far = old + 2 * (new - old) * (4 if name == "cispo" else 1)
    ours = LOSSES[name](far, old, sampled, low=None, high=None)
    assert [x.tolist() for x in ours] == [x.tolist() for x in LOSSES[name](far, old, sampled, low=low, high=high)]
    assert ours[1].any()
    assert not ours[1].all()
    assert (LearnConfig().clip_low, LearnConfig().clip_high) == (None, None)


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


@pytest.mark.promise("own-functions")
def test_a_function_of_the_user_is_a_loss_like_the_others(mine):
    new, old, sampled = made()
    cfg = LearnConfig(loss="losses_of_mine:my_loss", correction="none", clip_low=0.5)
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
