"""Find out whether the asserts of a case test the program: a case whose asserts do not is passed by every program.

The names that only the program can bind are the names that the test uses and binds nowhere, at any depth, by whatever
statement; or binds only after it used them, as in ``area = area(3)``. The preamble's count as the program's, which runs
after it and may bind them anew.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Iterator
from typing import Final

_DYNAMIC: Final = frozenset({"exec", "eval", "globals", "locals", "vars", "open", "__import__", "__builtins__"})
"""Names by which code may reach one that is not written."""
_RUNNERS: Final = _DYNAMIC | {"getattr", "dir", "modules", "__dict__"}
"""Names by which code may call functions that it does not name."""
_SO: Final = "so every program would pass"
_LIBRARY: Final = sys.stdlib_module_names - {"builtins", "gc", "importlib", "inspect", "runpy", "subprocess"}
"""Modules by which it cannot."""


def says_nothing(text: str, fn_name: str | None = None) -> str:
    """Return why the asserts of ``text`` test nothing of any program; "" where they may test something. Raises what
    parsing code raises.
    """
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    failing = list(filter(_may_fail, nodes))
    if not failing:
        return f"holds no assert statement, {_SO}"
    if not _may_run(tree):
        return f"calls none of its functions that assert, {_SO}"
    if all(isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and node.test.elts for node in failing):
        return f"asserts tuples, which always hold (leave the brackets out), {_SO}"
    if any(map(_from_elsewhere, nodes)):
        return ""
    bound, used = set[str](), set[str]()
    for name, binds in _globals(symtable.symtable(text, "test", "exec")):
        (bound if binds else used).add(name)
    about = {fn_name.partition(".")[0]} if fn_name else _passed_last(tree)
    if _reach_program(free := used - bound, about):
        return ""
    if (own := sorted(bound & _called(nodes))) and not _reach_program(_used_before(tree), about):
        return f"defines itself what it asserts ({', '.join(own)}), and asks nothing of a program"
    return "" if own or (free & _called(nodes) and not fn_name) else f"uses nothing of a program, {_SO}"


def _may_fail(node: ast.AST) -> bool:
    """Return whether it is an assert or the like: ``raise AssertionError``, ``assert_equal(...)`` of a library."""
    match node:
        case ast.Raise(exc=ast.Name(name) | ast.Call(func=ast.Name(name))):
            return name in ("AssertionError", "Exception")
        case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name)):
            return name.startswith("assert")
    return isinstance(node, ast.Assert)


def _reach_program(names: set[str], about: set[str]) -> bool:
    """Return whether one of the names, which no code of the test binds, is the program's, or leads to one that is."""
    return not names <= vars(builtins).keys() or not names.isdisjoint(about | _DYNAMIC)


def _passed_last(tree: ast.Module) -> set[str]:
    """The function that a final ``check(f)`` is about, which may be called as one of Python's is."""
    match tree.body[-1]:
        case ast.Expr(ast.Call(ast.Name(), [ast.Name(name)], [])):
            return {name}
    return set()


def _globals(table: symtable.SymbolTable) -> Iterator[tuple[str, bool]]:
    """Global names of the code, each with whether it is bound there, or else used."""
    top = table.get_type() == "module"
    # Table.get_symbols looks through all inner scopes for each symbol.
    for name, flags in table._table.symbols.items():  # type: ignore[attr-defined]
        symbol = symtable.Symbol(name, flags, module_scope=top)
        if top or symbol.is_global():
            if symbol.is_assigned() or symbol.is_imported():
                yield name, True
            if symbol.is_referenced():
                yield name, False
    for child in table.get_children():
        yield from _globals(child)


def _from_elsewhere(node: ast.AST) -> bool:
    """Return whether it may reach the program by other names: of a module that it imports, or unwritten ones."""
    if isinstance(node, ast.ImportFrom):
        names, star = [node.module or ""], node.names[0].name == "*"
    elif isinstance(node, ast.Import):
        names, star = [alias.name for alias in node.names], False
    else:
        return isinstance(node, ast.Attribute) and node.attr in ("modules", "__dict__")
    return star or any(name.partition(".")[0] not in _LIBRARY for name in names)


def _called(nodes: list[ast.AST]) -> set[str]:
    """The names that calls begin with: f and Solution in ``f(1)`` and ``Solution().f(1)``."""
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.Call):
            part: ast.AST = node.func
            while isinstance(part, ast.Attribute | ast.Call | ast.Subscript):
                part = part.func if isinstance(part, ast.Call) else part.value
            if isinstance(part, ast.Name):
                found.add(part.id)
    return found


def _used_before(tree: ast.Module) -> set[str]:
    """Names that plain statements use before any statement binds them."""
    found, bound = set[str](), set[str]()
    for statement in tree.body:
        nodes = list(ast.walk(statement))
        if isinstance(statement, ast.Assign | ast.Expr | ast.Assert) and not any(
            isinstance(node, ast.Lambda) for node in nodes
        ):
            value = list(ast.walk(statement.test if isinstance(statement, ast.Assert) else statement.value))
            found |= {node.id for node in value if isinstance(node, ast.Name)} - _bound(value) - bound
        bound |= _bound(nodes)
    return found


def _bound(nodes: list[ast.AST]) -> set[str]:
    """Names that some of the nodes bind, in whatever scope."""
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
            found.add(node.name or "")
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found


def _may_run(tree: ast.AST) -> bool:
    """Return whether code reaches an assert. By names: a function runs where running code names it, or its class.

    Not those of unittest and pytest, which keep a failed assert to themselves; nor code under
    ``if __name__ == "__main__"``, for tests are no main module here.
    """
    waiting, asleep, named, awake = [("", tree)], dict[str, list[ast.AST]](), set[str](), set[ast.AST]()
    while waiting:
        inside, node = waiting.pop()
        if _may_fail(node) or not _RUNNERS.isdisjoint(written := _written(node)):
            return True
        woken = [part for name in written for part in asleep.pop(name, ())]
        named |= written
        below = [] if _is_kept_back(node) else list(ast.iter_child_nodes(node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_run_by_decorator(node):
            body, names = set(node.body), {node.name, inside}
            below = [part for part in below if part not in body]
            if names & named:
                woken += node.body
            for name in names - named:
                asleep.setdefault(name, []).extend(node.body)
        waiting += [(node.name if isinstance(node, ast.ClassDef) else inside, part) for part in below]
        waiting += [("", part) for part in woken if part not in awake]
        awake.update(woken)
    return False


def _is_kept_back(node: ast.AST) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(name.endswith("TestCase") for base in node.bases for name in _written(base))
    match node:
        case ast.If(ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]), orelse=[]):
            return True
    return False


def _written(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def _is_run_by_decorator(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a decorator may call it: those of pytest only mark it."""
    return any("pytest" not in {name for part in ast.walk(mark) for name in _written(part)}
               for mark in node.decorator_list)  # fmt: skip
