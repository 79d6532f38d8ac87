"""Losses and corrections against a slow version of their formulas, in Python's float64, response by response."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from overlap.config.learn import LearnConfig
from overlap.core.errors import ConfigError
from overlap.learner.correction import CORRECTIONS, Sampled, correction
from overlap.learner.losses import LOSSES, policy_loss, token_loss

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


def by_eq_5(ratio, advantage, bound):
    """The objective of Ye et al. 2020, eq. 5, of one token: PPO's, and for a bad one no less than c A."""
    clip = min(max(ratio, 1 - CLIP["clip_low"]), 1 + CLIP["clip_high"])
    plain = min(ratio * advantage, clip * advantage)
    return max(plain, bound * advantage) if advantage < 0 else plain


@pytest.mark.promise("losses")
@pytest.mark.parametrize("bound", [1.05, 1.2, 3.0])
@pytest.mark.parametrize("first", [True, False])
def test_dual_clip_is_its_papers_formula_and_leaves_a_bounded_token_without_gradient(bound, first):
    old, new, sampled = tensors(responses(seed=5))
    new = (new + 1.2 * (torch.arange(len(new)) % 4 == 0)).requires_grad_()  # some are far likelier
    cfg = LearnConfig(dual_clip=bound, correction="none", **CLIP)
    before = None if first else old
    anchors = new if first else old
    rows = list(zip((new - anchors).detach().exp().tolist(), sampled.advantages.tolist(), strict=True))
    losses = [-by_eq_5(ratio, advantage, bound) for ratio, advantage in rows]
    slopes = [
        -ratio * advantage if loss == -ratio * advantage else 0.0
        for (ratio, advantage), loss in zip(rows, losses, strict=True)
    ]
    found = token_loss(new, sampled, cfg, old=before, first=first)
    assert found.total.item() == pytest.approx(math.fsum(losses), abs=1e-9)
    found.total.backward()
    assert new.grad.tolist() == pytest.approx(slopes, abs=1e-9)
    bounded = sum(advantage < 0 and ratio > bound for ratio, advantage in rows)
    assert (bounded > 0) is not first, "in the first update of a step all ratios are 1"
    plain = LearnConfig(correction="none", **CLIP)
    clips = [
        token_loss(new, sampled, c, old=before, first=first).statistics[0].sums["clip_fraction"] for c in (cfg, plain)
    ]
    assert clips[0] - clips[1] == bounded


def test_under_gspo_each_token_keeps_its_own_advantage():
    """The form for tokens: the value of the ratio is that of the response, the gradient that of the token."""
    made = responses(seed=3)
    old, new, sampled = tensors(made)
    new.requires_grad_()
    varied = replace(sampled, advantages=torch.linspace(-1, 1, len(new), dtype=torch.float64))
    LOSSES["gspo"](new, old, varied, low=0.9, high=9.0)[0].sum().backward()
    means = torch.stack([(new - old)[sampled.owners == k].mean() for k in range(len(made))]).detach()
    assert torch.allclose(new.grad, -varied.advantages * means.exp()[sampled.owners], atol=1e-9)


def test_a_response_of_many_tokens_is_summed_in_float64():
    count = 100_000
    engine, no = torch.full((count,), -1.0), torch.zeros(count)
    anchor = engine + torch.linspace(-3.0, 3.0, count) + 5e-5
    anchor[-1] += 0.5
    sampled = Sampled(engine, no - 1.0, no.long(), no.bool(), 1)
    whole = math.fsum((anchor - engine).tolist())
    assert CORRECTIONS["seq_mis"](anchor, sampled, 1e12).values[0].item() == pytest.approx(math.exp(whole), rel=1e-6)
    assert LOSSES["gspo"](anchor, engine, sampled)[0][0].item() == pytest.approx(math.exp(whole / count), abs=1e-6)


@pytest.mark.promise("losses")
@pytest.mark.parametrize("name", CORRECTIONS)
def test_without_a_bound_each_scheme_has_its_published_one(name):
    old, _, sampled = tensors(responses(seed=3))
    published = {"decoupled": 5.0, "dppo": 0.2}.get(name, 2.0)
    assert torch.equal(CORRECTIONS[name](old, sampled).values, CORRECTIONS[name](old, sampled, published).values)


@pytest.mark.promise("losses")
@pytest.mark.parametrize(("name", "low", "high"), [("ppo", 0.2, 0.28), ("cispo", 1.0, 4.0), ("gspo", 3e-4, 4e-4)])
def test_bounds_that_are_not_given_are_the_published_ones(name, low, high):
    old, new, sampled = tensors(responses())
    far = old + 5 * (old - new)
    ours = LOSSES[name](far, old, sampled)
    assert [x.tolist() for x in ours] == [x.tolist() for x in LOSSES[name](far, old, sampled, low=low, high=high)]
    assert ours[1].any()
    assert not ours[1].all()


MINE = """
import torch
from overlap.learner.correction import Weights

def my_loss(new, anchor, sampled, low, high):
    return -sampled.advantages * new * (1 + low + high), torch.zeros_like(new, dtype=torch.bool)

def five(new, anchor, sampled, low):
    return my_loss(new, anchor, sampled, low, 1.0)

def raises(new, anchor, sampled, low, high):
    return new.nothing

def scalar(new, anchor, sampled, low, high):
    return 1.0, new > 0

def frozen(new, anchor, sampled, low, high):
    return new.detach(), new > 0

def my_correction(anchor, sampled, bound):
    near = (anchor - sampled.engine).abs() <= bound
    return Weights(near.to(anchor.dtype), ~near, ~near)

def half(anchor, sampled, bound):
    return Weights(anchor[:1], anchor > 0, anchor > 0)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "functions_of_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.promise("own-functions")
def test_a_function_of_the_user_is_a_loss_or_a_correction_like_the_others(mine):
    old, new, sampled = tensors(responses())
    new.requires_grad_()
    cfg = LearnConfig(loss="functions_of_mine:my_loss", correction="none", clip_low=0.5)
    token_loss(new, sampled, cfg, old=old, first=False).total.backward()
    assert new.grad.tolist() == pytest.approx((-sampled.advantages * 1.78).tolist())
    near = correction("functions_of_mine:my_correction")(old, sampled, 0.1).values
    assert torch.equal(near, ((old - sampled.engine).abs() <= 0.1).double())


@pytest.mark.parametrize(
    ("field", "name", "says"),
    [
        ("loss", "five", r"cannot be called with 5 arguments .*write `def five\(new, anchor, sampled, low, high\)`"),
        ("loss", "raises", r"cannot be used \(AttributeError: .*nothing"),
        ("loss", "scalar", r"cannot be used \(TypeError: losses: float, and not a tensor\)"),
        ("loss", "frozen", r"cannot be used \(ValueError: losses have no gradient\)"),
        ("correction", "half", r"cannot be used \(ValueError: Weights.values: \[1\] of torch.float32, and not \[3\]\)"),
    ],
)
def test_a_function_of_the_user_that_cannot_be_used_is_refused_in_one_line(mine, field, name, says):
    use = {"loss": policy_loss, "correction": correction}[field]
    protocol = {"loss": "PolicyLoss", "correction": "TokenCorrection"}[field]
    with pytest.raises(ConfigError, match=rf"^learn\.{field}='functions_of_mine:{name}': .*{says}.*{protocol}$"):
        use(f"functions_of_mine:{name}")
