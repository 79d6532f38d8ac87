"""Copies of weights on two machines: what is sent to whom, and what is taken for right."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from overlap.weights.copies import Piece, WeightCopy, apply, difference, mapped

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


def test_memory_that_ends_before_a_piece_is_an_error_of_the_system(there: WeightCopy) -> None:
    assert len(mapped(there.path, 1000, 500)) == 500
    with pytest.raises(OSError, match=f"{there.path} ends before byte 1501"):
        mapped(there.path, 1000, 501)


# --- differences between two states of a piece of memory: exact for every pair of them, or none ---------------------

SIZES = (0, 1, 2, 3, 8, 9, 509, 510, 511, 512, 513, 4096, 70_001)
NANS = bytes.fromhex("c07f 817f ff7f 80ff 0080 01ff".replace(" ", ""))


def pairs(size: int) -> Iterator[tuple[bytes, bytes]]:
    """Two states of so many bytes: few words apart, in every place that a form could get wrong."""
    rng = random.Random(size)
    old = rng.randbytes(size)
    yield old, old
    yield old, bytes(255 - byte for byte in old)
    yield bytes(size), (NANS * size)[:size]
    for places in ([0], [size - 1], [0, size - 1], [size // 2, size // 2 + 1], [size - 2, size - 1]):
        new = bytearray(old)
        for at in places:
            if 0 <= at < size:
                new[at] ^= 1 + rng.randrange(255)
        yield old, bytes(new)
    for every in (2, 8, 40, 508, 510, 512, 1020, 1022, 10_000):
        new = bytearray(old)
        for at in range(every - 2, size, every):
            new[at] ^= 1
        yield old, bytes(new)
    for share in (0.001, 0.02, 0.1, 0.5):
        mask = numpy.random.default_rng(size).random(size) < share
        new_words = numpy.where(mask, numpy.frombuffer(rng.randbytes(size), numpy.uint8), numpy.frombuffer(old, "u1"))
        yield old, new_words.tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_a_difference_makes_the_one_of_the_other_bit_for_bit_and_twice_is_as_once(size: int) -> None:
    for old, new in pairs(size):
        made = difference(old, new)
        if made is None:
            continue
        assert len(made) <= size // 2
        memory = bytearray(old)
        for _ in range(2):
            apply(memory, made)
            assert memory == new


def test_what_is_no_difference_of_that_size_is_refused_and_nothing_is_written() -> None:
    old = bytes(1000)
    made = difference(old, bytes(400) + b"ab" + bytes(598))
    assert made is not None
    for broken in (b"", made[:7], made[:-1], made + b"x", b"\xff" * len(made), bytes([2]) + made[1:]):
        memory = bytearray(old)
        with pytest.raises(ValueError, match="difference"):
            apply(memory, broken)
        assert memory == old
    with pytest.raises(ValueError, match="for more than 100 bytes"):
        apply(bytearray(100), made)
    with pytest.raises(ValueError, match="between 2 and 3 bytes"):
        difference(b"ab", b"abc")
