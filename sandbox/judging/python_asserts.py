"""Assert problems: take the comparison out of the jail.

`assert f(1, [2]) == [3]` becomes two parts: the call `f(1, [2])`, whose *value* is computed in the jail and crosses the
wall as plain data, and the rest, `_ == [3]`, which the judge evaluates itself. So no object with its own `__eq__`, no
early exit and no patched name can pass it. The judge evaluates an allow-list only: literals, operators, comparisons,
a few builtins. An assert that does not fit runs in the jail as it stands, guarded by the completion token: `weak`.
"""

from __future__ import annotations

import ast
import builtins
import copy
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from sandbox.judging.bounded import BOUNDED, check_operands

_SAFE: Final[dict[str, Callable[..., Any]]] = {
    kind.__name__: kind
    for kind in (
        abs, all, any, bool, dict, float, frozenset, int, len, list, max, min, round, set, sorted, str, sum, tuple,
        type,
    )
}  # fmt: skip
_SAFE_MATH: Final[dict[str, Callable[..., Any]]] = {"isclose": math.isclose, "floor": math.floor, "ceil": math.ceil}
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_NUMERIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Mod: operator.mod, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_SLOT: Final = "_slot_"


@dataclass(frozen=True, slots=True)
class Check:
    """One assert, as the judge sees it: `test` with `_slot_k` where value k of the run belongs."""

    test: ast.expr
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs in the jail, in order, and what the judge checks afterwards."""

    steps: tuple[tuple[Literal["exec", "eval"], str], ...]
    checks: tuple[Check, ...]
    weak: bool


class _Unfit(Exception):
    """This assert cannot be decided outside the jail."""


def plan(text: str) -> Plan:
    """Split the statements of an assert case. Never fails on Python that parses: what does not fit stays inside."""
    body = _inline_check(ast.parse(text).body)
    steps: list[tuple[Literal["exec", "eval"], str]] = []
    checks: list[Check] = []
    weak = False
    own = _bound_names(body)
    for node in body:
        if isinstance(node, ast.Assert):
            splitter = _Splitter(sum(mode == "eval" for mode, _ in steps), own)
            try:
                test = splitter.visit(copy.deepcopy(node.test))  # a copy, for a failing visit leaves half a tree
                if splitter.builtin_calls and not splitter.calls:
                    raise _Unfit  # the program itself may be called `sum`
            except _Unfit:
                weak = True
            else:
                steps += [("eval", ast.unparse(call)) for call in splitter.calls]
                checks.append(Check(test, tuple(splitter.slots)))
                continue
        weak |= any(isinstance(inner, ast.Assert) for inner in ast.walk(node))
        steps.append(("exec", ast.unparse(node)))
    weak |= not any(check.slots for check in checks)
    return Plan(tuple(steps), tuple(checks), weak)


def holds(check: Check, values: list[Any]) -> bool:
    """Does the assert hold for these values? What raises, does not hold."""
    try:
        return bool(_evaluate(check.test, values))
    except (ArithmeticError, TypeError, ValueError, LookupError, RecursionError, AttributeError, MemoryError):
        return False


def _inline_check(body: list[ast.stmt]) -> list[ast.stmt]:
    """Turn `def check(candidate): ...` followed by `check(f)` into the statements of its body about `f`."""
    if len(body) < 2 or not isinstance(body[-1], ast.Expr) or not isinstance(body[-1].value, ast.Call):
        return body
    call, name = body[-1].value, None
    if isinstance(call.func, ast.Name) and len(call.args) == 1 and isinstance(call.args[0], ast.Name):
        name = call.func.id
    made = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    if name is None or len(made) != 1 or made[0].decorator_list or not _single_argument(made[0]):
        return body
    inner = made[0].body
    if any(
        isinstance(node, ast.Return | ast.Yield | ast.Await | ast.Global) for part in inner for node in ast.walk(part)
    ):
        return body
    parameter, target = made[0].args.args[0].arg, call.args[0].id  # type: ignore[attr-defined]
    if any(
        isinstance(n, ast.Name) and n.id == parameter and not isinstance(n.ctx, ast.Load) for n in ast.walk(made[0])
    ):
        return body
    alias = [] if parameter == target else [ast.parse(f"{parameter} = {target}").body[0]]
    return [node for node in body[:-1] if node is not made[0]] + alias + inner


def _single_argument(made: ast.FunctionDef) -> bool:
    args = made.args
    return len(args.args) == 1 and not (
        args.posonlyargs or args.kwonlyargs or args.vararg or args.kwarg or args.defaults
    )


class _Splitter(ast.NodeTransformer):
    """Replaces each call of the program by a slot; raises _Unfit at what the judge may not evaluate."""

    def __init__(self, first: int, own: frozenset[str]) -> None:
        self.first = first
        self.own = own
        self.calls: list[ast.expr] = []
        self.builtin_calls = 0
        self.slots: list[int] = []

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if _safe_function(node.func) is None:
            if not _is_program_call(node.func, self.own):
                raise _Unfit
            self.slots.append(self.first + len(self.calls))
            self.calls.append(node)
            return ast.Name(f"{_SLOT}{self.slots[-1]}", ast.Load())
        self.builtin_calls += 1
        if any(isinstance(arg, ast.Starred) for arg in node.args) or any(key.arg is None for key in node.keywords):
            raise _Unfit
        node.args = [self.visit(arg) for arg in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in ("int", "float", "str", "list", "tuple", "dict", "set", "bool"):
            return node
        raise _Unfit

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _FIT):
            raise _Unfit
        return super().generic_visit(node)


_FIT: Final = (
    ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp,
    ast.Subscript, ast.Load, ast.And, ast.Or, *_COMPARE, *_NUMERIC, *_UNARY,
)  # fmt: skip


def _bound_names(body: list[ast.stmt]) -> frozenset[str]:
    """Names that the test itself imports or defines: what they compute is the test's, not the program's."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return frozenset(names)


