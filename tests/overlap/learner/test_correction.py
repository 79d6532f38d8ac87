"""Every correction against a slow version of its formula, in Python's float64, one response after the other."""

from __future__ import annotations

import math
import random

import pytest
import torch

from overlap.config.learn import LearnConfig
from overlap.core.errors import ConfigError
from overlap.learner.correction import CORRECTIONS, Sampled, correction
from overlap.learner.losses import LOSSES, token_loss

CAP, BOUND = 1.6, 0.15
CLIP = {"clip_low": 0.05, "clip_high": 0.02}
KL, ENTROPY = 0.2, 0.05
PAIRS = [(c, k) for c in CORRECTIONS for k in LOSSES if (k == "pg" or c != "dppo") and (c, k) != ("decoupled", "pg")]
"""Corrections and losses that go together."""


def slow_weights(name, response):
    """Weights of one response, a list of tokens (anchor, engine, advantage), as the schemes' authors write them."""
    ratios = [math.exp(anchor - engine) for anchor, engine, _ in response]
    if name == "none":
        return [1.0 for _ in response]
    if name == "tis":
        return [min(ratio, CAP) for ratio in ratios]
    if name == "mis":
        return [ratio if 1 / CAP <= ratio <= CAP else 0.0 for ratio in ratios]
    if name == "seq_mis":
        whole = math.prod(ratios)
        return [whole if whole <= CAP else 0.0 for _ in response]
    if name == "decoupled":
        return [ratio if ratio <= CAP else 0.0 for ratio in ratios]
    assert name == "dppo"
    kept = []
    for ratio, (anchor, engine, advantage) in zip(ratios, response, strict=True):
        variation = abs(math.exp(anchor) - math.exp(engine))  # of "this token or another one"
        away = (advantage > 0 and ratio > 1) or (advantage < 0 and ratio < 1)
        kept.append(0.0 if away and variation > BOUND else ratio)
    return kept


def slow_token(kind, weight, new, ratio, advantage):
    """Loss of a token and its derivative in ``new``; ``ratio`` is its own, or under gspo that of its response."""
    if kind == "pg":
        return -weight * advantage, -weight * advantage
    if kind == "cispo":
        cut = min(ratio, 1 + CLIP["clip_high"])
        return -weight * cut * advantage * new, -weight * cut * advantage
    clipped = min(max(ratio, 1 - CLIP["clip_low"]), 1 + CLIP["clip_high"])
    if -advantage * ratio >= -advantage * clipped:
        return weight * -advantage * ratio, weight * -advantage * ratio
    return weight * -advantage * clipped, 0.0


