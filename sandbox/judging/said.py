"""Show the return value of a judged program to people: as JSON where it has that form, like the expected one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from sandbox.judging.assert_values import Check
from sandbox.judging.python_asserts import Plan

_CALL_CHARS_MAX: Final = 200
_DECIMAL_BITS_MAX: Final = 1 << 17
_TOO_LONG: Final = "a value with an integer of more than 4,300 digits"


def describe_value(value: Any) -> str:
    """The value as JSON, or as Python writes it where it has no JSON form."""
    if type(value) is int:
        return _digits(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return _python(value)


def describe_calls(plan: Plan, check: Check, values: list[Any]) -> str:
    """The calls of the program in one assert and what each returned, a line each."""
    calls = [text for mode, text in plan.steps if mode == "eval"]
    return "\n".join(f"{_short(calls[number])} = {_python(values[number])}" for number in check.slots)


def _python(value: Any) -> str:
    if type(value) is int:
        return _digits(value)
    if isinstance(value, Iterator):
        return f"a {type(value).__name__}"  # its repr is an address, and the check has used it up
    try:
        return repr(value)
    except ValueError:
        return _TOO_LONG


def _digits(value: int) -> str:
    """A long integer in hexadecimal: in decimal it would take the judge's time."""
    return str(Decimal(value)) if value.bit_length() <= _DECIMAL_BITS_MAX else hex(value)


def _short(call: str) -> str:
    return call if len(call) <= _CALL_CHARS_MAX else call[:_CALL_CHARS_MAX] + "…"
