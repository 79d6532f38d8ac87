"""Tests of one problem that no program can pass, for two of them require different results of one input or call."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from sandbox.compare import modes, values
from sandbox.compare.modes import CHECKER
from sandbox.core.checks import encode_text
from sandbox.core.nouns import Case
from sandbox.core.problem import Kind

_LONGEST: Final = 1 << 18
"""Characters of test code that is looked through; longer code has its results in a table."""


def contradiction(kind: Kind, cases: Sequence[Case], compare: str) -> str:
    """The input or the call of which the tests require two results; "" where there is none."""
    if kind == "assert":
        return _in_asserts(cases)
    if compare == CHECKER:
        return ""
    first: dict[str, str] = {}
    for case in cases:
        known = first.setdefault(case.input.rstrip(), case.expected or "")
        if known != case.expected and not _agree(kind, known, case.expected or "", compare):
            return case.input
    return ""


def _agree(kind: Kind, one: str, other: str, compare: str) -> bool:
    if kind == "function":
        try:
            a, b = values.loads(one), values.loads(other)
        except ValueError:
            return True  # Problem says what is wrong
        return modes.same_result(compare, a, b) or modes.same_result(compare, b, a)
    matches, first, second = modes.parse_mode(compare), encode_text(one), encode_text(other)
    return matches(first, second) or matches(second, first)


def _in_asserts(cases: Sequence[Case]) -> str:
    found: dict[tuple[int, str], object] = {}
    for case in cases:
        if len(case.input) > _LONGEST:
            continue
        try:
            tree = ast.parse(case.input)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # Problem refuses it, with the reason
        if call := _in_body(tree.body, 0, found):
            return call
    return ""


def _in_body(body: Sequence[ast.stmt], before: int, found: dict[tuple[int, str], object]) -> str:
    """Return the first call that is asserted with two results, "" for none. ``before`` identifies the statements that
    ran before these, without asserts: with other statements before it the result may differ.
    """
    for statement in body:
        if said := _said(statement):
            call, wanted = said
            known = found.setdefault((before, call), wanted)
            if known != wanted:
                return call
            continue
        before = hash((before, ast.dump(statement)))
        if call := _in_body(getattr(statement, "body", None) or (), before, found):
            return call
    return ""


def _said(statement: ast.stmt) -> tuple[str, object] | None:
    """(call, result) of `assert f(1) == 2`, `self.assertEqual(f(1), 2)`, and of `assert f(1)` whether it is true, where
    all that counts is written out.
    """
    match statement:
        case ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call)):
            return (f"bool({known})", False) if (known := _written(call)) else None
        case ast.Assert(test=ast.Call() as call):
            return (f"bool({known})", True) if (known := _written(call)) else None
        case ast.Assert(test=ast.Compare(left=call, ops=[ast.Eq()], comparators=[wanted])):
            pass
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="assertEqual"), args=[call, wanted, *_])):
            pass
        case _:
            return None
    try:
        return (known, ast.literal_eval(wanted)) if (known := _written(call)) else None
    except _NO_LITERAL:
        return None


def _written(call: ast.expr) -> str:
    """A call with arguments, all of them literals, of a name or of a method of a fresh object; "" for anything else."""
    match call:
        case ast.Call(func=ast.Name() | ast.Attribute(value=ast.Call(func=ast.Name(), args=[]))) if call.args:
            try:
                for part in (*call.args, *(keyword.value for keyword in call.keywords)):
                    ast.literal_eval(part)
                return ast.unparse(call)
            except _NO_LITERAL:
                return ""
    return ""


_NO_LITERAL: Final = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)
