"""The table of edge cases: what each comparison accepts."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections import deque
from contextlib import suppress
from decimal import Decimal

import pytest

from sandbox.compare.modes import parse_mode, same_result
from sandbox.compare.values import DEPTH_MAX, Unencodable, decode_value, encode_lazy, encode_value, loads, same

MODES = {
    "x": "exact",
    "l": "lines",
    "t": "tokens",
    "f": "float(1e-6)",
    "L": "lcb",
    "S": "sf",
    "C": "code_contests",
}
DIGITS = b"1" * 1_000_000
# output, expected, letters of the modes that accept it
TABLE = [
    ("7\n", "7\n", "xltfLSC"),
    ("7", "7\n", "ltfLSC"),
    ("7  \r\n", "7\n", "ltfLSC"),
    ("1 2\r\n3 4\r\n", "1 2\n3 4\n", "ltfLSC"),
    ("1 2\n3 4\n\n\n", "1 2\n3 4", "ltfLSC"),
    ("1  2", "1 2", "tfLC"),
    ("a  b", "a b", "tfC"),
    ("1\n\n2", "1\n2", "tfC"),
    ("1 2", "1\n2", "tfC"),
    (" 1", "1", "tfLSC"),
    ("yes", "YES", "SC"),
    ("É", "é", "S"),
    ("1.50", "1.5", "tfLSC"),
    ("1000", "1e3", "tfLSC"),
    ("1e3", "1000", "fLSC"),
    ("5", "5.0", "tfLSC"),
    ("5.0", "5", "fLSC"),
    ("0.333334", "0.333333", "fSC"),
    ("0.333335", "0.333333", "SC"),
    ("0.33338", "0.33333", ""),
    ("1000000.5", "1000000.0", "fS"),
    ("0.00002", "0.000001", ""),
    ("0.0000101", "0.0000011", "C"),
    ("50000000000000001", "50000000000000000", "SC"),
    ("007", "7", "LSC"),
    ("101", "0101", "LSC"),
    ("+7", "7", "fLSC"),
    ("-0", "0", "fLSC"),
    ("-0.0", "0.0", "tfLSC"),
    ("1 abc 0.5000001", "1 abc 0.5", "fC"),
    ("1 0.5000001", "1 0.5", "fC"),
    ("nan", "nan", "xltfLSC"),
    ("nan", "1.0", ""),
    ("nan 1", "nan 1.0", "tf"),
    ("inf", "1.0", ""),
    ("inf 1.0", "inf 1", "fL"),
    ("1_000.0", "1000.0", "LS"),
    ("１２.0", "12.0", "LS"),
    ("0x10", "16", ""),
    ("0x10", "16.0", ""),
    ("1_000", "1000", "LS"),
    ("6.9999999", "7", "SC"),
    ("7.00001", "7", "SC"),
    ("1000001", "1000000", "S"),
    ("1000002", "1000000", "S"),
    ("0.0000001", "0", "C"),
    ("0.0000001", "0.0", "fC"),
    ("998244354", "998244353.0", "fS"),
    ("1", "x", ""),
    ("x", "1", ""),
    ("NaN", "nan", "fSC"),
    ("-nan", "nan", "f"),
    ("Infinity", "inf", "fL"),
    ("inf", "-inf", ""),
    ("inf", "nan", ""),
    ("1e-7 inf", "0. INF", "f"),
    ("7\0", "7", ""),
    ("2 1", "1 2", ""),
    ("1 2", "1 2 3", ""),
    ("1 2 3", "1 2", ""),
    ("1\n2\n3", "1\n2", ""),
    ("NO", "YES", ""),
    ("100011", "100000", ""),
    ("100001", "100000", ""),
    ("", "1", ""),
    ("1", "", ""),
    ("", "\n \n", "ltfLSC"),
    ("0.1e999999", "0.2e999999", ""),
    ("9.9e999999", "-9.9e999999", ""),
    ("1e9999999999", "1.0", ""),
    ("sNaN", "1.0", ""),
    ("é", "é", "xltfLSC"),
    ("a\u00a0b", "a b", ""),
    ("1\u00a02", "1 2", "L"),
]


@pytest.mark.promise("comparison")
@pytest.mark.promise("integers")
@pytest.mark.parametrize(("output", "expected", "accepted"), TABLE)
def test_the_edge_table(output: str, expected: str, accepted: str) -> None:
    found = {letter: parse_mode(mode)(output.encode(), expected.encode()) for letter, mode in MODES.items()}
    assert found == {letter: letter in accepted for letter in MODES}


@pytest.mark.parametrize(
    ("mode", "output", "expected", "right"),
    [
        ("lcb", b"abc\n1.0 2", b"abc\n1 2.0", True),  # a line is equal as text, or as numbers throughout
        ("lcb", b"abc 1.0", b"abc 1", False),
        ("lcb", b"1 2", b"1 2 3", False),
        ("lcb", b"0.30000000000000004", b"0.3", False),
        ("sf", b"1000001\n0.00000000000000001", b"1000000\n0", True),  # a number is a whole line, and relative
        ("sf", b"0.00001", b"0", False),
        ("sf", b"1.0 2", b"1 2", False),
        ("tokens", b"\xff 1\n", b"\xff 1", True),  # bytes that are no text are compared as bytes
        ("tokens", b"\xfe", b"\xff", False),
        ("tokens", DIGITS + b" ", DIGITS, True),  # digits beyond those of a double count where they matter
        ("tokens", DIGITS + b".5", DIGITS + b".6", False),
        ("float(1e-6)", DIGITS + b".5", DIGITS + b".6", True),
        ("float(1e-6)", DIGITS, b"2" + DIGITS[1:], False),
        ("float(1e-6)", b"0." + b"3" * 10_000, b"0.333333333", True),
    ],
    ids=itertools.count(),
)
def test_what_is_peculiar_to_a_mode(mode: str, output: bytes, expected: bytes, right: bool) -> None:
    assert parse_mode(mode)(output, expected) is right


# Each is 16 MB of one kind, against something short: nothing may be built of it as a whole.
FLOODS = [b"1\n" * (8 << 20), b"1 " * (8 << 20), b"\n" * (16 << 20), b"9" * (16 << 20), b"\xff" * (16 << 20)]


@pytest.mark.parametrize("mode", MODES.values())
def test_a_flood_takes_little_memory(mode: str) -> None:
    matches = parse_mode(mode)
    for flood in FLOODS:
        tracemalloc.start()
        try:
            assert not matches(flood, b"1.5\n2")
            assert tracemalloc.get_traced_memory()[1] < 80 << 20
        finally:
            tracemalloc.stop()


# value of the function, expected JSON, equal?
VALUES = [
    (2, "2", True),
    (2, "2.0", True),
    (2.0, "2", False),
    (2.0, "2.0", True),
    (True, "1", False),
    (1, "true", False),
    (True, "true", True),
    (0, "false", False),
    (None, "null", True),
    (0, "null", False),
    ("a", '"a"', True),
    ("1", "1", False),
    ((1, (2, 3)), "[1, [2, 3]]", True),
    ([1, 2], "[2, 1]", False),
    ([1], "[1, 1]", False),
    (2, "[2, 4]", False),
    ({1, 2}, "[1, 2]", False),
    ({"a": [1.0]}, '{"a": [1.0]}', True),
    ({1: "a"}, '{"1": "a"}', True),
    ({True: "a"}, '{"1": "a"}', False),
    ({"a": 1, "b": 2}, '{"a": 1}', False),
    (0.1 + 0.2, "0.3", False),
    (float("nan"), "NaN", True),
    (float("nan"), "1.0", False),
    (10**400, "1.5", False),
    (b"a", '"a"', False),
    (1 + 0j, "1", False),
]


@pytest.mark.promise("comparison")
@pytest.mark.parametrize(("value", "expected", "equal"), VALUES)
def test_function_values_are_compared_with_their_types(value: object, expected: str, equal: bool) -> None:
    crossed = decode_value(loads(json.dumps(encode_value(value)).encode()))
    assert same(crossed, loads(expected)) is equal


@pytest.mark.promise("integers")
def test_integers_of_any_length_cross() -> None:
    for sign, text in ((1, ""), (-1, "-")):
        value = decode_value(loads(json.dumps(encode_value(sign * 10**5000)).encode()))
        assert same(value, loads(f"{text}1{'0' * 5000}"))
        assert not same(value, loads(f"{text}1{'0' * 4999}1"))


@pytest.mark.parametrize(
    ("value", "expected", "eps", "equal"),
    [
        ([0.1 + 0.2], [0.3], "1e-9", True),
        ([0.31], [0.3], "1e-9", False),
        ([3], [4], "0.9", False),
        ([2.0], [2], "1e-6", True),
        ([2.0000001], [2], "1e-6", False),
        ([1000000006.0], [1000000007], "1e-6", False),
        ([2.0], [2], "", False),
        ([True], [1], "1e-6", False),
        ([10**400], [1.5], "1e-6", False),
        ([1e300], [10**400], "1e-6", False),
        ([float("inf")], [1e300], "1e-6", False),
        (deque([1, (2,)]), [1, [2]], "", True),
        (deque([1]), [2], "", False),
    ],
    ids=itertools.count(),
)
def test_a_tolerance_reaches_floats_inside_values(value: object, expected: object, eps: str, equal: bool) -> None:
    assert same(value, expected, eps) is equal


@pytest.mark.parametrize(
    ("value", "expected", "near"),
    [
        (0.300001, 0.3, True),
        (0.3000011, 0.3, False),
        (0.299999, 0.3, True),
        (1000001.0, 1000000.0, True),
        (1000001.1, 1000000.0, False),
        (-1e-6, 0.0, True),
        (float("nan"), float("nan"), True),
        (float("nan"), 1.0, False),
        (float("-inf"), float("inf"), False),
        (1.7e308, -1.7e308, False),
        (3, 3.000001, True),
    ],
)
def test_at_the_bound_what_is_printed_and_what_is_returned_are_compared_alike(
    value: float, expected: float, near: bool
) -> None:
    printed = parse_mode("float(1e-6)")(repr(value).encode(), repr(expected).encode())
    assert (printed, same(value, expected, "1e-6")) == (near, near)


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        ((1, 2), [1, 2], True),  # an outermost tuple is a list
        ([(1, 2)], [[1, 2]], False),
        (1.0, 1, True),
        (0.1 + 0.2, 0.3, False),
        ({1: 2}, {"1": 2}, False),
        (None, 0, False),
        (Decimal("sNaN"), 1, False),
    ],
    ids=itertools.count(),
)
def test_results_are_compared_as_livecodebench_does(value: object, expected: object, equal: bool) -> None:
    assert same_result("lcb", value, expected) is equal


class Sneaky(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@pytest.mark.promise("comparison")
@pytest.mark.parametrize(
    "value", [object(), Sneaky(1), [Sneaky(1)], {"a": Sneaky(1)}, range(1 << 40), lambda: 1, iter(())]
)
def test_only_exact_builtin_types_cross(value: object) -> None:
    with pytest.raises(Unencodable):
        encode_value(value)


def test_an_iterator_crosses_by_what_it_still_has_to_give() -> None:
    for value in ((i for i in [1, 2]), map(int, "12"), iter((1, 2)), {"a": 1, "b": 2}.values()):
        assert list(decode_value(encode_value(value, 0, encode_lazy))) == [1, 2]
    with pytest.raises(Unencodable):
        encode_value(itertools.count(), 0, encode_lazy)


def test_depth_is_capped_on_both_sides() -> None:
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(Unencodable):
        encode_value(deep)
    for text in (b"[" * 100_000 + b"]" * 100_000, b"[" * 900 + b"]" * 900):
        with pytest.raises(ValueError, match="deep"):
            decode_value(loads(text))


@pytest.mark.parametrize("kind", ["list", "tuple", "set", "dict"])
def test_what_is_as_deep_as_may_be_is_read_below_a_stack_of_our_own(kind: str) -> None:
    deep: object = 1
    for _ in range(DEPTH_MAX):
        deep = {"list": [deep], "tuple": {"t": [deep]}, "set": {"z": [deep]}, "dict": {"d": [[1, deep]]}}[kind]

    def below(frames: int) -> None:
        if frames:
            return below(frames - 1)
        with suppress(ValueError):  # deeper than may be
            decode_value(deep)

    below(100)


REFUSED: list[object] = [
    {"x": 1}, {"a": 1, "b": 2}, {}, {"i": "zz"}, {"d": [[1]]}, {"d": [[[1], 2]]}, {"s": [[]]}, {"c": [10**400, 0]},
    {"r": [0, 10**18]}, {"r": [0, 9, 0]}, {"r": "ab"}, {"r": [1.5]}, {"n": "1e999999"}, {"n": "x"}, {"n": 5},
    {"f": [1, 0]}, {"f": [1, {"i": hex(1 << 70000)}]}, {"f": []}, {"g": 5}, {"k": [[]]}, {"m": [1]}, {"o": ["a", 1]},
]  # fmt: skip


@pytest.mark.parametrize("data", REFUSED)
def test_what_encode_never_writes_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_value(data)
