"""Assert problems: take the comparison out of the program's reach.

    outside   `assert f(1, [2]) == [3]` becomes the call `f(1, [2])`, whose *value* is computed in the jail and crosses
              the wall as plain data, and the rest, `_ == [3]`, which the judge evaluates itself (assert_values.py)
    apart     any other test runs in a jail of its own, where the program's names are calls to the program in its jail
              (apart.py): loops, helpers, classes of the test and of the preamble
              a test of the first kind too, when a value cannot cross and the preamble has classes: it may be of one
    inside    what neither can decide runs beside the program, guarded by the completion token: `weak`. So does a test
              that held nothing apart and may need more than values (assert_apart.py), and one without assert statements

So no object with its own `__eq__`, no early exit and no patched name can pass the first two. assert_names.py
decides which names are the program's, from test and preamble alone: a program cannot choose to be judged weakly.
"""

from __future__ import annotations

import ast
import builtins
import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from sandbox.judging.assert_apart import Apart, apart_of, made_by, modules_of, root_of, trusts_program
from sandbox.judging.assert_names import Names, bound_by, is_doubtful, loaded, names_of, walk
from sandbox.judging.assert_values import FIT, SAFE, Check, is_safe_math, slot

_TYPES: Final = ("int", "float", "str", "list", "tuple", "dict", "set", "bool")


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps that run in the jail, in order, and the checks that the judge makes afterwards."""

    steps: tuple[tuple[Literal["exec", "eval"], str], ...]
    checks: tuple[Check, ...]
    weak: bool
    apart: Apart | None = None
    """Tried before the steps; where it holds, the judgement is not weak."""
    instead: Plan | None = None
    """Plan for a program that returned what does not cross: it may be an object of one of the preamble's classes."""


@lru_cache(maxsize=64)
def plan_asserts(text: str, preamble: str = "", fn_name: str | None = None) -> Plan:
    """Split the statements of an assert case. Never fails on valid Python: what cannot be split stays inside."""
    above: list[ast.stmt] = []
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # reported when it runs
        above = ast.parse(preamble).body
    whole = ast.parse(text).body
    entry = _entry(whole, fn_name)
    body = _inline_check(whole)
    names = names_of(body, above, entry)
    found = _split(body, names)
    if found.weak and not any(isinstance(node, ast.Assert) for node in walk(*whole)):
        return found  # what decides in place of an assert, as `raise AssertionError`, is not looked into
    if found.weak:
        return Plan(found.steps, found.checks, True, apart_of(whole, above, names_of(whole, above, entry)))
    if not any(map(_may_pass_for_values, walk(*above))):
        return found
    instead = Plan((("exec", text),), (), True, apart_of(whole, above, names_of(whole, above, entry)))
    return replace(found, instead=instead)


def _may_pass_for_values(node: ast.AST) -> bool:
    """Return whether this makes a class whose objects may be equal to values, or be computed with like them."""
    match node:
        case ast.ClassDef(bases=bases, keywords=[], decorator_list=decorators, body=body):
            names = {name for part in body for name in _bound_in_class(part)}
            operators = {name for name in names if name[:2] == name[-2:] == "__"} - _NO_OPERATORS
            return bool(operators) or not (all(map(_is_quiet, bases)) and all(map(_is_dataclass, decorators)))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in ("setattr", "type", "make_dataclass", "new_class", "Enum", "IntEnum", "StrEnum", "Flag")
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return name[:2] == name[-2:] == "__"
    return isinstance(node, ast.ClassDef)


_NO_OPERATORS: Final = frozenset(
    {"__init__", "__post_init__", "__repr__", "__str__", "__slots__", "__doc__", "__annotations__", "__match_args__"}
)


def _bound_in_class(part: ast.stmt) -> set[str]:
    return {part.name} if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) else bound_by(part)


def _is_quiet(base: ast.expr) -> bool:
    kind = vars(builtins).get(base.id) if isinstance(base, ast.Name) else None
    return kind is object or (isinstance(kind, type) and issubclass(kind, BaseException))


def _is_dataclass(decorator: ast.expr) -> bool:
    made = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (made.id if isinstance(made, ast.Name) else getattr(made, "attr", "")) == "dataclass"


def _split(body: list[ast.stmt], names: Names) -> Plan:
    steps: list[tuple[Literal["exec", "eval"], str]] = []
    checks: list[Check] = []
    weak = False
    makes = made_by(body)
    for node in _needed(body, names):
        if isinstance(node, ast.Assert):
            splitter = _Splitter(sum(mode == "eval" for mode, _ in steps), names, makes)
            test = splitter.visit(copy.deepcopy(node.test))
            fits = splitter.fits and (splitter.calls or not splitter.builtins)  # the program may be called `sum`
            if fits and not trusts_program(node.test, names) and not is_doubtful([node], names, modules_of([node])):
                steps += [("eval", ast.unparse(call)) for call in splitter.calls]
                checks.append(Check(test, tuple(splitter.slots)))
                continue
            weak = True
        weak |= not _is_plain(node, names)
        steps.append(("exec", ast.unparse(node)))
    return Plan(tuple(steps), tuple(checks), weak or not any(check.slots for check in checks))


