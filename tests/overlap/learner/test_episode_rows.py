"""Episodes in the learner: rows of branches, in which only what was sampled is in the loss, once."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan
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


def group(*trajectories: Trajectory, truncated: str = "mask") -> PromptGroup:
    samples = tuple(Scored(t, float(n)) for n, t in enumerate(trajectories))
    batch = Batch(1, 5, (Group(0, PROMPT, samples, tuple(float(n) - 0.5 for n in range(len(samples)))),))
    (found,) = flatten(batch, truncated=truncated)
    return found


@pytest.mark.promise("loss-mask")
def test_only_sampled_tokens_are_counted_and_a_fork_is_a_row_behind_its_own_prompt() -> None:
    found = group(with_fork(0), episode(1))
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
    response = group(episode(0), episode(1)).responses[0]
    tensors = to_tensors(MicroBatch((PromptGroup(array("i", (1, 2, 3)), (response,)),)))
    assert tensors.ids.tolist() == [[1, 2, 3, 10, 11, 90, 91, 92, 12]]
    assert tensors.targets.tolist() == [10, 11, 12, 13]
    assert tensors.at.tolist() == [2, 3, 7, 8]
    assert tensors.sampled.engine.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert tensors.sampled.owners.tolist() == [0, 0, 0, 0]
    assert tensors.sampled.landed.tolist() == [False, False, True, True], "of version 5, which is trained"


def test_an_episode_that_was_cut_off_bootstraps_behind_its_last_sampled_token_but_one() -> None:
    found = group(with_fork(0, finish="length"), episode(1), truncated="bootstrap")
    cut, fork, whole = found.responses
    assert [cut.counted, fork.counted, whole.counted] == [3, 2, 4]
    assert (cut.advantage, fork.advantage, whole.advantage) == (0.0, 0.0, 0.5)
    tensors = to_tensors(MicroBatch((PromptGroup(array("i", (1, 2, 3)), (cut,)),)))
    assert tensors.targets.tolist() == [10, 11, 12]
    assert tensors.behind.tolist() == [8]


def test_a_truncated_episode_is_masked_with_its_forks() -> None:
    found = group(with_fork(0, finish="length"), episode(1))
    assert [response.counted for response in found.responses] == [4]


def test_the_age_of_an_episode_is_that_of_its_oldest_token_on_any_branch() -> None:
    old = replace(with_fork(0).forks[0], spans=(VersionSpan(2, 0, 3),))
    assert episode(0, forks=(old,)).version_min == 2
    assert with_fork(0).sampled == 7
