"""Asserts that say nothing of a program are told, and reading them takes time that grows with their length."""

from __future__ import annotations

import sys
from typing import Any

from sandbox.core.asserts import says_nothing


def steps(count: int) -> int:
    """Steps that it takes to read so many functions, each of which calls the next one; the last one asserts."""
    text = "a0()\n" + "".join(f"def a{n}(): a{n + 1}()\n" for n in range(count)) + f"def a{count}(): assert f(1)\n"
    seen = 0

    def counted(*_: Any) -> Any:
        nonlocal seen
        seen += 1
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        assert says_nothing(text, "f") == ""
    finally:
        sys.settrace(before)
    return seen


def test_many_functions_are_read_in_steps_that_grow_with_their_number() -> None:
    assert steps(600) < 2.2 * steps(300)
