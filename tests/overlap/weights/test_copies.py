"""Copies of weights on two machines: what is sent to whom, and what is taken for right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlap.weights.copies import Piece, WeightCopy

OLD = os.urandom(1000)
NEW = OLD[:500] + b"other" + OLD[505:]


@pytest.fixture
def there() -> Iterator[WeightCopy]:
    copy = WeightCopy(1500)
    yield copy
    copy.close()


def bring(piece: Piece, there: WeightCopy, at: int = 0) -> list[bool]:
    """Which ways were gone: True for all of it."""
    gone = []
    for data, whole in piece.ways(there.digests.get(at)):
        gone.append(whole)
        if there.fill(at, len(piece.data), data, piece.digest, whole=whole):
            break
    return gone


def test_who_has_nothing_gets_all_who_has_the_former_what_has_changed_and_who_has_it_nothing(there) -> None:
    first = Piece.after(None, OLD)
    assert bring(first, there) == [True]
    second = Piece.after(first, NEW)
    assert bring(second, there) == [False]
    assert Path(there.path).read_bytes()[:1000] == NEW
    assert bring(second, there) == []
    late = Piece.after(Piece.after(second, OLD), OLD[::-1])
    assert bring(late, there) == [True]
    assert Path(there.path).read_bytes()[:1000] == OLD[::-1]


def test_a_piece_with_no_smaller_difference_and_one_of_another_size_go_whole(there) -> None:
    first = Piece.after(None, OLD)
    bring(first, there)
    assert bring(Piece.after(first, bytes(255 - byte for byte in OLD)), there) == [True]
    assert Piece.after(first, OLD[:-1]).changed is None


@pytest.mark.parametrize("damage", ["there", "on its way", "both"])
def test_what_does_not_come_out_right_is_not_taken_and_goes_whole(there: WeightCopy, damage: str) -> None:
    first = Piece.after(None, OLD)
    bring(first, there)
    second = Piece.after(first, NEW)
    assert second.changed is not None
    if damage != "on its way":
        with open(there.path, "r+b") as file:
            file.write(b"\0" * 10)
    if damage != "there":
        second = second._replace(changed=second.changed[:-1] + b"?")
    assert bring(second, there) == [False, True]
    assert Path(there.path).read_bytes()[:1000] == NEW
    assert not there.fill(0, 1000, OLD, second.digest, whole=True)
    assert there.digests == {}
    assert bring(second, there) == [True]
