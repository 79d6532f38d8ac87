"""The nouns: small where there are many of them, and not to be changed."""

from __future__ import annotations

import pickle
import random
import tracemalloc

from overlap.core import Batch, Group, Packed, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.learner.micro_batch import flatten

PROMPT = Prompt("p", (1, 2, 3))


def trajectory(tokens, logprobs):
    spans = (VersionSpan(0, 0, len(tokens)),)
    return Trajectory(Request(0, 0, PROMPT), tokens, logprobs, "text", "stop", spans, 0.0, 1.0)


def long_one(length=16384):
    rng = random.Random(0)
    ids = [rng.randrange(150_000) for _ in range(length)]
    return trajectory(tuple(ids), tuple(-rng.random() for _ in ids))


def test_a_long_trajectory_holds_at_most_sixteen_bytes_per_token_from_the_engine_to_the_learner():
    tracemalloc.start()
    try:
        held = [Scored(long_one(), 1.0) for _ in range(4)]
        batch = Batch(1, 0, (Group(0, PROMPT, tuple(held), (1.0,) * 4),))
        groups = flatten(batch)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / (4 * 16384) <= 16
    response = groups[0].responses[0]
    assert response.tokens is held[0].trajectory.token_ids.array
    assert response.logprobs is held[0].trajectory.logprobs.array


def test_a_trajectory_is_the_same_in_another_process_and_costs_the_wire_eight_bytes_per_token():
    here = long_one()
    message = pickle.dumps(here, 5)
    assert len(message) < 8.5 * 16384
    there = pickle.loads(message)
    assert there == here
    assert hash(there) == hash(here)
    assert there.token_ids.array.itemsize == there.logprobs.array.itemsize == 4


def test_whatever_sequence_it_is_made_of_a_noun_reads_like_a_tuple():
    for kind in (tuple, list, lambda values: Packed("i", values)):
        prompt = Prompt("p", kind([70_000, 2, 3]))
        assert prompt.token_ids == (70_000, 2, 3)
        assert prompt == Prompt("p", (70_000, 2, 3))
        assert prompt.token_ids[:2] == (70_000, 2)
        assert prompt.token_ids[-1] == 3
        assert (*prompt.token_ids, 4) == (70_000, 2, 3, 4)
        assert bytes(prompt.token_ids[1:]) == b"\x02\x03"
        assert len({prompt.token_ids, (70_000, 2, 3)}) == 1
        assert repr(prompt.token_ids) == "(70000, 2, 3)"
    assert Packed("i", ()) == ()
    assert Packed("i", (1,)) != [1]
