"""What a step says of its tokens, by hand, and the same for every split over micro-batches and ranks."""

from __future__ import annotations

import math
import random
from array import array

import pytest
import torch

from overlap.config.learn import LearnConfig
from overlap.learner.correction import Sampled
from overlap.learner.losses import token_loss
from overlap.learner.micro_batch import PromptGroup, Response, SplitConfig, mini_batches
from overlap.learner.statistics import METRICS, Tally
from overlap.learner.tensors import to_tensors

SPLITS = [SplitConfig(1, *split, 64) for split in ((1, 10**6), (1, 1), (1, 40), (2, 60), (3, 1))]


def some_groups(seed=0):
    """Every token has an id of its own, so that its log-prob by the learner can be looked up."""
    rng = random.Random(seed)
    ids = iter(range(10**6))

    def response():
        tokens = array("i", [next(ids) for _ in range(rng.randint(1, 15))])
        logprobs = array("f", [rng.uniform(-3.0, -0.2) for _ in tokens])
        return Response(tokens, logprobs, rng.choice([-1.0, 0.5]), rng.randint(0, len(tokens)))

    return [
        PromptGroup(array("i", [next(ids)] * rng.randint(1, 9)), tuple(response() for _ in range(5))) for _ in range(4)
    ]


def learner_logprobs(groups, seed=1, above=0.0):
    """Old and new log-prob of each token, near the engine's but for what they are ``above`` it."""
    rng = random.Random(seed)
    found = {}
    for response in (r for g in groups for r in g.responses):
        for token, engine in zip(response.tokens, response.logprobs, strict=True):
            old = engine + above + rng.gauss(0.0, 0.25)
            found[token] = (old, old + rng.gauss(0.0, 0.2))
    return found


def told(groups, split, cfg, above=0.0):
    """Metrics as the ranks would tell them together, and each token's gradient; sums and maxima are added here."""
    lookup = learner_logprobs(groups, above=above)
    (mini,) = mini_batches(groups, split)
    whole, gradients = Tally(), {}
    for rank in mini.ranks:
        mine = Tally()
        for micro in (m for m in rank if m.counts):
            t = to_tensors(micro)
            old, new = torch.tensor([lookup[token] for token in t.targets.tolist()]).T
            new.requires_grad_()
            loss = token_loss(new, t.sampled, cfg, old=old, first=False, reference=old, entropy=-new)
            for found in loss.statistics:
                mine.add(found)
            (slope,) = torch.autograd.grad(loss.total, new)
            gradients |= dict(zip(t.targets.tolist(), slope.tolist(), strict=True))
        whole.sums += mine.sums
        whole.ratio_counts += mine.ratio_counts
        whole.maxima = whole.maxima.maximum(mine.maxima)
        whole.seen |= mine.seen
    return whole.metrics(mini.counted), gradients


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ppo", "tis"), ("pg", "mis"), ("cispo", "seq_mis"), ("gspo", "decoupled"), ("pg", "dppo"), ("ppo", "none"),
        ("gspo", "seq_mis"),
    ],
)  # fmt: skip
def test_no_split_changes_what_is_told(name, kind, bounded):
    clip = {"clip_low": 0.09, "clip_high": 0.09}
    bounded(name, {"dppo": 0.05}.get(name, 1.3))
    cfg = LearnConfig(correction=name, loss=kind, kl_coef=0.1, entropy_coef=0.1, **clip)
    groups = some_groups()
    (first, slopes), *others = (told(groups, split, cfg) for split in SPLITS)
    assert first.keys() == set(METRICS) - ({"update_kl"} if kind == "pg" else set())
    assert first["clip_fraction"] > 0 or kind == "pg"
    for other, gradients in others:
        assert other == pytest.approx(first, rel=1e-6)
        assert gradients == pytest.approx(slopes, rel=1e-5)


def slow(groups):
    """(old, new, engine, fresh already) of each token, response by response."""
    lookup = learner_logprobs(groups)
    return [
        [(*lookup[t], engine, i >= r.fresh > 0) for i, (t, engine) in enumerate(zip(r.tokens, r.logprobs, strict=True))]
        for r in (r for g in groups for r in g.responses)
    ]


def test_what_is_told_is_what_counting_one_by_one_gives(bounded):
    bounded("seq_mis", 1.3)
    groups = some_groups(seed=3)
    metrics, _ = told(groups, SPLITS[3], LearnConfig(correction="seq_mis"))
    rows = slow(groups)
    tokens = [token for row in rows for token in row]
    ratios = [math.exp(old - engine) for old, _, engine, _ in tokens]
    whole = [math.exp(sum(old - engine for old, _, engine, _ in row)) for row in rows]
    weights = [ratio if ratio <= 1.3 else 0.0 for ratio, row in zip(whole, rows, strict=True) for _ in row]
    gaps = [abs(old - engine) for old, _, engine, landed in tokens if landed]
    ordered, count = sorted(ratios), len(tokens)
    expected = {
        "ratio_mean": sum(ratios) / count,
        "ratio_max": max(ratios),
        "ratio_max_logdiff": max(abs(math.log(r)) for r in ratios),
        "ratio_mean_abs_logdiff": sum(abs(math.log(r)) for r in ratios) / count,
        "ratio_kl": sum(r - math.log(r) - 1 for r in ratios) / count,
        "update_kl": sum(math.exp(n - o) - (n - o) - 1 for o, n, _, _ in tokens) / count,
        "entropy": -sum(new for _, new, _, _ in tokens) / count,
        "is_capped_fraction": 0.0,
        "is_masked_fraction": weights.count(0.0) / count,
        "is_masked_responses_fraction": sum(ratio > 1.3 for ratio in whole) / len(rows),
        "is_effective_fraction": sum(weights) ** 2 / (count * sum(w * w for w in weights)),
        "landing_gap_mean": sum(gaps) / len(gaps),
        "landing_gap_max": max(gaps),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    for name, q in (("ratio_p01", 0.01), ("ratio_p50", 0.5), ("ratio_p99", 0.99)):
        exact = ordered[max(0, math.ceil(q * count) - 1)]
        assert metrics[name] == pytest.approx(exact, rel=1.001 * 5e-4), name


def test_where_no_token_landed_behind_an_older_one_there_is_no_gap():
    no, tally = torch.zeros(2), Tally()
    sampled = Sampled(no - 1.0, no + 1.0, no.long(), no.bool(), 1)
    for found in token_loss(no - 2.0, sampled, LearnConfig()).statistics:
        tally.add(found)
    metrics = tally.metrics(2)
    assert math.isnan(metrics["landing_gap_mean"])
    assert math.isnan(metrics["landing_gap_max"])


def test_later_updates_without_the_policy_before_the_step_do_not_measure_the_landing():
    """The learner has moved on, and would count its own step as the engine's error."""
    no = torch.zeros(2)
    sampled = Sampled(no - 1.0, no + 1.0, no.long(), torch.ones(2).bool(), 1)
    pg = LearnConfig(loss="pg")
    told_of = [{name for s in token_loss(no - 2.0, sampled, pg, first=f).statistics for name in s.sums} for f in (1, 0)]
    assert "landing_gap" in told_of[0]
    assert "landing_gap" not in told_of[1]


def test_all_masked_is_no_sample_at_all(bounded):
    bounded("seq_mis", 1 + 1e-6)
    metrics, _ = told(some_groups(), SPLITS[0], LearnConfig(correction="seq_mis"), above=1.0)
    assert (metrics["is_effective_fraction"], metrics["is_masked_fraction"], metrics["loss"]) == (0, 1, 0)
