"""Tests of the difference between what was expected in a test of a row and what came."""

from __future__ import annotations

from typing import Any

import pytest

from overlap.analysis.difference import difference_of


@pytest.mark.parametrize(
    ("kind", "expected", "got", "lines"),
    [
        ("stdio", "a\nb\n", "a\nc\n", ["  a", "- b", "+ c"]),
        ("", "7\n", "8\n", ["- 7", "+ 8"]),
        ("function", "[1, 2]", "[1, 3]", ["- [1, 2]", "+ [1, 3]"]),
        ("stdio", "a\n", "a\n", []),
        ("stdio", None, "a", []),
        ("stdio", "a", None, []),
        ("assert", "a", "f(1) = 2", []),
        ("interactive", "5", "? 1\n? 2\n", []),
        ("stdio", "1\n", {"head": "1", "tail": "9", "bytes": 1002, "sha256": "ab"},
         ["  1", "+ … about 1000 bytes left out …", "+ 9"]),
    ],
)  # fmt: skip
def test_what_is_compared_is_shown_line_by_line(kind: str, expected: Any, got: Any, lines: list[str]) -> None:
    assert difference_of(kind, {"expected": expected, "got": got}) == lines
