"""The loss against a slow reference in plain Python, its gradient against finite differences."""

from __future__ import annotations

import math
import random

import pytest

torch = pytest.importorskip("torch")

from overlap.learner.correction import CORRECTIONS, Sampled, ratios  # noqa: E402
from overlap.learner.head import LogprobHead, _Logprobs  # noqa: E402
from overlap.learner.loss import LossConfig, token_loss  # noqa: E402
from overlap.learner.losses import LOSSES, clipped  # noqa: E402

CASES = [
    LossConfig(),
    LossConfig(correction="none"),
    LossConfig(clip_low=0.1, clip_high=0.3, kl_coef=0.2),
    LossConfig(entropy_coef=0.05, correction_bound=1.1),
    LossConfig(kl_coef=0.1, entropy_coef=0.01),
]


def slow_token_loss(new, old, engine, advantage, reference, entropy, cfg):
    """The formula of the module's docstring for one token, in Python floats."""
    ratio = math.exp(new - old)
    low, high = (cfg.clip_low, cfg.clip_high) if cfg.clip_low else (0.2, 0.28)
    clipped = min(max(ratio, 1 - low), 1 + high)
    weight = min(math.exp(old - engine), cfg.correction_bound or 2.0) if cfg.correction == "tis" else 1.0
    loss = weight * max(-advantage * ratio, -advantage * clipped)
    if cfg.kl_coef:
        loss += cfg.kl_coef * (math.exp(reference - new) - (reference - new) - 1)
    return loss - cfg.entropy_coef * entropy


def tokens(count, seed=0):
    rng = random.Random(seed)

    def column(low, high):
        return torch.tensor([rng.uniform(low, high) for _ in range(count)], dtype=torch.float64)

    old = column(-3, -0.1)
    return {
        "old": old,
        "new": old + column(-0.6, 0.6),
        "engine": old + column(-1, 1),
        "advantages": column(-2, 2),
        "reference": old + column(-0.5, 0.5),
        "entropy": column(0, 5),
    }


def one_response(engine, advantages):
    count = len(engine)
    return Sampled(engine, advantages, torch.zeros(count).long(), torch.zeros(count).bool(), 1)


def total(cfg, t, **replaced):
    t = t | replaced
    sampled = one_response(t["engine"], t["advantages"])
    return token_loss(
        t["new"], sampled, cfg, old=t["old"], first=False, reference=t["reference"], entropy=t["entropy"]
    ).total


@pytest.mark.parametrize("cfg", CASES)
def test_token_losses_are_those_of_the_slow_reference(cfg):
    t = tokens(200)
    rows = zip(
        *(t[name].tolist() for name in ("new", "old", "engine", "advantages", "reference", "entropy")), strict=True
    )
    expected = math.fsum(slow_token_loss(*row, cfg) for row in rows)
    assert total(cfg, t).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("cfg", CASES)
@pytest.mark.parametrize("name", ["new", "entropy"])
def test_gradient_is_that_of_finite_differences(cfg, name):
    t = tokens(12, seed=1)
    x = t[name].clone().requires_grad_()
    if cfg.entropy_coef or name == "new":
        total(cfg, t, **{name: x}).backward()
    step = 1e-6
    for i in range(len(x)):
        up, down = t[name].clone(), t[name].clone()
        up[i] += step
        down[i] -= step
        slope = (total(cfg, t, **{name: up}) - total(cfg, t, **{name: down})).item() / (2 * step)
        assert (x.grad[i].item() if x.grad is not None else 0.0) == pytest.approx(slope, abs=1e-6)


def test_the_clip_stops_what_a_good_token_can_gain():
    new = torch.tensor([0.5, 0.5], dtype=torch.float64, requires_grad=True)
    losses, decided = clipped(ratios(new), torch.tensor([1.0, 1.0], dtype=torch.float64), low=0.2, high=0.28)
    losses.sum().backward()
    assert decided.all()
    assert losses.tolist() == pytest.approx([-1.28, -1.28])
    assert new.grad.tolist() == [0.0, 0.0]


def test_the_clip_has_two_different_bounds():
    _, decided = clipped(torch.tensor([1.25, 0.75]), torch.tensor([1.0, -1.0]), low=0.2, high=0.28)
    assert decided.tolist() == [False, True]


def test_the_clip_never_softens_a_loss():
    # A bad token that became likelier, a good one that became less likely: the unclipped, larger loss counts.
    new = torch.tensor([1.0, -1.0], requires_grad=True)
    losses, decided = clipped(ratios(new), torch.tensor([-1.0, 1.0]), low=0.2, high=0.28)
    losses.sum().backward()
    assert not decided.any()
    assert losses.tolist() == pytest.approx([math.e, -1 / math.e], rel=1e-6)
    assert all(new.grad != 0)


