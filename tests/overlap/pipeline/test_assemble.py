"""Every sample that was sent out comes back once, and steps take whole groups in the order of their admission."""

from __future__ import annotations

import itertools

import pytest
from group_of import scored

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Group, Prompt, Request
from overlap.core.errors import EmptyBatchesError
from overlap.pipeline.assemble import MAX_EMPTY_STEPS, Assembler, empty_batches

PROMPT = Prompt("p", (1, 2))


def config(*overrides: str) -> Config:
    return load_config(None, ["rollout.groups_per_step=2", "rollout.samples_per_group=2", *overrides])


def filled(assembler: Assembler, group: int, *rewards: float | None, finish: str = "stop") -> Group | None:
    """Admit a group and give all of its samples; what came of the last one."""
    assembler.expect(group, PROMPT)
    return [assembler.add(scored(Request(group, k, PROMPT), reward, finish)) for k, reward in enumerate(rewards)][-1]


@pytest.mark.promise("counted-once")
def test_a_group_is_done_with_its_last_sample_and_a_sample_is_counted_once() -> None:
    assembler = Assembler(config())
    assembler.expect(0, PROMPT)
    assert assembler.add(scored(Request(0, 1, PROMPT), None)) is None
    assert (assembler.submitted, assembler.running) == (2, 1)
    group = assembler.add(scored(Request(0, 0, PROMPT), 0.0))
    assert group is not None
    assert [s.id for s in group.samples] == ["g0s0", "g0s1"]
    assert (assembler.submitted, assembler.scored, assembler.failed, assembler.running) == (2, 1, 1, 0)
    with pytest.raises(AssertionError, match="sample g0s0 has a second result"):
        assembler.add(scored(Request(0, 0, PROMPT), 1.0))


@pytest.mark.promise("same-batches")
@pytest.mark.parametrize("first", [0, 16])
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_steps_are_the_same_whatever_order_the_groups_came_in(order: tuple[int, ...], first: int) -> None:
    assembler = Assembler(config(), first)
    for group in order:
        filled(assembler, first + group, 1.0, 0.0)
    steps = [assembler.next_step(), assembler.next_step(), assembler.next_step()]
    assert [[g.id - first for g in step] if step else None for step in steps] == [[0, 1], [2, 3], None]


@pytest.mark.parametrize(
    ("rewards", "finish", "hint"),
    [
        ((None, None), "stop", "no sample could be scored"),
        ((0.0, 0.0), "stop", "too hard"),
        ((0.0, 0.1 + 0.2 - 0.3), "stop", "too hard"),
        ((1.0, 1.0 - 2**-53), "stop", "too easy"),
        ((1.0, 1.0), "stop", "too easy"),
        ((0.5, 0.5), "stop", r"every reward was 0\.5"),
        ((0.0, 0.0), "length", r"every response was cut off before its end: use more model\.response_tokens"),
        ((0.0, 1.0), "length", r"every response was cut off before its end"),
    ],
)
def test_steps_without_anything_to_learn_name_their_likely_cause(
    rewards: tuple[float | None, ...], finish: str, hint: str
) -> None:
    assembler = Assembler(config())
    groups = [filled(assembler, group, *rewards, finish=finish) for group in range(2 * MAX_EMPTY_STEPS)]
    with pytest.raises(EmptyBatchesError, match=hint):
        raise empty_batches([group for group in groups if group is not None])
