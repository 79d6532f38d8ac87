"""What a program gives the judge to read costs the judge no more than in proportion.

Each is run at a quarter of a MiB: linear, that is well below a second; in the
square, minutes. So a limit of CPU time in between ends what is not linear, on a slow machine too.
"""

from __future__ import annotations

import os
import resource
import signal
import traceback
from collections.abc import Callable
from typing import NoReturn

import pytest
from floods import STDERR, Flood, floods
from toolchains import need
from wide import every

from sandbox.compare import hashed
from sandbox.languages.table import LANGUAGES

FLOODS = list(floods())
SIZE = 256 << 10
CPU_S = 20
PRIME = (1 << 61) - 1  # integers that differ by it have one hash


def ends_in_time(work: Callable[[], object]) -> bool:
    """In a process of its own. Raises AssertionError with what `work` raised."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        _work(work, tell)
    os.close(tell)
    with open(told, "rb") as pipe:
        words = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0, words
    return not os.WIFSIGNALED(status) or os.WTERMSIG(status) not in (signal.SIGKILL, signal.SIGXCPU)


def _work(work: Callable[[], object], tell: int) -> NoReturn:
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        work()
        os._exit(0)
    except Exception:
        os.write(tell, traceback.format_exc()[-4000:].encode())
    finally:
        os._exit(1)


@pytest.mark.parametrize("flood", every(3, FLOODS), ids=[flood.name for flood in FLOODS])
def test_the_judge_reads_everything_in_linear_time(flood: Flood) -> None:
    if flood.language:
        need(flood.language)
    assert ends_in_time(flood.make(min(SIZE, flood.most)))


def test_every_language_has_a_flood_of_what_its_runtime_says() -> None:
    assert {name.strip() for name in STDERR} == set(LANGUAGES)


class Counted:
    """Any number of them have one hash; comparisons are counted."""

    comparisons = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return isinstance(other, Counted) and other.number == self.number


@pytest.mark.parametrize("size", [1_000, 2_000, 4_000])
def test_values_with_one_hash_are_refused_after_a_bounded_number_of_comparisons(size: int) -> None:
    Counted.comparisons = 0
    with pytest.raises(hashed.Crowded):
        hashed.make_set(Counted(k) for k in range(size))
    assert Counted.comparisons <= (hashed.PER_ITEM + 1) * size


@pytest.mark.parametrize(
    "items",
    [
        [],
        [k * PRIME for k in range(256)],
        [0] * 10_000,
        [k % 100 * PRIME for k in range(10_000)],
        [2**k for k in range(5_000)],
        [float(2**k) for k in range(1_000)],
        list(range(10_000)),
        ["a", b"a", None, (1, "a"), True, 1, 1.0] * 1_000,
        [float("nan") for _ in range(1_000)],
    ],
)
def test_whatever_is_honest_becomes_the_same_set_and_dict(items: list[object]) -> None:
    assert hashed.make_set(items) == set(items)
    assert hashed.make_frozenset(items) == frozenset(items)
    assert hashed.make_dict((item, 1) for item in items) == dict.fromkeys(items, 1)
