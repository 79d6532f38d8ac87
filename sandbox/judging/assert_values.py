"""Evaluate an assert in the judge: an allow-list of literals, operators, comparisons and a few builtins.

The values that come from a run are plain data (`sandbox.compare.values`), so no foreign code runs here.
"""

from __future__ import annotations

import ast
import copy
import math
import operator
import re
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from sandbox.compare import hashed

SAFE: Final[dict[str, Callable[..., Any]]] = {
    kind.__name__: kind
    for kind in (
        abs, all, any, bool, dict, float, frozenset, int, len, list, max, min, round, set, sorted, str, sum, tuple,
        type,
    )
}  # fmt: skip
_SAFE_MATH: Final = ("isclose", "floor", "ceil")
_NUMERIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Mod: operator.mod, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_SLOT: Final = "_slot_"
_NUMBERS: Final = (int, float, complex, Fraction, Decimal)
_REPEATED_MAX: Final = 1 << 22


FIT: Final = (
    ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp,
    ast.Subscript, ast.Load, ast.And, ast.Or, ast.cmpop, *_NUMERIC, ast.Not, ast.USub, ast.UAdd,
)  # fmt: skip


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Check:
    """One assert, as the judge sees it: `test` with `_slot_k` where value k of the run belongs."""

    test: ast.expr
    slots: tuple[int, ...]


def slot(number: int) -> ast.expr:
    """Return the place of value `number` of the run."""
    return ast.Name(f"{_SLOT}{number}", ast.Load())


def is_safe_math(func: ast.expr) -> bool:
    """Return whether this is a function of `math` that the judge evaluates."""
    return (
        isinstance(func, ast.Attribute)
        and isinstance(func.value, ast.Name)
        and func.value.id == "math"
        and func.attr in _SAFE_MATH
    )


def holds(check: Check, values: list[Any]) -> bool:
    """Return whether the assert holds for these values. One that raises does not hold."""
    try:
        code = _CODES.get(check) or _CODES.setdefault(check, _compiled(check))
        return bool(eval(code, {**_MEANINGS, **{f"{_SLOT}{k}": values[k] for k in check.slots}}))
    except (
        *(ArithmeticError, TypeError, ValueError, LookupError, RecursionError, AttributeError, MemoryError),
        SyntaxError,
    ):
        return False


_CODES: Final = WeakKeyDictionary[Check, types.CodeType]()
"""Compiled checks whose plans are still kept: code of long asserts takes megabytes each."""


def _compiled(check: Check) -> types.CodeType:
    """Compile the test, which has only nodes of FIT and names of SAFE, with operators that refuse long computations."""
    test = _Bounded().visit(copy.deepcopy(check.test))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of `is` with a literal
        return compile(ast.fix_missing_locations(ast.Expression(test)), "assert", "eval")


