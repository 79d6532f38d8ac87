"""Decide whose a name is that an assert uses: the program's, or the test's own.

    the program's   what the problem is about (its fn_name, or `f` of a final `check(f)`), and what neither the test nor
                    the preamble binds: at any depth, by whatever statement
    the test's      all else, and with it what a star import of an unknown module or code out of a text may bind

The program's source is not read: its author may gain from a wrong answer.
"""

from __future__ import annotations

import ast
import builtins
import importlib
from collections.abc import Iterator
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
        opaque=_is_opaque(test) or _is_opaque(preamble),
    )


def loaded(*nodes: ast.AST) -> set[str]:
    """Names that these use."""
    return {
        inner.id
        for node in nodes
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
    }


def bound_by(node: ast.stmt) -> set[str]:
    """Names that this statement binds, at any depth."""
    return {name for name, _ in _bound([node])}


def _bound(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """(name, "module", "builtin" or "other"), in the order of the text."""
    for part in body:
        for node in ast.walk(part):
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


def _is_opaque(body: list[ast.stmt]) -> bool:
    for part in body:
        for node in ast.walk(part):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and not _names_in(node.module or ""):
                return True
            if isinstance(node, ast.Name) and node.id in _DYNAMIC:
                return True
            if isinstance(node, ast.Attribute) and node.attr in ("__dict__", "modules"):
                return True
    return False


@lru_cache(maxsize=256)
def _names_in(module: str) -> tuple[str, ...]:
    """Return the names that `from module import *` binds; none for a module that is not in the table."""
    if module not in _STARS:
        return ()
    found = importlib.import_module(module)
    listed = getattr(found, "__all__", None)
    return tuple(listed if listed is not None else (name for name in vars(found) if name[:1] != "_"))
