"""Decide whose a name is that an assert uses, and whether more of the program's takes part than what it is about.

    the program's   what the problem is about (its fn_name, or `f` of a final `check(f)`), and what neither the test nor
                    the preamble binds: at any depth, by whatever statement
    the test's      all else, and with it what a star import of an unknown module or code out of a text may bind

The program's source is not read: its author may gain from a wrong answer. `assert f(5) == ref(5)` asks nothing where
`ref` too is the program's: where the problem does not say what it is about, one name of the program may take part in a
question, whatever it is.
"""

from __future__ import annotations

import ast
import builtins
import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_STARS: Final = (
    *("abc", "array", "bisect", "builtins", "calendar", "cmath", "collections", "copy", "dataclasses", "datetime"),
    *("decimal", "enum", "fractions", "functools", "heapq", "io", "itertools", "json", "math", "numbers", "operator"),
    *("os", "queue", "random", "re", "statistics", "string", "sys", "time", "typing"),
)
"""Modules whose names are known, and whose import has no effect."""
_DYNAMIC: Final = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "__import__", "importlib"})
_BINDERS: Final = {
    ast.FunctionDef: "name", ast.AsyncFunctionDef: "name", ast.ClassDef: "name", ast.ExceptHandler: "name",
    ast.MatchAs: "name", ast.MatchStar: "name", ast.MatchMapping: "rest", ast.arg: "arg",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    """Names that test and preamble bind."""

    entry: frozenset[str]
    """Names that the problem is about: the program's, unless the test itself binds them."""
    test: frozenset[str]
    preamble: frozenset[str]
    modules: frozenset[str]
    """Bound by nothing but `import name`."""
    opaque: bool
    """More may be bound than can be seen."""

    def is_programs(self, name: str) -> bool:
        """Only the program's source can have bound it."""
        if name in self.entry:
            return name not in self.test
        return not (self.opaque or name in self.test or name in self.preamble or name in vars(builtins))

    def is_builtin(self, name: str) -> bool:
        """The name means in the test what it means here."""
        free = name not in self.entry and name not in self.test and name not in self.preamble
        return free and not self.opaque and name in vars(builtins)


def names_of(test: list[ast.stmt], preamble: list[ast.stmt], entry: frozenset[str]) -> Names:
    """The names of a case. `entry`: what the problem says it is about."""
    bound_test, bound_preamble = list(_bound(test)), list(_bound(preamble))
    last, foreign = dict(bound_preamble + bound_test), {name for name, kind in bound_test if kind != "module"}
    return Names(
        entry=entry,
        test=frozenset(name for name, _ in bound_test),
        preamble=frozenset(name for name, kind in dict(bound_preamble).items() if kind != "builtin"),
        modules=frozenset(name for name, kind in last.items() if kind == "module" and name not in foreign),
        opaque=any(map(_is_opaque, walk(*test, *preamble))),
    )


def loaded(*nodes: ast.AST) -> set[str]:
    """Names that these use."""
    return {node.id for node in walk(*nodes) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def walk(*nodes: ast.AST) -> list[ast.AST]:
    """All nodes in these."""
    return [inner for node in nodes for inner in ast.walk(node)]


def given(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def bound_by(node: ast.stmt) -> set[str]:
    """Names that this statement binds, at any depth."""
    return {name for name, _ in _bound([node])}


def _bound(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """(name, "module", "builtin" or "other"), in the order of the text."""
    for node in walk(*body):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, "other"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                plain = alias.asname in (None, alias.name)
                yield (alias.asname or alias.name).partition(".")[0], "module" if plain else "other"
        elif isinstance(node, ast.ImportFrom):
            kind = "builtin" if node.module == "builtins" else "other"
            stars = _names_in(node.module or "") if node.names[0].name == "*" else ()
            yield from ((name, kind) for name in stars)
            yield from ((alias.asname or alias.name, "other") for alias in node.names if alias.name != "*")
        elif (field := _BINDERS.get(type(node))) and (name := getattr(node, field)):
            yield name, "other"


def _is_opaque(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=module, names=[ast.alias(name="*"), *_]):
            return not _names_in(module or "")
        case ast.Name(id=name):
            return name in _DYNAMIC
        case ast.Attribute(attr=name):
            return name in ("__dict__", "modules")
    return False


@lru_cache(maxsize=256)
def _names_in(module: str) -> tuple[str, ...]:
    """Return the names that `from module import *` binds; none for a module that is not in the table."""
    if module not in _STARS:
        return ()
    found = importlib.import_module(module)
    listed = getattr(found, "__all__", None)
    return tuple(listed if listed is not None else (name for name in vars(found) if name[:1] != "_"))


_ALWAYS: Final = frozenset({"Solution"})
"""Names that a problem is about wherever they are used."""


def is_doubtful(body: list[ast.stmt], names: Names, modules: set[str]) -> bool:
    """Return whether a question of the test involves names that only the program has, beyond what it is about."""
    used = {name for name in loaded(*body) if names.is_programs(name)} - modules
    if names.entry:
        return bool(used - names.entry - _ALWAYS)
    if len(used) < 2:
        return False
    origins: dict[str, set[str]] = {name: {name} for name in used}

    def origins_of(names: Iterable[str]) -> set[str]:
        return set().union(*(origins.get(name, ()) for name in names))

    flows: dict[str, set[str]] = {}
    for goal, source in _flows(body):
        flows.setdefault(goal, {goal}).update(loaded(source))
    size = 0
    while size < (size := sum(map(len, origins.values()))):
        origins |= {goal: origins_of(sources) for goal, sources in flows.items()}
    return any(len(origins_of(loaded(question))) > 1 for question in _questions(body))


def _flows(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield each name with the value that it gets, without the order of statements."""
    for node in walk(*body):
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
            case ast.Call(func=ast.Attribute(value=owner)):  # row.append(ref(2))
                yield from ((name, value) for name in _stems(owner) for value in given(node))
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


def _questions(body: list[ast.stmt]) -> Iterator[ast.expr]:
    """Comparisons, calls, and what is looked at for its truth."""
    for node in walk(*body):
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
