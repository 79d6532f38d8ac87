"""Whether the asserts of a case ask anything of the program: a case that does not is passed by every program.

The names that only the program can bind are those that the test uses and binds nowhere: at any depth, by whatever
statement. The preamble's count as the program's, which runs after it and may bind them anew.
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
_SO: Final = "so every program would pass"
_LIBRARY: Final = sys.stdlib_module_names - {"builtins", "gc", "importlib", "inspect", "runpy", "subprocess"}
"""Modules by which it cannot."""


def says_nothing(text: str, fn_name: str | None = None) -> str:
    """Why the asserts of ``text`` say nothing of any program; "" where they may say something. Raises what parsing code
    raises.
    """
    tree = ast.parse(text)
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
        return f"holds no assert statement, {_SO}"
    if not _runs_something(tree):
        return f"calls none of its functions, {_SO}"
    if any(_from_elsewhere(node) for node in ast.walk(tree)):
        return ""
    bound, used = set[str](), set[str]()
    for name, binds in _globals(symtable.symtable(text, "test", "exec")):
        (bound if binds else used).add(name)
    free = used - bound
    if free & _DYNAMIC or not free <= vars(builtins).keys() or (fn_name and fn_name.partition(".")[0] in free):
        return ""
    own = sorted(bound & _called(tree))
    if own:
        return f"defines itself what it asserts ({', '.join(own)}), and asks nothing of a program"
    return "" if free & _called(tree) and not fn_name else f"uses nothing of a program, {_SO}"


def _globals(table: symtable.SymbolTable) -> Iterator[tuple[str, bool]]:
    """Global names of the code, each with whether it is bound there, or else used."""
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if top or symbol.is_global():
            if symbol.is_assigned() or symbol.is_imported():
                yield symbol.get_name(), True
            if symbol.is_referenced():
                yield symbol.get_name(), False
    for child in table.get_children():
        yield from _globals(child)


def _from_elsewhere(node: ast.AST) -> bool:
    """Whether it may reach the program by other names: of a module that it imports, or such as are not written."""
    if isinstance(node, ast.ImportFrom):
        names, star = [node.module or ""], node.names[0].name == "*"
    elif isinstance(node, ast.Import):
        names, star = [alias.name for alias in node.names], False
    else:
        return isinstance(node, ast.Attribute) and node.attr in ("modules", "__dict__")
    return star or any(name.partition(".")[0] not in _LIBRARY for name in names)


def _called(tree: ast.AST) -> set[str]:
    """The names that calls begin with: f and Solution in ``f(1)`` and ``Solution().f(1)``."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            part: ast.AST = node.func
            while isinstance(part, ast.Attribute | ast.Call | ast.Subscript):
                part = part.func if isinstance(part, ast.Call) else part.value
            if isinstance(part, ast.Name):
                found.add(part.id)
    return found


def _runs_something(tree: ast.AST) -> bool:
    """Whether code asserts or calls anything by itself, outside of the bodies of functions."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Assert | ast.Call):
            return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += node.decorator_list
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return False
