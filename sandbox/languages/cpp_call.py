"""The code below a C++ program of the function kind, which calls its function."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import Any, Final

# Below the program, so with names that no macro of a program has.
CPP_CALL: Final = """
struct sandbox_direct {
    template <class Sandbox_job, class Sandbox_owner = {owner}>
    auto operator()(Sandbox_job &sandbox_job) const -> decltype(sandbox_harness::sandbox_call(sandbox_job, {callee})) {
        return sandbox_harness::sandbox_call(sandbox_job, {callee});
    }
};
void sandbox_harness_call() {
    sandbox_harness::sandbox_choose<{types}>(sandbox_direct{}, [](auto &&...sandbox_given) -> decltype({called}) {
        return {called};
    });
}
"""

_READ_MAX: Final = 1 << 18  # characters of cases: to work out the types of larger ones takes longer than the compiler
_UNKNOWN: Final[str | None] = ""
_NUMBERS: Final = ("int", "long long", "__int128", "double")
_PLAIN: Final = {bool: "bool", float: "double", str: "std::string"}


def argument_types(cases: Sequence[str]) -> str:
    """C++ types for the arguments of these cases (JSON lists), one `Types` for each number of arguments.

    Where the values of an argument have no type in common, there are none.
    """
    if sum(map(len, cases)) > _READ_MAX:
        return ""
    found: dict[int, list[str | None]] = {}
    for case in cases:
        try:
            values = json.loads(case)
        except (ValueError, RecursionError):  # an integer of more than 4,300 digits, or very deep
            return ""
        known = found.get(len(values)) or [_UNKNOWN] * len(values)
        found[len(values)] = [_common(old, _type(value)) for old, value in zip(known, values, strict=True)]
    rows = ([_written(kind) for kind in row if kind is not None] for row in found.values() if None not in row)
    return ", ".join(f"sandbox_harness::Types<{', '.join(row)}>" for row in rows)


def _type(value: Any) -> str | None:
    """None where C++ has none."""
    if isinstance(value, list | dict):
        opening, items = ("[", value) if isinstance(value, list) else ("{", value.values())
        return _nested(opening, reduce(_common, map(_type, items), _UNKNOWN))
    if isinstance(value, int) and not isinstance(value, bool):
        size = value.bit_length()
        return "int" if size < 32 else "long long" if size < 64 else "__int128"
    return _PLAIN.get(type(value))


def _common(one: str | None, other: str | None) -> str | None:
    """The type that holds values of both; None where there is none."""
    if one is None or other is None:
        return None
    if one == other or other == _UNKNOWN:
        return one
    if one == _UNKNOWN:
        return other
    if one in _NUMBERS and other in _NUMBERS:
        return max(one, other, key=_NUMBERS.index)
    return _nested(one[0], _common(one[1:], other[1:])) if one[0] == other[0] and one[0] in "[{" else None


def _nested(opening: str, inner: str | None) -> str | None:
    return None if inner is None else opening + inner


def _written(kind: str) -> str:
    if kind.startswith("["):
        return f"std::vector<{_written(kind[1:])}>"
    if kind.startswith("{"):
        return f"std::map<std::string, {_written(kind[1:])}>"
    return kind or "int"
