"""From groups to micro-batches: what is in the loss, who computes it, and where each token is predicted."""

from __future__ import annotations

import math
import random
from array import array
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from responses import response

from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.core.errors import EngineError
from overlap.learner.micro_batch import (
    MicroBatch,
    PromptGroup,
    SplitConfig,
    flatten,
    make_rows,
    mini_batches,
)
from overlap.learner.tensors import to_tensors

PROMPT = Prompt("p", (1, 2, 3))


def scored(tokens, finish="stop", reward=1.0, **changes):
    logprobs, spans = tuple(-0.5 * i for i in range(len(tokens))), (VersionSpan(0, 0, len(tokens)),)
    made = Trajectory(Request(0, 0, PROMPT), tuple(tokens), logprobs, "", finish, spans, 0.0, 1.0)
    return Scored(replace(made, **changes), reward)


def batch(*samples, version=0):
    return Batch(version + 1, version, (Group(0, PROMPT, samples, tuple(float(i) for i in range(len(samples)))),))


def group(prompt, *lengths):
    return PromptGroup(array("i", range(prompt)), tuple(response(range(n)) for n in lengths))


groups_strategy = st.lists(
    st.builds(lambda p, r: group(p, *r), st.integers(1, 20), st.lists(st.integers(1, 30), min_size=1, max_size=6)),
    min_size=1, max_size=8,
)  # fmt: skip
split_strategy = st.builds(
    SplitConfig, updates=st.integers(1, 4), ranks=st.integers(1, 3), micro_batch_tokens=st.integers(50, 200),
    hidden=st.just(16), padded=st.booleans(),
)  # fmt: skip


ENDED, CUT = scored([5, 6, 7]), scored([5, 6, 7], "length")
"""As many tokens: what tells them apart is how the engine says that they ended."""


@pytest.mark.promise("loss-mask")
@pytest.mark.parametrize(
    ("truncated", "samples", "kept"),
    [
        ("mask", [scored([5, 6]), scored([7])], [([5, 6], 0.0, False, 2), ([7], 1.0, False, 1)]),
        ("mask", [scored([5]), scored([6], reward=None), scored([])], [([5], 0.0, False, 1)]),
        ("mask", [scored([5], reward=None)], []),
        ("mask", [ENDED, CUT], [([5, 6, 7], 0.0, False, 3)]),
        ("zero", [ENDED, CUT], [([5, 6, 7], 0.0, False, 3), ([5, 6, 7], 1.0, False, 3)]),
        ("bootstrap", [ENDED, CUT], [([5, 6, 7], 0.0, False, 3), ([5, 6, 7], 0.0, True, 2)]),
        ("mask", [scored([5]), scored([6], "abort")], [([5], 0.0, False, 1)]),
        ("zero", [scored([5]), scored([6], "abort")], [([5], 0.0, False, 1), ([6], 1.0, False, 1)]),
        ("mask", [CUT], []),
        ("bootstrap", [scored([6], "length")], []),  # none is left to learn from
    ],
)
def test_the_loss_has_the_responses_that_were_scored_and_were_not_cut_off_or_as_is_asked_for(truncated, samples, kept):
    groups = flatten(batch(*samples), truncated=truncated)
    assert len(groups) == bool(kept)
    found = [r for group in groups for r in group.responses]
    assert [(list(r.tokens), r.advantage, r.bootstraps, r.counted) for r in found] == kept
    assert [list(r.logprobs) for r in found] == [[-0.5 * i for i in range(len(r.tokens))] for r in found]
    assert all(list(group.prompt) == list(PROMPT.token_ids) for group in groups)


@pytest.mark.parametrize(
    ("spans", "fresh"),
    [
        ([(7, 0, 5)], 0),
        ([(5, 0, 2), (6, 2, 3), (7, 3, 5)], 3),
        ([(6, 0, 2), (7, 2, 3), (7, 3, 5)], 2),
        ([(5, 0, 2), (6, 2, 5)], 5),
        ([], 5),
    ],
)
def test_a_response_knows_its_first_token_by_the_version_that_is_trained(spans, fresh):
    made = scored([4, 5, 6, 7, 8], spans=tuple(VersionSpan(*span) for span in spans))
    assert flatten(batch(made, version=7))[0].responses[0].fresh == fresh


@pytest.mark.parametrize(
    ("logprobs", "says"),
    [
        ((0.0,), "2 tokens, 1 log-probs"),
        *[((-0.5, value), f"the engine's log-prob of token 1 is {value}") for value in (-math.inf, math.nan, math.inf)],
    ],
)
def test_log_probs_that_are_not_one_number_for_each_token_are_the_engines_fault(logprobs, says):
    with pytest.raises(EngineError, match=f"sample g0s0.* {says}"):
        flatten(batch(scored([5, 6], logprobs=logprobs)))


@pytest.mark.promise("loss-mask")
@given(groups_strategy, split_strategy)
@settings(max_examples=60, deadline=None)
def test_every_response_is_computed_once_and_the_normaliser_counts_all_its_tokens(groups, cfg):
    minis = mini_batches(groups, cfg)
    seen = [
        id(r)
        for m in minis
        for rank in m.ranks
        for micro in rank
        if micro.counts
        for row in micro.rows
        for r in row.responses
    ]
    assert sorted(seen) == sorted(id(r) for g in groups for r in g.responses)
    assert sum(m.counted for m in minis) == sum(len(r.tokens) for g in groups for r in g.responses)