def _is_program_call(func: ast.expr, own: frozenset[str]) -> bool:
    """`f(...)` or `Solution().f(...)`: a name of the program's, never a method of something else."""
    if isinstance(func, ast.Name):
        return func.id not in vars(builtins) and func.id not in own
    return (
        isinstance(func, ast.Attribute)
        and isinstance(func.value, ast.Call)
        and isinstance(func.value.func, ast.Name)
        and func.value.func.id[:1].isupper()
    )


def _safe_function(func: ast.expr) -> Callable[..., Any] | None:
    if isinstance(func, ast.Name):
        return BOUNDED.get(func.id, _SAFE.get(func.id))
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "math":
        return _SAFE_MATH.get(func.attr)
    return None


def _evaluate(node: ast.expr, values: list[Any]) -> Any:
    """The value of an expression that `_Splitter` let through."""

    def walk(inner: ast.expr) -> Any:
        return _evaluate(inner, values)

    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return values[int(node.id[len(_SLOT) :])] if node.id.startswith(_SLOT) else _SAFE[node.id]
        case ast.Subscript():
            return walk(node.value)[walk(node.slice)]
        case ast.Call():
            function = _safe_function(node.func) or bool
            return function(*map(walk, node.args), **{k.arg: walk(k.value) for k in node.keywords if k.arg})
        case ast.List() | ast.Tuple() | ast.Set() | ast.Dict():
            return _container(node, walk)
    return _operation(node, walk)


def _container(node: ast.List | ast.Tuple | ast.Set | ast.Dict, walk: Callable[[ast.expr], Any]) -> Any:
    if isinstance(node, ast.Dict):
        return {walk(key): walk(item) for key, item in zip(node.keys, node.values, strict=True) if key is not None}
    make = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
    return make(walk(item) for item in node.elts)


def _operation(node: ast.expr, walk: Callable[[ast.expr], Any]) -> Any:
    match node:
        case ast.UnaryOp():
            return _UNARY[type(node.op)](walk(node.operand))
        case ast.BinOp():
            return _binary(type(node.op), walk(node.left), walk(node.right))
        case ast.BoolOp():
            return _bool(node, walk)
        case ast.Compare():
            return _compare(node, walk)
    raise TypeError(f"cannot evaluate {type(node).__name__}")


def _binary(kind: type[ast.operator], left: Any, right: Any) -> Any:
    if kind is not ast.Add and not all(isinstance(side, int | float | complex | set) for side in (left, right)):
        raise TypeError("only numbers take this operator here")  # 'a' * 10**12 would be the judge's own memory
    if kind not in (ast.Add, ast.Sub):
        check_operands(left, right)
    return _NUMERIC[kind](left, right)


def _bool(node: ast.BoolOp, walk: Callable[[ast.expr], Any]) -> Any:
    stop = isinstance(node.op, ast.Or)
    result: Any = not stop
    for item in node.values:
        result = walk(item)
        if bool(result) is stop:
            break
    return result


def _compare(node: ast.Compare, walk: Callable[[ast.expr], Any]) -> bool:
    left = walk(node.left)
    for kind, item in zip(node.ops, node.comparators, strict=True):
        right = walk(item)
        if not _COMPARE[type(kind)](left, right):
            return False
        left = right
    return True