def responses(seed=0, count=40):
    """Each a list of tokens (old, new, engine, advantage)."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        advantage, spread = rng.choice([-1.5, -0.3, 0.0, 0.7, 2.0]), rng.choice([0.01, 0.2, 1.2])
        rows = []
        for _ in range(rng.randint(1, 12)):
            old = rng.uniform(-2.5, -0.05)
            rows.append((old, old + rng.uniform(-0.6, 0.04), old + rng.uniform(-spread, min(spread, -old)), advantage))
        made.append(rows)
    return made


def tensors(made):
    old, new, engine, advantages = torch.tensor([token for rows in made for token in rows], dtype=torch.float64).T
    owners = torch.tensor([number for number, rows in enumerate(made) for _ in rows])
    landed = torch.zeros(len(old), dtype=torch.bool)
    return old, new, Sampled(engine, advantages, owners, landed, len(made))


def slow_loss(name, kind, made, *, first):
    """Loss and gradient [T] of all responses; ``first``: the update before which the anchor was computed. The reference
    policy is the one before the step, and the entropy of every token is 3.
    """
    loss, gradient = [], []
    for rows in made:
        anchors = [new if first or kind == "pg" else old for old, new, _, _ in rows]
        weights = slow_weights(name, [(a, engine, adv) for a, (_, _, engine, adv) in zip(anchors, rows, strict=True)])
        ratios = [math.exp(new - anchor) for anchor, (_, new, _, _) in zip(anchors, rows, strict=True)]
        if kind == "gspo":
            ratios = [math.prod(ratios) ** (1 / len(ratios))] * len(ratios)
        for ratio, weight, (old, new, _, advantage) in zip(ratios, weights, rows, strict=True):
            value, slope = slow_token(kind, weight, new, ratio, advantage)
            loss.append(value + KL * (math.exp(old - new) - (old - new) - 1) - ENTROPY * 3.0)
            gradient.append(slope + KL * (1 - math.exp(old - new)))
    return math.fsum(loss), gradient


def bound_of(name):
    return BOUND if name == "dppo" else CAP


@pytest.mark.promise("losses")
@pytest.mark.parametrize(("name", "kind"), PAIRS)
@pytest.mark.parametrize("first", [True, False])
def test_loss_and_gradient_are_those_of_the_slow_formula(name, kind, first, bounded):
    made = responses()
    old, new, sampled = tensors(made)
    new.requires_grad_()
    entropy = torch.full_like(old, 3.0).requires_grad_()
    bounded(name, bound_of(name))
    cfg = LearnConfig(correction=name, loss=kind, kl_coef=KL, entropy_coef=ENTROPY, **CLIP)
    before = None if first or kind == "pg" else old
    loss = token_loss(new, sampled, cfg, old=before, first=first, reference=old, entropy=entropy).total
    loss.backward()
    expected, gradient = slow_loss(name, kind, made, first=first)
    assert loss.item() == pytest.approx(expected, abs=1e-9)
    assert new.grad.tolist() == pytest.approx(gradient, abs=1e-9)
    assert entropy.grad.tolist() == pytest.approx([-ENTROPY] * len(old))


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_absurd_log_probs_give_finite_losses_and_gradients(name, kind):
    new, far = torch.tensor([-200.0, 0.0], requires_grad=True), torch.tensor([0.0, -300.0])
    no = torch.zeros(2)
    sampled = Sampled(far, torch.tensor([1.0, -1.0]), no.long(), no.bool(), 1)
    cfg = LearnConfig(correction=name, loss=kind, kl_coef=0.1)
    loss = token_loss(new, sampled, cfg, old=far, first=False, reference=far).total
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(new.grad).all()


def test_in_later_updates_pg_alone_is_not_held_to_the_policy_before_the_step():
    _, new, sampled = tensors(responses())
    token_loss(new, sampled, LearnConfig(loss="pg"), first=False)
    for kind in ("ppo", "cispo", "gspo"):
        with pytest.raises(AssertionError, match=f"{kind} needs .* before the first update"):
            token_loss(new, sampled, LearnConfig(loss=kind), first=False)


@pytest.mark.promise("losses")
@pytest.mark.parametrize("name", CORRECTIONS)
def test_weights_are_those_of_the_slow_formula_and_say_what_became_of_each_token(name):
    made = responses(seed=1)
    old, _, sampled = tensors(made)
    found = CORRECTIONS[name](old.requires_grad_(), sampled, bound_of(name))
    slow = [w for rows in made for w in slow_weights(name, [(o, engine, adv) for o, _, engine, adv in rows])]
    assert found.values.tolist() == pytest.approx(slow, abs=1e-9)
    assert not found.values.requires_grad
    assert found.masked.tolist() == [weight == 0.0 for weight in slow]
    assert found.capped.tolist() == [name == "tis" and weight == CAP for weight in slow]
    whole = found.masked if name in ("mis", "seq_mis", "decoupled", "dppo") else found.capped
    assert name == "none" or 0.05 < whole.double().mean() < 0.8  # the bounds are met from both sides


def test_a_rare_token_that_became_likely_weighs_20_at_most_under_dppo():
    """The mask bounds how far probabilities move, and no ratio of small ones."""
    probabilities = [(0.1, 1e-4, 1.0), (0.1, 0.006, 1.0), (0.1, 0.004, -1.0), (0.9, 1e-4, 1.0), (0.9, 1e-4, -1.0)]
    anchor, engine, advantages = torch.tensor(probabilities, dtype=torch.float64).T
    no = torch.zeros(5)
    weights = CORRECTIONS["dppo"](anchor.log(), Sampled(engine.log(), advantages, no.long(), no.bool(), 1), 0.2)
    assert weights.values.tolist() == pytest.approx([20.0, 0.1 / 0.006, 20.0, 0.0, 20.0], abs=1e-9)
    assert weights.capped.tolist() == [True, False, True, False, True]
    assert weights.masked.tolist() == [False, False, False, True, False]


def test_a_response_of_many_tokens_is_summed_in_float64():
    count = 100_000
    engine, no = torch.full((count,), -1.0), torch.zeros(count)
    anchor = engine + torch.linspace(-3.0, 3.0, count)
    anchor[-1] += 0.5
    whole = math.exp(math.fsum((anchor - engine).tolist()))
    weights = CORRECTIONS["seq_mis"](anchor, Sampled(engine, no, no.long(), no.bool(), 1), 3.0).values
    assert weights[0].item() == pytest.approx(whole, rel=1e-6)


@pytest.mark.promise("losses")
@pytest.mark.parametrize("name", CORRECTIONS)
def test_without_a_bound_each_scheme_has_its_published_one(name):
    old, _, sampled = tensors(responses(seed=3))
    published = {"decoupled": 5.0, "dppo": 0.2}.get(name, 2.0)
    assert torch.equal(CORRECTIONS[name](old, sampled).values, CORRECTIONS[name](old, sampled, published).values)


MINE = """
from overlap.learner.correction import Weights

def my_correction(anchor, sampled, bound):
    near = (anchor - sampled.engine).abs() <= bound
    return Weights(near.to(anchor.dtype), ~near, ~near)

def tensor(anchor, sampled, bound):
    return anchor

def half(anchor, sampled, bound):
    return Weights(anchor[:1], anchor > 0, anchor > 0)

def none(anchor):
    return anchor
"""


def test_a_function_of_the_user_is_a_correction_like_the_others(tmp_path, monkeypatch):
    (tmp_path / "corrections_of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    made = responses(seed=3)
    old, _, sampled = tensors(made)
    found = correction("corrections_of_mine:my_correction")(old, sampled, 0.1).values.tolist()
    assert found == [float(abs(o - engine) <= 0.1) for rows in made for o, _, engine, _ in rows]
    for name, says in (
        ("tensor", r"cannot be used \(TypeError: Weights.values: .*, and not a tensor\)"),
        ("half", r"cannot be used \(ValueError: Weights.values: \[1\] of torch.float32, and not \[3\]\)"),
        ("none", r"cannot be called with 3 arguments .*write `def none\(anchor, sampled, bound\)`"),
    ):
        with pytest.raises(ConfigError, match=rf"^learn\.correction='corrections_of_mine:{name}': .*{says}"):
            correction(f"corrections_of_mine:{name}")
