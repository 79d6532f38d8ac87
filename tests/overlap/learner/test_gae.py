"""Advantages from a critic's values: reference cases by hand, a slow float64 version, and what must not matter."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.config.learn import CriticConfig
from overlap.learner.correction import Sampled
from overlap.learner.gae import credit, gae, whitened

EXACT = 1e-9


def by_the_sum(rewards, values, lam, behind):
    """A_t = sum over k of lambda^k d_{t+k}, in exact numbers."""
    ahead = [*values[1:], behind]
    deltas = [r + n - v for r, v, n in zip(rewards, values, ahead, strict=True)]
    return [sum(lam**k * d for k, d in enumerate(deltas[t:])) for t in range(len(values))]


numbers = st.floats(-2, 2)


@pytest.mark.promise("critic")
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=24), st.floats(0, 1), numbers)
@settings(max_examples=60, deadline=None)
def test_the_recursion_is_the_sum_of_the_temporal_differences(steps, lam, behind):
    rewards, values = ([Fraction(number) for number in column] for column in zip(*steps, strict=True))
    expected = by_the_sum(rewards, values, Fraction(lam), Fraction(behind))
    found = gae(*zip(*steps, strict=True), lam=lam, behind=behind)
    assert found == pytest.approx([float(number) for number in expected], abs=EXACT)


def micro(lengths, rewards, dtype=torch.float64):
    lengths = torch.tensor(lengths)
    owners = torch.arange(len(lengths)).repeat_interleave(lengths)
    advantages = torch.tensor(rewards, dtype=dtype)[owners]
    return Sampled(torch.zeros(len(owners)), advantages, owners, torch.zeros(len(owners)).bool(), len(lengths))


@pytest.mark.parametrize(("dtype", "exact"), [(torch.float64, EXACT), (torch.float32, 1e-5)])
def test_each_response_of_a_micro_batch_has_its_own_recursion(dtype, exact):
    sampled = micro([3, 1, 4], [1.0, 0.5, 0.0], dtype)
    values = torch.tensor([0.2, 0.4, 0.6, 0.9, 0.5, 0.5, 0.25, 0.75], dtype=dtype)
    behind = torch.tensor([0.0, 0.0, 0.5], dtype=dtype)
    found = credit(values, behind, sampled, CriticConfig(lambda_policy=0.95))
    third = gae([0.0] * 4, [0.5, 0.5, 0.25, 0.75], lam=0.95, behind=0.5)
    assert found.advantages.tolist() == pytest.approx([0.751, 0.58, 0.4, -0.4, *third], abs=exact)
    assert found.targets.tolist() == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5], abs=exact)
    assert found.advantages.dtype == found.targets.dtype == dtype


def test_whitening_takes_the_population_of_all_parts():
    whole = torch.tensor([-1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    expected = [-1.3416407864998738, -0.4472135954999579, 0.4472135954999579, 1.3416407864998738]
    assert whitened([whole])[0].tolist() == pytest.approx(expected, abs=EXACT)
    parts = whitened([whole[:1], whole[1:]])
    assert torch.cat(parts).tolist() == pytest.approx(expected, abs=EXACT)
    assert whitened([torch.full((3,), 0.3)])[0].tolist() == [0.0, 0.0, 0.0]
    assert whitened([]) == []
