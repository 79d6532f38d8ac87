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
    PromptGroup,
    Response,
    SplitConfig,
    flatten,
    mini_batches,
)
from overlap.learner.tensors import to_tensors
from overlap.process.calls import decode_message, pack_call

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


def test_the_wire_of_the_ranks_keeps_what_is_fresh():
    groups = (PromptGroup(array("i", [1]), (Response(array("i", [2, 3]), array("f", [-1.0, -2.0]), 0.5, 1),)),)
    sent = pack_call("step", groups, 3)
    assert decode_message(sent.data[8:]).args == (groups, 3)


@pytest.mark.parametrize("padded", [True, False])
def test_tokens_belong_to_their_response_and_have_landed_behind_its_older_ones(padded):

    fresh = {1: 0, 2: 2, 3: 1, 5: 3}  # by length: all of it, none of it, the last two, the last two
    responses = [Response(array("i", [n] * n), array("f", [-1.0] * n), float(n), at) for n, at in fresh.items()]
    groups = [PromptGroup(array("i", [9]), tuple(responses)) for _ in range(2)]
    for micro in mini_batches(groups, SplitConfig(1, 1, 14, 16, padded))[0].ranks[0]:
        t = to_tensors(micro)
        lengths = [n for row in micro.rows for n in map(len, (r.tokens for r in row.responses))]
        assert t.sampled.responses == len(lengths)
        assert t.sampled.owners.tolist() == [number for number, n in enumerate(lengths) for _ in range(n)]
        expected = {1: [False], 2: [False, False], 3: [False, True, True], 5: [False, False, False, True, True]}
        assert t.sampled.landed.tolist() == [landed for n in lengths for landed in expected[n]]
        assert torch.equal(t.sampled.advantages, t.targets.float())


@pytest.mark.parametrize("padded", [True, False])
def test_the_last_token_of_a_response_that_bootstraps_is_read_before_and_not_learned(padded):

    cut = Response(array("i", [7, 8, 9]), array("f", [-1.0, -2.0, -3.0]), 0.0, 1, True)
    ended = Response(array("i", [4, 5]), array("f", [-4.0, -5.0]), 1.0, 0)
    (mini,) = mini_batches([PromptGroup(array("i", [1, 2]), (cut, ended))], SplitConfig(1, 1, 64, 16, padded))
    assert mini.counted == 4
    t = to_tensors(mini.ranks[0][0])
    assert sorted(t.targets.tolist()) == [4, 5, 7, 8]
    assert sorted(t.sampled.engine.tolist()) == [-5.0, -4.0, -2.0, -1.0]
    (at,) = t.behind[t.behind >= 0].tolist()
    assert t.ids.flatten()[at] == 8
    first = t.targets.tolist().index(7)
    assert t.sampled.owners[first] == int((t.behind >= 0).nonzero())
    assert t.sampled.landed[first : first + 2].tolist() == [False, True]
    assert torch.equal(t.ids.flatten()[t.at[first : first + 2]], torch.tensor([2, 7]))


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
