"""From groups to micro-batches: what is in the loss, who computes it, and where each token is predicted."""

from __future__ import annotations

import math
import random
from array import array
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.config import Truncated
from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.errors import EngineError
from overlap.learner.micro_batch import (
    PromptGroup,
    Response,
    SplitConfig,
    flatten,
    make_rows,
    micro_batches,
    mini_batches,
)
from overlap.process import decode_message, pack_call

CFG = SplitConfig(updates=1, ranks=1, micro_batch_tokens=64, hidden=16)


def scored(tokens, *, reward=1.0, finish="stop", sample=0, prompt=None):
    prompt = prompt or Prompt("p", (1, 2, 3))
    trajectory = Trajectory(
        Request(0, sample, prompt), tuple(tokens), tuple(-0.5 * i for i in range(len(tokens))), "", finish,
        (VersionSpan(0, 0, len(tokens)),), 0.0, 1.0,
    )  # fmt: skip
    return Scored(trajectory, reward)


def batch(*groups):
    made = [
        Group(
            number, samples[0].trajectory.request.prompt, tuple(samples), tuple(float(i) for i in range(len(samples)))
        )
        for number, samples in enumerate(groups)
    ]
    return Batch(1, 0, tuple(made))


def response(length, advantage=1.0):
    return Response(array("i", range(length)), array("f", [-1.0] * length), advantage)


def group(prompt, *lengths):
    return PromptGroup(array("i", range(prompt)), tuple(response(n) for n in lengths))


groups_strategy = st.lists(
    st.builds(lambda p, r: group(p, *r), st.integers(1, 20), st.lists(st.integers(1, 30), min_size=1, max_size=6)),
    min_size=1, max_size=8,
)  # fmt: skip
split_strategy = st.builds(
    SplitConfig, updates=st.integers(1, 4), ranks=st.integers(1, 3), micro_batch_tokens=st.integers(50, 200),
    hidden=st.just(16), share_prompts=st.booleans(), padded=st.booleans(),
)  # fmt: skip


def test_responses_keep_their_tokens_log_probs_and_advantages():
    (only,) = flatten(batch([scored([5, 6]), scored([7], sample=1)]))
    assert list(only.prompt) == [1, 2, 3]
    assert [list(r.tokens) for r in only.responses] == [[5, 6], [7]]
    assert list(only.responses[0].logprobs) == [0.0, -0.5]
    assert [r.advantage for r in only.responses] == [0.0, 1.0]


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
    made = scored([4, 5, 6, 7, 8])
    object.__setattr__(made.trajectory, "spans", tuple(VersionSpan(*span) for span in spans))
    trained = Batch(8, 7, batch([made]).groups)
    assert flatten(trained)[0].responses[0].fresh == fresh


def test_the_wire_of_the_ranks_keeps_what_is_fresh():
    groups = (PromptGroup(array("i", [1]), (Response(array("i", [2, 3]), array("f", [-1.0, -2.0]), 0.5, 1),)),)
    sent = pack_call("step", groups, 3)
    assert decode_message(sent.data[8:]).args == (groups, 3)


@pytest.mark.parametrize("share", [True, False])
def test_tokens_belong_to_their_response_and_have_landed_behind_its_older_ones(share):
    torch = pytest.importorskip("torch")
    from overlap.learner.tensors import to_tensors

    fresh = {1: 0, 2: 2, 3: 1, 5: 3}  # by length: all of it, none of it, the last two, the last two
    responses = [Response(array("i", [n] * n), array("f", [-1.0] * n), float(n), at) for n, at in fresh.items()]
    groups = [PromptGroup(array("i", [9]), tuple(responses)) for _ in range(2)]
    for micro in mini_batches(groups, SplitConfig(1, 1, 14, 16, share))[0].ranks[0]:
        t = to_tensors(micro)
        lengths = [n for row in micro.rows for n in map(len, (r.tokens for r in row.responses))]
        assert t.sampled.responses == len(lengths)
        assert t.sampled.owners.tolist() == [number for number, n in enumerate(lengths) for _ in range(n)]
        expected = {1: [False], 2: [False, False], 3: [False, True, True], 5: [False, False, False, True, True]}
        assert t.sampled.landed.tolist() == [landed for n in lengths for landed in expected[n]]
        assert torch.equal(t.sampled.advantages, t.targets.float())


def test_unscored_and_empty_responses_are_not_in_the_loss():
    (only,) = flatten(batch([scored([5]), scored([6], reward=None), scored([])]))
    assert [list(r.tokens) for r in only.responses] == [[5]]


@pytest.mark.parametrize("finish", ["length", "abort"])
def test_truncated_responses_are_masked_if_asked_for(finish):
    made = batch([scored([5]), scored([6], finish=finish)])
    assert len(flatten(made)[0].responses) == 1
    assert len(flatten(made, truncated="zero")[0].responses) == 2


def test_a_response_that_ended_at_the_limit_was_not_cut_off():
    """Both have as many tokens: what tells them apart is how the engine says that they ended."""
    cases = {"mask": [False], "zero": [False, False], "bootstrap": [False, True]}
    assert cases.keys() == set(get_args(Truncated))
    for truncated, kept in cases.items():
        made = batch([scored([5, 6, 7]), scored([5, 6, 7], finish="length")])
        responses = flatten(made, truncated=truncated)[0].responses
        assert [r.advantage for r in responses] == [0.0, 0.0 if truncated == "bootstrap" else 1.0][: len(kept)]
        assert [r.bootstraps for r in responses] == kept
        assert [r.counted for r in responses] == [3 - cut for cut in kept]


