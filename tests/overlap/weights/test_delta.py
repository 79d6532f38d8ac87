"""Differences between two states of a piece of memory: exact for every pair of them, or none."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy
import pytest

from overlap.weights.delta import apply, difference

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
