"""Decide whether more than what a problem is about takes part in what its test asks.

`assert f(5) == ref(5)` asks nothing where `ref` too is the program's. A name counts as what the problem is about where
the problem says so; where it says nothing, one name of the program may take part in a question, whatever it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from sandbox.judging.assert_names import Names, loaded

ALWAYS: Final = frozenset({"Solution"})
"""Names that a problem is about wherever they are used."""


def is_doubtful(body: list[ast.stmt], names: Names, modules: set[str]) -> bool:
    """Return whether a question of the test involves names that only the program has, beyond what it is about."""
    used = {name for name in loaded(*body) if names.is_programs(name)} - modules
    if names.entry:
        return bool(used - names.entry - ALWAYS)
    if len(used) < 2:
        return False
    origins: dict[str, set[str]] = {name: {name} for name in used}
    flows = [(goal, loaded(source)) for part in body for goal, source in _flows(part)]
    while any(_pour(origins, goal, sources) for goal, sources in flows):
        pass
    return any(
        len(set().union(*(origins.get(name, ()) for name in loaded(question)))) > 1
        for part in body
        for question in _questions(part)
    )


def _pour(origins: dict[str, set[str]], goal: str, sources: Iterable[str]) -> bool:
    """Return whether `goal` has got more origins."""
    old = origins.get(goal, set())
    new = old.union(*(origins.get(name, ()) for name in sources))
    origins[goal] = new
    return len(new) > len(old)


def _flows(part: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name with the value that it gets, without the order of statements."""
    for node in ast.walk(part):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((name, value) for target in targets for name in _stems(target))
            case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                yield from ((name, value) for name in _stems(target))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from ((name, value) for name in _stems(target))
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield from ((name, value) for name in _stems(target))
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                yield from ((name, value) for name in _stems(target))
            case ast.Call(func=ast.Attribute(value=owner), args=args, keywords=keywords):  # row.append(ref(2))
                given = [*args, *(keyword.value for keyword in keywords)]
                yield from ((name, value) for name in _stems(owner) for value in given)
            case ast.FunctionDef(name=name):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.Return | ast.Yield | ast.YieldFrom) and inner.value is not None:
                        yield name, inner.value


def _stems(target: ast.expr) -> set[str]:
    """The names that a target, or the owner of a method, begins with."""
    match target:
        case ast.Name(id=name):
            return {name}
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return set().union(*map(_stems, parts))
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            return _stems(inner)
    return set()


def _questions(part: ast.stmt) -> Iterator[ast.expr]:
    """Comparisons, calls, and what is looked at for its truth."""
    for node in ast.walk(part):
        if isinstance(node, ast.Compare | ast.Call):
            yield node
        elif isinstance(node, ast.Assert | ast.If | ast.While | ast.IfExp):
            yield from _atoms(node.test)


def _atoms(test: ast.expr) -> Iterator[ast.expr]:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _atoms(inner)
        case ast.BoolOp(values=parts):
            for inner in parts:
                yield from _atoms(inner)
        case _:
            yield test
