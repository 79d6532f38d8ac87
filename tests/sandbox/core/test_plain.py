"""What pandas, numpy and Parquet hand out, as plain values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sandbox import Problem
from sandbox.core import plain
from sandbox.core.plain import plain_value, python_literal, strange_encoding
from sandbox.errors import InvalidProblem

NAN = float("nan")


class NAType:
    """As pandas calls its missing value."""


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (np.array(["1\n", "2\n"], dtype=object), ["1\n", "2\n"]),
        (np.array([{"a": np.array([1, 2])}], dtype=object), [{"a": [1, 2]}]),
        ({"fn_name": NAN, "x": [NAType(), np.int64(3)]}, {"fn_name": None, "x": [None, 3]}),
        ({np.str_("a"): np.float64(0.5), 1: np.bool_(True)}, {"a": 0.5, 1: True}),
        ((1, (2, np.array(3))), [1, [2, 3]]),
        ({"deep": {"er": np.float32(NAN)}}, {"deep": {"er": None}}),
    ],
)
def test_values_of_other_libraries_become_plain_ones(given: Any, meant: Any) -> None:
    found = plain_value(given)
    assert found == meant
    assert repr(found) == repr(meant)  # types, too


def test_a_value_that_unfolds_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_NODES_MAX", 1 << 16)
    grown: list[Any] = []
    for _ in range(12):
        grown = [grown] * 10
    with pytest.raises(ValueError, match="parts"):
        plain_value(grown)


def test_a_problem_is_read_from_rows_of_parquet() -> None:
    cases = np.array([{"input": "1", "expected": "2", "group": None, "arguments": None, "files": None}], dtype=object)
    limits = {"cpu_s": np.float64(2), "wall_s": None, "memory_bytes": np.int64(1 << 28), "processes": NAN}
    row = {"id": "p", "kind": "stdio", "cases": cases, "compare": None, "limits": limits, "score": None}
    problem = Problem.of(row)
    assert (problem.cases[0].arguments, problem.compare, problem.limits.memory_bytes) == ((), "tokens", 1 << 28)
    with pytest.raises(InvalidProblem, match="unknown key 'score'"):
        Problem.of(row | {"score": 1})


@pytest.mark.parametrize("text", ["[1e400]", "{-1e999: 1}", "f(1)", "1 +", "["])
def test_what_is_no_literal_or_beyond_a_double_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        python_literal(text)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"\xef\xbb\xbf2\n", "BOM"),
        ("2\n".encode("utf-16"), "UTF-16"),
        ("2\n".encode("utf-16-le"), "UTF-16"),
        ("2\n".encode("utf-16-be"), "UTF-16"),
    ],
)
def test_a_text_in_another_encoding_is_told(raw: bytes, word: str) -> None:
    assert word in strange_encoding(raw.decode("utf-8", "surrogateescape"))
    assert strange_encoding("2\n") == strange_encoding("") == ""
