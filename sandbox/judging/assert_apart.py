"""Decide whether a test can run in a jail of its own, what that needs, and whether its result is final.

Only test and preamble are read, as for everything that decides how strong a judgement is.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from sandbox.judging.assert_names import Names, bound_by, given, is_doubtful, loaded, walk
from sandbox.judging.assert_state import needs_one_process, words


@dataclass(frozen=True, slots=True)
class Apart:
    """Data for the jail of a test's own."""

    names: tuple[str, ...]
    """Names of the program, unless the test binds them."""
    entry: tuple[str, ...]
    """Names of the program in any case."""
    modules: tuple[str, ...]
    """Modules of the standard library that the test uses and the program is expected to import."""
    makes: tuple[str, ...]
    """Names of the program that the test makes objects by: what those decide is known to the program only."""
    decisive: bool
    """The test needs nothing but values, so that it fails is the verdict."""
    sound: bool
    """The test sees all that it would see beside the program, so that it holds is the verdict."""


def root_of(node: ast.expr) -> str:
    """The name that `Solution().f` begins with."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def apart_of(whole: list[ast.stmt], above: list[ast.stmt], names: Names) -> Apart | None:
    """Return None where the test would rely on the program's own answer even in a jail of its own."""
    nodes = walk(*whole)
    used = loaded(*whole) - names.test - vars(builtins).keys()
    modules = modules_of(whole) & used - names.preamble - names.entry
    programs = (used - modules) | names.entry
    if not programs or names.entry & names.test:
        return None
    loose = replace(names, opaque=False)
    for node in nodes:
        if isinstance(node, ast.Assert) and (trusts_program(node.test, loose) or _tests_preamble(node.test, loose)):
            return None
        if isinstance(node, ast.Call) and _is_helper(node.func, loose, modules):
            return None
    if needs_one_process(whole, above):
        return None
    makes = made_by(whole) & programs
    others = makes - names.entry - names.preamble - {"Solution"}
    imported = modules | set(_imports(nodes))
    odd = {node for node in nodes if isinstance(node, ast.Compare) and not _is_plain_comparison(node)}
    decisive = _are_all(imported, _PLAIN_MODULES) and not odd and not any(map(_is_worldly, nodes)) and not others
    decisive = decisive and not _passes_functions(nodes) and not _walks_objects(nodes, above)
    sound = _are_all(imported, _SOUND_MODULES) and "unittest.mock" not in imported and not words(*whole) & _SHARED
    sound = sound and odd <= _held_identities(nodes) and not is_doubtful(whole, loose, modules)
    if not decisive and not sound:
        return None
    return Apart(
        names=tuple(sorted(programs)),
        entry=tuple(sorted(names.entry)),
        modules=tuple(sorted(modules)),
        makes=tuple(sorted(makes)),
        decisive=decisive,
        sound=sound,
    )


