"""The table of edge cases: what each comparison accepts."""

from __future__ import annotations

import json

import pytest

from sandbox.compare import parse_mode
from sandbox.values import Unencodable, decode, encode, loads, same

# output, expected, modes that accept it: x exact, l lines, t tokens, f float(1e-6)
TABLE = [
    ("7\n", "7\n", "xltf"),
    ("7", "7\n", "ltf"),
    ("7  \r\n", "7\n", "ltf"),
    ("1 2\n3 4\n\n\n", "1 2\n3 4", "ltf"),
    ("1  2", "1 2", "tf"),
    ("1\n\n2", "1\n2", "tf"),
    ("1 2", "1\n2", "tf"),
    (" 1", "1", "tf"),
    ("yes", "YES", ""),
    ("1.50", "1.5", "tf"),
    ("1000", "1e3", "tf"),
    ("1e3", "1000", ""),
    ("5", "5.0", "tf"),
    ("5.0", "5", ""),
    ("0.333334", "0.333333", "f"),
    ("0.33334", "0.33333", ""),
    ("1000000.5", "1000000.0", "f"),
    ("50000000000000001", "50000000000000000", ""),
    ("007", "7", ""),
    ("+7", "7", ""),
    ("-0", "0", ""),
    ("-0.0", "0.0", "tf"),
    ("1 abc 0.5000001", "1 abc 0.5", "f"),
    ("nan", "nan", "xltf"),
    ("nan", "1.0", ""),
    ("inf", "1.0", ""),
    ("1_000.0", "1000.0", ""),
    ("１２.0", "12.0", ""),
    ("7\0", "7", ""),
    ("2 1", "1 2", ""),
    ("1 2", "1 2 3", ""),
    ("1 2 3", "1 2", ""),
    ("1\n2\n3", "1\n2", ""),
    ("NO", "YES", ""),
    ("100001", "100000", ""),
    ("", "1", ""),
    ("1", "", ""),
    ("0.1e999999", "0.2e999999", ""),
    ("1e9999999999", "1.0", ""),
    ("é", "é", "xltf"),
]


@pytest.mark.parametrize(("output", "expected", "accepted"), TABLE)
@pytest.mark.parametrize(("mode", "letter"), [("exact", "x"), ("lines", "l"), ("tokens", "t"), ("float(1e-6)", "f")])
def test_the_edge_table(output: str, expected: str, accepted: str, mode: str, letter: str) -> None:
    assert parse_mode(mode)(output.encode(), expected.encode()) is (letter in accepted)


def test_bytes_that_are_no_text_are_compared_as_bytes() -> None:
    assert parse_mode("tokens")(b"\xff 1\n", b"\xff 1")
    assert not parse_mode("tokens")(b"\xfe", b"\xff")


def test_a_long_digit_string_is_compared_as_text_and_at_once() -> None:
    digits = b"1" * 1_000_000
    assert parse_mode("tokens")(digits + b" ", digits)
    assert not parse_mode("float(1e-6)")(digits + b".5", digits + b".6")


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


@pytest.mark.parametrize(("value", "expected", "equal"), VALUES)
def test_function_values_are_compared_with_their_types(value: object, expected: str, equal: bool) -> None:
    crossed = decode(loads(json.dumps(encode(value)).encode()))
    assert same(crossed, loads(expected)) is equal


def test_integers_of_any_length_cross() -> None:
    for sign, text in ((1, ""), (-1, "-")):
        value = decode(loads(json.dumps(encode(sign * 10**5000)).encode()))
        assert same(value, loads(f"{text}1{'0' * 5000}"))
        assert not same(value, loads(f"{text}1{'0' * 4999}1"))


def test_a_tolerance_reaches_floats_inside_values() -> None:
    assert same([0.1 + 0.2], [0.3], 1e-9)
    assert not same([0.31], [0.3], 1e-9)
    assert not same([3], [4], 1e9)


class Sneaky(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize("value", [object(), Sneaky(1), [Sneaky(1)], {"a": Sneaky(1)}, range(3), lambda: 1, iter(())])
def test_only_exact_builtin_types_cross(value: object) -> None:
    with pytest.raises(Unencodable):
        encode(value)


def test_depth_is_capped_on_both_sides() -> None:
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(Unencodable):
        encode(deep)
    for text in (b"[" * 100_000 + b"]" * 100_000, b"[" * 900 + b"]" * 900):
        with pytest.raises(ValueError, match="deep"):
            decode(loads(text))


@pytest.mark.parametrize(
    "data", [{"x": 1}, {"a": 1, "b": 2}, {}, {"i": "zz"}, {"d": [[1]]}, {"d": [[[1], 2]]}, {"s": [[]]}]
)
def test_what_encode_never_writes_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(data)