@given(groups_strategy, split_strategy)
@settings(max_examples=60, deadline=None)
def test_all_ranks_make_the_same_number_of_passes_within_the_budget(groups, cfg):
    for mini in mini_batches(groups, cfg):
        assert len(mini.ranks) == cfg.ranks
        assert len({len(rank) for rank in mini.ranks}) == 1
        for micro in (micro for rank in mini.ranks for micro in rank):
            assert micro.tokens <= cfg.micro_batch_tokens or len(micro.rows) == 1
        assert 0.0 <= mini.padding < 1.0


@pytest.mark.parametrize(("groups", "updates", "counted"), [(5, 2, [14, 21]), (1, 4, [7])])
def test_mini_batches_hold_whole_groups_in_order_and_are_no_more_than_groups(groups, updates, counted):
    minis = mini_batches([group(2, 3, 4)] * groups, SplitConfig(updates, 1, 64, 16))
    assert [m.counted for m in minis] == counted


@pytest.mark.parametrize("padded", [True, False])
def test_each_counted_token_is_predicted_by_the_token_before_it(padded):

    rng = random.Random(0)
    fresh = iter(range(1000))
    made = [
        PromptGroup(
            array("i", [next(fresh) for _ in range(rng.randint(1, 6))]),
            tuple(response([next(fresh) for _ in range(n)], float(n), engine=float(n)) for n in (1, 3, 5)),
        )
        for _ in range(3)
    ]
    before = {}
    for g in made:
        for r in g.responses:
            before |= dict(zip(r.tokens, [g.prompt[-1], *r.tokens], strict=False))
    for micro in mini_batches(made, SplitConfig(1, 1, 40, 16, padded))[0].ranks[0]:
        t = to_tensors(micro)
        read = t.ids.flatten()[t.at].tolist()
        assert read == [before[token] for token in t.targets.tolist()]
        assert torch.equal(t.sampled.engine, t.sampled.advantages)
        assert len(t.targets) == sum(row.counted for row in micro.rows)


# --- episodes: rows of branches, in which only what was sampled is in the loss, once ----------------------------

MASK = b"\1\1\0\0\0\1\1"
"""Two turns of two tokens, with three of somebody else's between."""


def episode(sample: int, **changes: object) -> Trajectory:
    spans = (VersionSpan(4, 0, 2), VersionSpan(5, 5, 7))
    ids, logprobs = (10, 11, 90, 91, 92, 12, 13), (-0.1, -0.2, 0.0, 0.0, 0.0, -0.3, -0.4)
    made = Trajectory(Request(0, sample, PROMPT), ids, logprobs, "", "stop", spans, 0.0, 1.0, mask=MASK, turns=2)
    return replace(made, **changes)


def with_fork(sample: int, **changes: object) -> Trajectory:
    fork = replace(
        episode(sample), prompt_ids=(1, 2, 3, 10, 11, 95), token_ids=(14, 15, 16), logprobs=(-0.5, -0.6, -0.7),
        mask=b"", spans=(VersionSpan(4, 0, 3),),
    )  # fmt: skip
    return episode(sample, forks=(fork,), **changes)


def of_episodes(*trajectories: Trajectory, truncated: str = "mask") -> PromptGroup:
    samples = tuple(Scored(t, float(n)) for n, t in enumerate(trajectories))
    batch = Batch(1, 5, (Group(0, PROMPT, samples, tuple(float(n) - 0.5 for n in range(len(samples)))),))
    (found,) = flatten(batch, truncated=truncated)
    return found


@pytest.mark.promise("loss-mask")
def test_only_sampled_tokens_are_counted_and_a_fork_is_a_row_behind_its_own_prompt() -> None:
    found = of_episodes(with_fork(0), episode(1))
    assert [response.counted for response in found.responses] == [4, 3, 4]
    assert [response.advantage for response in found.responses] == [-0.5, -0.5, 0.5], "one for all of an episode"
    rows = make_rows(found, 1000)
    assert [(list(row.prompt), len(row.responses), row.counted) for row in rows] == [
        ([1, 2, 3], 2, 8),
        ([1, 2, 3, 10, 11, 95], 1, 3),
    ]
    (mini,) = mini_batches([found], SplitConfig(1, 2, 100, 64))
    assert mini.counted == 11


def test_the_tensors_have_the_sampled_tokens_alone_each_where_it_is_predicted() -> None:
    response = of_episodes(episode(0), episode(1)).responses[0]
    tensors = to_tensors(MicroBatch((PromptGroup(array("i", (1, 2, 3)), (response,)),)))
    assert tensors.ids.tolist() == [[1, 2, 3, 10, 11, 90, 91, 92, 12]]
    assert tensors.targets.tolist() == [10, 11, 12, 13]
    assert tensors.at.tolist() == [2, 3, 7, 8]
    assert tensors.sampled.engine.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert tensors.sampled.owners.tolist() == [0, 0, 0, 0]
    assert tensors.sampled.landed.tolist() == [False, False, True, True], "of version 5, which is trained"


def test_an_episode_that_was_cut_off_bootstraps_behind_its_last_sampled_token_but_one() -> None:
    found = of_episodes(with_fork(0, finish="length"), episode(1), truncated="bootstrap")
    cut, fork, whole = found.responses
    assert [cut.counted, fork.counted, whole.counted] == [3, 2, 4]
    assert (cut.advantage, fork.advantage, whole.advantage) == (0.0, 0.0, 0.5)
    tensors = to_tensors(MicroBatch((PromptGroup(array("i", (1, 2, 3)), (cut,)),)))
    assert tensors.targets.tolist() == [10, 11, 12]
    assert tensors.behind.tolist() == [8]


def test_a_truncated_episode_is_masked_with_its_forks() -> None:
    found = of_episodes(with_fork(0, finish="length"), episode(1))
    assert [response.counted for response in found.responses] == [4]