def _needed(body: list[ast.stmt], names: Names) -> list[ast.stmt]:
    """Return the statements but for each that binds names which no call of the program uses: the test's answers stay
    outside the jail.
    """
    if names.opaque or not all(isinstance(node, ast.Assert) or _is_plain(node, names) for node in body):
        return body
    used = loaded(*(node for node in body if isinstance(node, ast.Assert)))
    kept: list[ast.stmt] = []
    for node in reversed(body):
        star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        if isinstance(node, ast.Assert) or bound_by(node) & (used | names.preamble) or star:
            kept.append(node)
            used |= loaded(node)
    return kept[::-1]


def _is_plain(node: ast.stmt, names: Names) -> bool:
    """Return whether a statement only binds names and does not involve the program."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Pass | ast.FunctionDef | ast.ClassDef):
        return not any(map(names.is_programs, loaded(node)))
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        simple = all(isinstance(inner, _TARGETS) for target in targets for inner in ast.walk(target))
        return simple and not any(map(names.is_programs, loaded(node)))
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


_TARGETS: Final = (ast.Name, ast.Tuple, ast.List, ast.Store)


def _entry(body: list[ast.stmt], fn_name: str | None) -> frozenset[str]:
    """Return what the problem is about: its function, and what a final `check(f)` or `check(Solution().f)` is called
    with.
    """
    found = {fn_name.partition(".")[0]} if fn_name else set()
    call = body[-1].value if body and isinstance(body[-1], ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and len(call.args) == 1:
        found.add(root_of(call.args[0]))
    return frozenset(found - {""})


def _inline_check(body: list[ast.stmt]) -> list[ast.stmt]:
    """Turn `def check(candidate): ...` followed by `check(f)` into the statements of its body about `f`."""
    if len(body) < 2 or not isinstance(body[-1], ast.Expr) or not isinstance(body[-1].value, ast.Call):
        return body
    call = body[-1].value
    name = call.func.id if isinstance(call.func, ast.Name) and len(call.args) == 1 and not call.keywords else None
    made = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    if name is None or len(made) != 1 or made[0].decorator_list or not _single_argument(made[0]):
        return body
    if not root_of(call.args[0]) or any(isinstance(n, ast.Call) and n.args for n in ast.walk(call.args[0])):
        return body
    inner = made[0].body
    if any(isinstance(node, _NOT_INLINED) for node in walk(*inner)):
        return body
    parameter, target = made[0].args.args[0].arg, call.args[0]
    used = [n for n in walk(*inner) if isinstance(n, ast.Name)]
    if any(n.id == parameter and not isinstance(n.ctx, ast.Load) for n in used):
        return body
    rename = _Rename(parameter, target)
    return [node for node in body[:-1] if node is not made[0]] + [rename.visit(copy.deepcopy(n)) for n in inner]


_NOT_INLINED: Final = (
    ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Lambda, ast.FunctionDef,
    ast.AsyncFunctionDef, ast.ClassDef,
)  # fmt: skip


class _Rename(ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.value) if node.id == self.name else node


def _single_argument(made: ast.FunctionDef) -> bool:
    args = made.args
    return len(args.args) == 1 and not (
        args.posonlyargs or args.kwonlyargs or args.vararg or args.kwarg or args.defaults
    )


class _Splitter(ast.NodeTransformer):
    """Replaces each call of the program by a slot; `fits` where the judge may evaluate all the rest."""

    def __init__(self, first: int, names: Names, makes: set[str]) -> None:
        self.first, self.names, self.makes = first, names, makes
        self.fits = True
        self.calls: list[ast.expr] = []
        self.slots: list[int] = []
        self.builtins = 0

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if _is_program_call(node.func, self.names):
            if isinstance(node.func, ast.Name) and node.func.id in self.makes:
                self.fits = False  # an object, whose own methods are asked
            self.slots.append(self.first + len(self.calls))
            self.calls.append(node)
            return slot(self.slots[-1])
        builtin = isinstance(node.func, ast.Name) and node.func.id in SAFE and self.names.is_builtin(node.func.id)
        # `math` is the module, or a name that the program is expected to import
        is_module = "math" in self.names.modules or self.names.is_programs("math")
        self.fits &= builtin or (is_safe_math(node.func) and is_module)
        self.builtins += 1
        self.fits &= not any(isinstance(arg, ast.Starred) for arg in node.args)
        self.fits &= not any(key.arg is None for key in node.keywords)
        node.args = [self.visit(arg) for arg in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        self.fits &= node.id in _TYPES and self.names.is_builtin(node.id)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            self.fits = False  # a format
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        sides = (node.left, *node.comparators)
        if all(isinstance(side, ast.Call) and _is_program_call(side.func, self.names) for side in sides):
            self.fits = False  # both may be objects that only the program can compare
        return self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        self.fits &= None not in node.keys
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        self.fits &= isinstance(node, FIT)
        return super().generic_visit(node)


def _is_program_call(func: ast.expr, names: Names) -> bool:
    """`f(...)`, `Solution.f(...)` or `Solution().f(...)`: never a method of a value, for that is the test's."""
    if isinstance(func, ast.Name):
        return names.is_programs(func.id)
    if not isinstance(func, ast.Attribute):
        return False
    owner = func.value.func if isinstance(func.value, ast.Call) else func.value
    return isinstance(owner, ast.Name) and owner.id[:1].isupper() and names.is_programs(owner.id)