def made_by(body: list[ast.stmt]) -> set[str]:
    """Names that the test calls to make objects: written as classes are, and never compared with a literal."""
    nodes = walk(*body)
    valued: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Compare) and all(isinstance(op, ast.Eq) for op in node.ops):
            sides = (node.left, *node.comparators)
            if any(not isinstance(side, ast.Call) and not _is_none(side) and not loaded(side) for side in sides):
                valued |= _called(sides)
    return {name for name in loaded(*body) if name[:1].isupper() and "_" not in name} - valued


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _called(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that these nodes themselves call."""
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


_PLAIN_MODULES: Final = (
    *("math", "cmath", "collections", "itertools", "functools", "operator", "string", "re", "typing", "fractions"),
    *("decimal", "copy", "json", "heapq", "bisect", "datetime", "statistics", "numpy", "numbers"),
)
_SOUND_MODULES: Final = (
    *_PLAIN_MODULES,
    *("abc", "array", "base64", "contextlib", "dataclasses", "enum", "hashlib", "pprint", "queue", "random", "secrets"),
    *("struct", "sys", "textwrap", "threading", "time", "timeit", "traceback", "types", "unittest", "uuid", "warnings"),
)
_WORLDLY: Final = (
    *("open", "input", "print", "exec", "eval", "globals", "locals", "vars", "id", "hash", "setattr", "delattr"),
    "compile",
)


def _imports(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def _are_all(modules: set[str], known: tuple[str, ...]) -> bool:
    return {name.partition(".")[0] for name in modules} <= set(known)


def _is_worldly(node: ast.AST) -> bool:
    """Return whether the test reads output, patches something, or makes a class."""
    if isinstance(node, ast.Name):
        return node.id in _WORLDLY
    return isinstance(node, ast.ClassDef | ast.With | ast.AsyncWith | ast.Await | ast.Global | ast.Nonlocal)


def _is_plain_comparison(node: ast.Compare) -> bool:
    """Return whether it asks about identity with a constant at most."""
    pairs = zip(node.ops, node.comparators, strict=True)
    return all(isinstance(side, ast.Constant) for op, side in pairs if isinstance(op, ast.Is | ast.IsNot))


_SHARED: Final = frozenset(
    {"open", "input", "exec", "eval", "globals", "locals", "vars", "id", "setattr", "delattr", "compile", "__import__"}
    | {"redirect_stdout", "redirect_stderr", "stdin", "stdout", "stderr", "chdir", "mock", "patch", "modules"}
    | {"is_", "is_not", "assertIs", "assertIsNot"}
    | {"getrefcount", "_getframe", "settrace", "setprofile", "__dict__", "__globals__", "__code__", "__builtins__"}
)
"""Names of what one process has to itself, to which another has another answer."""


def _held_identities(nodes: list[ast.AST]) -> set[ast.AST]:
    """Comparisons `f(a) is a` that have to hold: what is one object here is one object beside the program too."""
    todo = [node.test for node in nodes if isinstance(node, ast.Assert)]
    for test in todo:  # which grows meanwhile
        if isinstance(test, ast.BoolOp):
            todo += test.values
    compares = [test for test in todo if isinstance(test, ast.Compare)]
    return {test for test in compares if not any(isinstance(op, ast.IsNot) for op in test.ops)}


def _walks_objects(nodes: list[ast.AST], above: list[ast.stmt]) -> bool:
    """Return whether the test goes from object to object of a class that only the program has: `while head:`."""
    words = walk(*above)
    known = {node.attr for node in words if isinstance(node, ast.Attribute)}
    known |= {node.id for node in words if isinstance(node, ast.Name)}
    for loop in nodes:
        if isinstance(loop, ast.While):
            attributes = [node for node in walk(loop) if isinstance(node, ast.Attribute)]
            asked = loaded(loop.test)
            names = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id in asked}
            if any(not any(hasattr(kind, name) for kind in _PLAIN_TYPES) for name in names - known):
                return True
    return False


_PLAIN_TYPES: Final = (str, bytes, list, tuple, dict, set, int, float, complex, deque)


def _passes_functions(nodes: list[ast.AST]) -> bool:
    """Return whether something that may be the program is called with a function of the test."""
    made = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            made |= bound_by(node)
    calls = [node for node in nodes if isinstance(node, ast.Call) and root_of(node) not in vars(builtins)]
    passed = [arg for call in calls for arg in given(call)]
    return any(isinstance(arg, ast.Lambda) or (isinstance(arg, ast.Name) and arg.id in made) for arg in passed)


def _tests_preamble(test: ast.expr, names: Names) -> bool:
    """Return whether a name's owner is ambiguous, as in `assert gcd(4, 6) == 2` below a preamble that imports a gcd."""
    if any(map(names.is_programs, loaded(test))):
        return False
    return bool(_called(ast.walk(test)) & names.preamble - names.test)


def modules_of(body: list[ast.stmt]) -> set[str]:
    """Return the modules of the standard library that are used as modules: a program may be called `bisect`."""
    nodes = walk(*body)
    owners = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    return owners & sys.stdlib_module_names - _called(nodes)


def _is_helper(func: ast.expr, names: Names, modules: set[str]) -> bool:
    """A module that the program imports (`np.allclose(...)`), or a function of its own beside the one it is about."""
    root = root_of(func)
    if not root or root in names.entry or root in modules or root[:1].isupper() or not names.is_programs(root):
        return False
    return bool(names.entry) or (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name))


def trusts_program(test: ast.expr, names: Names) -> bool:
    """`assert same(f(2), 4)` where `same` too is the program's: one that returns True passes."""
    for call in _truths(test):
        root = root_of(call)
        if isinstance(call.func, ast.Attribute) and root in sys.stdlib_module_names - names.entry:
            continue
        inner = {root_of(node) for node in ast.walk(call) if isinstance(node, ast.Call)} - {root}
        if names.is_programs(root) and any(map(names.is_programs, inner)):
            return True
    return False


def _truths(test: ast.expr) -> Iterator[ast.Call]:
    """Calls whose truth alone is looked at."""
    match test:
        case ast.Call():
            yield test
        case ast.UnaryOp(operand=inner):
            yield from _truths(inner)
        case ast.BoolOp(values=parts):
            for part in parts:
                yield from _truths(part)
        case ast.Compare():
            sides = (test.left, *test.comparators)
            if any(isinstance(side, ast.Constant) and isinstance(side.value, bool) for side in sides):
                yield from (side for side in sides if isinstance(side, ast.Call))