class _Bounded(ast.NodeTransformer):
    """Replaces operators and functions that may take too long by bounded ones. A type that is not called stays."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        sides = [self.visit(node.left), self.visit(node.right)]
        return ast.Call(ast.Name(type(node.op).__name__, ast.Load()), sides, [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in BOUNDED:
            node.func.id = f"_{node.func.id}"
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if node.arg == "key" and isinstance(node.value, ast.Name) and node.value.id in _TABLES:
            node.value.id = f"_{node.value.id}"  # it is called, for each item
        return self.generic_visit(node)


def _binary(kind: type[ast.operator], left: Any, right: Any) -> Any:
    if kind is ast.Mult and not all(isinstance(side, _NUMBERS) for side in (left, right)):
        row, times = (left, right) if isinstance(right, int) else (right, left)
        if len(row) * max(times, 0) > _REPEATED_MAX:  # 'a' * 10**12 would take the judge's own memory
            raise MemoryError("a sequence repeated too often")
    elif kind is not ast.Add and not all(isinstance(side, (*_NUMBERS, set, frozenset)) for side in (left, right)):
        raise TypeError("only numbers and sets take this operator here")
    check_operands(kind, left, right)
    return _NUMERIC[kind](left, right)


_SUM_MAX: Final = 1 << 28  # words or items that are copied
_PRODUCT_MAX: Final = 1 << 24  # words times words
_DIGITS_MAX: Final = 1 << 16  # that a number is rounded to
_CODED_MAX: Final = 1 << 14  # bytes in an encoding whose time may grow with the square of them
_LINEAR: Final = ("utf8", "ascii", "latin1", "utf16", "utf32", "cp1252")
_TABLES: Final = ("dict", "set")
_WORD_DIGITS: Final = 16  # of a hexadecimal number


def total(items: Iterable[Any], /, start: Any = 0) -> Any:
    """sum(items, start)."""
    items = list(items)
    kinds = set(map(type, items))
    if type(start) in (int, float) and (
        kinds <= {float} or (kinds <= {int} and _sum_of_ints(items, start) <= _SUM_MAX)
    ):
        return sum(items, start)  # without a look at each, which takes longer
    if any(isinstance(item, Fraction) for item in items):
        return _exact_total(items, start)
    size, work = _size(start), 0
    for item in items:  # numbers grow to the longest of them, lists and tuples to their whole length
        size = max(size, _size(item)) if isinstance(item, int | float | complex) else size + _size(item)
        work += size - 1
    if work > _SUM_MAX:
        raise ValueError("too long a sum")
    return sum(items, start)


def _sum_of_ints(items: list[int], start: float) -> int:
    """Return how many words are copied at most."""
    return len(items) * max(_size(start), _size(max(items, key=int.bit_length, default=0)))


def _exact_total(items: list[Any], total: Any) -> Any:
    """The sum of fractions, whose denominators multiply. Raises ValueError where it would take too long."""
    work = 0
    for item in items:
        work += _size(total) * _size(item)
        if work > _PRODUCT_MAX:
            raise ValueError("too long a sum of fractions")
        total = total + item
    return total


def check_operands(kind: type[ast.operator], left: Any, right: Any) -> None:
    """Raises ValueError where an operation on the two would take too long."""
    sizes = _size(left), _size(right)
    if any(isinstance(side, Fraction | Decimal) for side in (left, right)):
        work = max(sizes) ** 2  # of a common divisor, or of the digits of a whole number
    elif kind in (ast.Add, ast.Sub) or not (isinstance(left, int) and isinstance(right, int)):
        return
    else:
        work = sizes[0] * sizes[1]
    if work > _PRODUCT_MAX:
        raise ValueError("too long a product or quotient")


def rounded(number: Any, ndigits: Any = None) -> Any:
    """round(number, ndigits)."""
    if isinstance(ndigits, int) and abs(ndigits) > _DIGITS_MAX:
        raise ValueError("too many digits")
    if isinstance(ndigits, int) and ndigits < 0 and _size(number) * _size(10**-ndigits) > _PRODUCT_MAX:
        raise ValueError("too long a number to be rounded to that many digits")
    return round(number, ndigits)


def bounded_text(*given: Any, **named: Any) -> str:
    """str(value), or str(data, encoding, errors)."""
    data, codec = named.get("object", given[:1] and given[0]), named.get("encoding", given[1] if given[1:] else "utf8")
    is_linear = isinstance(codec, str) and re.sub("[-_ ]", "", codec).lower() in _LINEAR
    if isinstance(data, bytes) and len(data) > _CODED_MAX and not is_linear:
        raise ValueError("too long a text in this encoding")
    return str(*given, **named)


def is_affordable(values: list[Any]) -> bool:
    """Return whether the judge may compute with a run's values, still in their JSON form. Where there are fractions or
    decimals, a step costs the square of the longest number. Raises ValueError for what is no value.
    """
    items, longest, is_exact = 0, 1, False
    todo: list[Any] = [values]
    for part in todo:  # which grows meanwhile
        if type(part) is list:
            items += len(part)
            todo += [item for item in part if type(item) is list or type(item) is dict]
            continue
        ((tag, body),) = part.items()
        is_exact |= tag in ("f", "n")
        if type(body) is str and tag in ("i", "n"):  # a decimal's cost is not the square of its digits
            longest = max(longest, math.isqrt(len(body)) if tag == "n" else len(body) // _WORD_DIGITS)
        elif type(body) is list:
            todo.append(body)
    return not is_exact or items * longest**2 <= _PRODUCT_MAX


def _size(value: Any) -> int:
    """Return the size in words or items, at least 1."""
    if isinstance(value, Fraction):
        return _size(value.numerator) + _size(value.denominator)
    if isinstance(value, int):
        return 1 + value.bit_length() // 64
    return 1 + len(value) if isinstance(value, list | tuple) else 1


BOUNDED: Final[dict[str, Callable[..., Any]]] = {
    "dict": hashed.make_dict,
    "frozenset": hashed.make_frozenset,
    "round": rounded,
    "set": hashed.make_set,
    "str": bounded_text,
    "sum": total,
}
_MEANINGS: Final[dict[str, Any]] = {
    **{"__builtins__": {}, "math": math},
    **SAFE,
    **{f"_{name}": function for name, function in BOUNDED.items()},
    **{kind.__name__: partial(_binary, kind) for kind in _NUMERIC},
}
