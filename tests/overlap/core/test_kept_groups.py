"""Which groups of a step are kept for people to look at."""

from __future__ import annotations

import re

import pytest
from finished_steps import group, result, scored
from places import ROOT

from overlap.core import Batch, Group, kept_groups
from overlap.core.kept_groups import BY_INTEREST, KEPT_BYTES, SAMPLE_BYTES, TOKEN_BYTES, kept_size


def made(number: int, *rewards: float | None, tokens: int = 4) -> Group:
    return group(number, *(scored(number, k, reward, tokens=tokens) for k, reward in enumerate(rewards)))


def batch(*groups: Group) -> Batch:
    return result(*groups).batch


@pytest.mark.promise("samples")
def test_the_groups_that_stand_out_are_kept_each_with_its_reasons() -> None:
    found = kept_groups(
        batch(
            made(3, 1, 0, 0, 0),
            made(4, 0, 0, 0, 0),
            made(5, 1, 1, 0, 0),
            made(6, 1, 1, 1, 1),
            made(7, 0, 0, 0, 1, tokens=9),
            made(8, 1, None, 1, 0),
        )
    )
    assert found == {4: ("worst",), 5: ("mixed",), 6: ("best",), 7: ("longest",), 8: ("failed",)}


def test_a_reason_that_no_group_has_keeps_none() -> None:
    assert kept_groups(batch(made(1, 0, 0), made(2, 0, 0))) == {1: ("best", "longest"), 2: ("worst",)}
    assert kept_groups(batch(made(1, None, None))) == {1: ("failed", "longest")}
    assert kept_groups(batch()) == {}


def test_rewards_that_are_no_passes_are_mixed_by_how_much_they_differ() -> None:
    found = kept_groups(batch(made(0, 0.1, 0.2), made(1, 0.2, 0.9), made(2, 0.4, 0.4)))
    assert found[1][0] == "mixed"


def test_dropped_groups_are_among_them() -> None:
    dropped = group(2, scored(2, 0, None), scored(2, 1, None), dropped="too few scored")
    assert kept_groups(batch(made(0, 0, 1), dropped)) == {0: ("mixed", "worst", "best", "longest"), 2: ("failed",)}


@pytest.mark.parametrize("tokens", [1_000, 4_096, 16_384])
def test_what_is_kept_of_a_step_is_bounded_and_the_least_interesting_are_left_out(tokens: int) -> None:
    """As many groups of 16 samples as fit, at least one."""
    pattern = ((1, 0), (None, 0.5), (0, 0), (1, 1))
    groups = [made(n, *(pattern[n] * 8), tokens=tokens) for n in range(4)]
    groups.append(made(4, 1, *(0,) * 15, tokens=tokens + 1))
    found, size = kept_groups(batch(*groups)), kept_size(groups[0])
    assert size == pytest.approx(16 * (TOKEN_BYTES * tokens + SAMPLE_BYTES), rel=0.01)
    assert len(found) == min(5, max(1, KEPT_BYTES // size))
    assert list(found) == list(range(len(found)))


def test_a_group_that_does_not_fit_leaves_its_room_to_others() -> None:
    long = made(1, None, *(1,) * 15, tokens=10_500)
    assert kept_groups(batch(made(0, 1, 0), long, made(2, 0, 0))) == {0: ("mixed",), 2: ("worst",)}


def test_every_reason_is_documented() -> None:
    text = (ROOT / "docs/look.md").read_text("utf-8").partition("| reason (`kept_as`)")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.+?) \|", text, re.M)
    assert set(re.findall(r"\w+", " ".join(rows))) == set(BY_INTEREST)
