"""What was expected in a test and what came, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMPARED = ("stdio", "function", "")
"""Kinds of problems whose tests compare what came with what was expected; "" of rows that do not say their kind."""


def compared(kind: str, test: Mapping[str, Any]) -> bool:
    """Whether a test of a row says both, and compares them."""
    return kind in COMPARED and test.get("expected") is not None and test.get("got") is not None


def difference_of(kind: str, test: Mapping[str, Any]) -> list[str]:
    """The lines of ``sandbox.diff_lines``; none where they are the same, or not compared."""
    if not compared(kind, test):
        return []
    from sandbox import Excerpt, diff_lines  # with all data types of the sandbox

    return diff_lines(Excerpt.from_json(test["expected"]), Excerpt.from_json(test["got"]), kind=kind or "stdio")