def test_a_cut_off_response_of_one_token_has_none_left_to_learn_from():
    assert flatten(batch([scored([6], finish="length")]), truncated="bootstrap") == ()


@pytest.mark.parametrize("share", [True, False])
def test_the_last_token_of_a_response_that_bootstraps_is_read_before_and_not_learned(share):
    torch = pytest.importorskip("torch")
    from overlap.learner.tensors import to_tensors

    cut = Response(array("i", [7, 8, 9]), array("f", [-1.0, -2.0, -3.0]), 0.0, 1, True)
    ended = Response(array("i", [4, 5]), array("f", [-4.0, -5.0]), 1.0, 0)
    (mini,) = mini_batches([PromptGroup(array("i", [1, 2]), (cut, ended))], SplitConfig(1, 1, 64, 16, share))
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


def test_a_token_that_looks_like_padding_counts_like_any_other():
    (only,) = flatten(batch([scored([0, 2, 2, 0])]))
    assert list(only.responses[0].tokens) == [0, 2, 2, 0]


def test_groups_without_a_counted_response_are_left_out():
    assert flatten(batch([scored([5], reward=None)], [scored([6], finish="length")])) == ()


def test_log_probs_of_another_length_are_refused():
    broken = scored([5, 6])
    object.__setattr__(broken.trajectory, "logprobs", (0.0,))
    with pytest.raises(EngineError, match="2 tokens, 1 log-probs"):
        flatten(batch([broken]))


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf])
def test_a_sampled_token_without_a_chance_is_the_engines_fault_and_said_so(value):
    broken = scored([5, 6, 7])
    object.__setattr__(broken.trajectory, "logprobs", (-0.5, value, -0.5))
    with pytest.raises(EngineError, match=f"sample g0s0: the engine's log-prob of token 1 is {value}"):
        flatten(batch([broken]))


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


@given(groups_strategy, split_strategy)
@settings(max_examples=30, deadline=None)
def test_equal_groups_give_equal_mini_batches(groups, cfg):
    assert mini_batches(groups, cfg) == mini_batches(list(groups), cfg)


def test_mini_batches_hold_whole_groups_in_order():
    groups = [group(2, 3, 4) for _ in range(5)]
    minis = mini_batches(groups, SplitConfig(2, 1, 64, 16))
    assert [m.counted for m in minis] == [14, 21]


def test_there_are_no_more_mini_batches_than_groups():
    assert len(mini_batches([group(2, 3)], SplitConfig(4, 1, 64, 16))) == 1


def test_responses_share_a_row_while_it_fits():
    rows = make_rows(group(10, 8, 8, 8, 8), 25)
    assert [row.length for row in rows] == [24, 24]


def test_without_sharing_each_response_has_a_row():
    rows = make_rows(group(10, 8, 8), 0)
    assert [row.length for row in rows] == [17, 17]


def test_a_row_over_the_budget_goes_alone():
    (micro,) = micro_batches(make_rows(group(100, 5), 64), 64)
    assert micro.tokens == 104


def test_packed_micro_batches_have_no_padding():
    (mini,) = mini_batches([group(10, 3, 9), group(4, 2, 2)], SplitConfig(1, 1, 1000, 16))
    assert mini.padding == 0.0
    assert mini.ranks[0][0].tokens == 10 + 2 + 8 + 4 + 1 + 1


def test_long_rows_have_no_padding_whether_they_share_their_prompts_or_not():
    groups = [group(100, 900, 300), group(50, 700, 200)]
    for share in (True, False):
        (mini,) = mini_batches(groups, SplitConfig(1, 1, 10**6, 16, share))
        assert mini.padding == 0.0
    (mini,) = mini_batches(groups, SplitConfig(1, 1, 10**6, 16, share, padded=True))
    assert mini.padding > 0.4


def test_a_rank_without_rows_of_its_own_keeps_in_step():
    (mini,) = mini_batches([group(3, 4)], SplitConfig(1, 2, 64, 16))
    assert [[m.counts for m in rank] for rank in mini.ranks] == [[True], [False]]
    assert mini.counted == 4


@pytest.mark.parametrize("share", [True, False])
def test_each_counted_token_is_predicted_by_the_token_before_it(share):
    torch = pytest.importorskip("torch")
    from overlap.learner.tensors import to_tensors

    rng = random.Random(0)
    fresh = iter(range(1000))
    made = [
        PromptGroup(
            array("i", [next(fresh) for _ in range(rng.randint(1, 6))]),
            tuple(
                Response(array("i", [next(fresh) for _ in range(n)]), array("f", [float(n)] * n), float(n))
                for n in (1, 3, 5)
            ),
        )
        for _ in range(3)
    ]
    before = {}
    for g in made:
        for r in g.responses:
            before |= dict(zip(r.tokens, [g.prompt[-1], *r.tokens], strict=False))
    for micro in mini_batches(made, SplitConfig(1, 1, 40, 16, share))[0].ranks[0]:
        t = to_tensors(micro)
        read = t.ids.flatten()[t.at].tolist()
        assert read == [before[token] for token in t.targets.tolist()]
        assert torch.equal(t.sampled.engine, t.sampled.advantages)
        assert len(t.targets) == sum(row.counted for row in micro.rows)


def test_positions_of_every_response_go_on_from_the_prompt():
    pytest.importorskip("torch")
    from overlap.learner.tensors import to_tensors

    (mini,) = mini_batches([group(3, 3, 4)], CFG)
    assert to_tensors(mini.ranks[0][0]).positions.tolist() == [[0, 1, 2, 3, 4, 3, 4, 5]]