def test_with_one_update_the_gradient_is_that_of_the_weighted_log_prob():
    t = tokens(50)
    new = t["new"].clone().requires_grad_()
    token_loss(new, one_response(t["engine"], t["advantages"]), LossConfig()).total.backward()
    weights = torch.exp(t["new"] - t["engine"]).clamp(max=2.0)
    assert torch.allclose(new.grad, -weights * t["advantages"])


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("kind", LOSSES)
def test_absurd_log_probs_give_finite_losses_and_gradients(name, kind):
    new = torch.tensor([-200.0, 0.0], requires_grad=True)
    far = torch.tensor([0.0, -300.0])
    cfg = LossConfig(correction=name, loss=kind, kl_coef=0.1)
    loss = token_loss(new, one_response(far, torch.tensor([1.0, -1.0])), cfg, old=far, first=False, reference=far)
    loss.total.backward()
    assert torch.isfinite(loss.total)
    assert torch.isfinite(new.grad).all()


@pytest.mark.parametrize("name", [name for name in CORRECTIONS if name != "dppo"])
def test_with_one_update_all_surrogates_take_the_same_step(name):
    t = tokens(50)
    sampled, found = one_response(t["engine"], t["advantages"]), []
    for kind in LOSSES:
        new = t["new"].clone().requires_grad_()
        token_loss(new, sampled, LossConfig(loss=kind, correction=name)).total.backward()
        found.append(new.grad.tolist())
    assert all(gradient == found[0] for gradient in found)


def test_in_later_updates_pg_alone_is_not_held_to_the_policy_before_the_step():
    t = tokens(50)
    sampled = one_response(t["engine"], t["advantages"])
    token_loss(t["new"], sampled, LossConfig(loss="pg"), first=False)
    for kind in ("ppo", "cispo", "gspo"):
        with pytest.raises(AssertionError, match=f"{kind} needs .* before the first update"):
            token_loss(t["new"], sampled, LossConfig(loss=kind), first=False)


def head(dtype=torch.float64, bias=False, temperature=0.7, vocab=17, hidden=5):
    torch.manual_seed(0)
    layer = torch.nn.Linear(hidden, vocab, bias=bias, dtype=dtype)
    return layer, LogprobHead(layer, temperature)


def by_autograd(layer, x, targets, temperature):
    logp = (torch.nn.functional.linear(x, layer.weight, layer.bias) / temperature).log_softmax(-1)
    return logp.gather(-1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_head_agrees_with_autograd_for_any_chunks(monkeypatch, bias, entropy, kept, temperature):
    monkeypatch.setattr("overlap.learner.head.CHUNK_BYTES", 4 * 17 * 3)
    monkeypatch.setattr("overlap.learner.head.BLOCK_BYTES", 1 << 30 if kept else 2 * 17 * 5)
    layer, mine = head(bias=bias, temperature=temperature)
    targets = torch.randint(0, 17, (11,))
    weights = torch.randn(2, 11, dtype=torch.float64)
    grads = []
    for compute in (lambda x: mine(x, targets, entropy), lambda x: by_autograd(layer, x, targets, temperature)):
        torch.manual_seed(1)
        x = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
        logprobs, entropies = compute(x)
        layer.zero_grad()
        (logprobs @ weights[0] + (entropies @ weights[1] if entropy else 0.0)).backward()
        grads.append([logprobs, x.grad, *[p.grad.clone() for p in layer.parameters()]])
        grads[-1] += [entropies] if entropy else []
    for ours, theirs in zip(*grads, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_the_gradient_of_the_head_is_that_of_finite_differences():
    layer, _ = head()
    targets = torch.tensor([0, 16, 3])
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def both(x, weight):
        return torch.cat(_Logprobs.apply(x, weight, None, targets, 0.7, True))

    assert torch.autograd.gradcheck(both, (x, layer.weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_gives_float32_log_probs_and_leaves_its_inputs_alone(dtype):
    _, mine = head(dtype=dtype)
    x = torch.randn(4, 5, dtype=dtype, requires_grad=True)
    before = x.detach().clone()
    logprobs, entropies = mine(x, torch.arange(4))
    logprobs.sum().backward()
    assert logprobs.dtype == torch.float32
    assert torch.equal(x.detach(), before)
    assert not entropies.any()
    assert x.grad.dtype == dtype
