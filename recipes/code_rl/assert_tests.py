"""Test code as public sets write it, made into cases that the judge can decide outside the jail.

    check(candidate)      HumanEval, LeetCode: the asserts of its body, about the function itself
    pytest functions      KodCode: a case per function, per row of ``parametrize``
    unittest classes      BigCodeBench: one case

``sandbox/README.md`` says who decides: the judge, or a jail of the test's own. A test that neither can decide runs
beside the program, as it does in every grader of these sets, and ``Judgement.weak`` says so.
"""

from __future__ import annotations

import ast
import copy
from typing import Final

from overlap.rows.row import SourceRow
from recipes.code_rl.core import PACKAGE, UNJUDGEABLE

_APPROX: Final = """
class _Approx:
    def __init__(self, wanted, rel=1e-6, abs=1e-12):
        self.wanted, self.rel, self.abs = wanted, rel or 1e-6, abs or 1e-12
    def __eq__(self, got, wanted=None):
        wanted = self.wanted if wanted is None else wanted
        if isinstance(wanted, dict):
            return wanted.keys() == got.keys() and all(self.__eq__(got[key], wanted[key]) for key in wanted)
        if isinstance(wanted, (list, tuple)):
            return len(got) == len(wanted) and all(map(self.__eq__, got, wanted))
        return got == wanted or max(self.abs, self.rel * max(wanted, -wanted)) >= max(got - wanted, wanted - got)
"""
_ACTS: Final = (ast.Assert, ast.Expr, ast.For, ast.While, ast.With, ast.If, ast.Try)
"""Statements that have an effect where they are."""
_UNITTEST: Final = """
def _all_tests_pass():
    import unittest
    found, suite = unittest.TestResult(), unittest.TestSuite()
    for name in NAMES:
        suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(globals()[name]))
    suite.run(found)
    return found.testsRun > 0 and found.wasSuccessful()
assert _all_tests_pass()
"""


def parse_tests(row: SourceRow, text: str, what: str = "test") -> ast.Module:
    """Test code as a tree; an Unusable for what is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise row.fault(text, f"{what} is not Python: {error}") from error


def called(row: SourceRow, test: str, entry: str) -> str:
    """A test with ``def check(candidate)`` as one case about ``entry``: called once, whether it calls itself or not.

    ``entry`` may be an expression: of ``Solution().f`` each assert gets an object of its own.
    """
    tree = parse_tests(row, test)
    checks = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.args.args and _is_check(n, tree)]
    if not checks and not any(isinstance(node, _ACTS) and not _is_text(node) for node in tree.body):
        raise row.fault(test, "defines tests, and nothing calls them")
    if not checks:
        return test.strip() + "\n"
    check = checks[-1]
    if not entry and any(_names(node, check.name) for node in tree.body if node is not check):
        return test.strip() + "\n"  # a helper of its asserts
    if not entry:
        raise row.fault(check.name, "this check is never called, and no entry_point says with what")
    body = [node for node in tree.body if not _calls(node, check.name)]
    if entry.isidentifier() and len(body) == len(tree.body):
        return f"{test.strip()}\n\n{check.name}({entry})\n"
    if entry.isidentifier():
        return "\n".join(ast.unparse(node) for node in body) + f"\n{check.name}({entry})\n"
    target = parse_tests(row, entry, "entry_point").body
    if len(target) != 1 or not isinstance(target[0], ast.Expr):
        raise row.fault(entry, "entry_point must be a name or an expression")
    rename = _Rename(check.args.args[0].arg, target[0].value)
    inside = [rename.visit(copy.deepcopy(node)) for node in check.body]
    kept = [node for node in body if node is not check]
    return "\n".join(map(ast.unparse, [*kept, *inside])) + "\n"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def entry_of(row: SourceRow, test: str) -> str:
    """Return what the last statement of a test passes to a check: "f" of ``check(f)``; "" where it is no such call."""
    tree = parse_tests(row, test)
    call = tree.body[-1].value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    return ast.unparse(call.args[0]) if isinstance(call, ast.Call) and len(call.args) == 1 else ""


def _is_check(node: ast.FunctionDef, tree: ast.Module) -> bool:
    """``check``, or whatever function is called at the end of the test."""
    last = tree.body[-1]
    return node.name == "check" or _calls(last, node.name)


def _names(node: ast.stmt, name: str) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(node))


def _calls(node: ast.stmt, name: str) -> bool:
    """Return whether this statement is a call of ``name`` and nothing else."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name


class _Rename(ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self.value) if node.id == self.name and isinstance(node.ctx, ast.Load) else node


def helpers(prompt: str, test: str) -> str:
    """Functions of a prompt that the test calls: they come with the test, where no program can have replaced them."""
    try:
        defined = {n.name: n for n in ast.parse(prompt).body if isinstance(n, ast.FunctionDef)}
        names = {n.id for n in ast.walk(ast.parse(test)) if isinstance(n, ast.Name)}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return "".join(ast.unparse(node) + "\n" for name, node in defined.items() if name in names)


def unit_test(row: SourceRow, test: str) -> str:
    """A test of ``unittest`` classes as one case."""
    tree = parse_tests(row, test)
    bases = {
        node.name: [ast.unparse(base) for base in node.bases] for node in tree.body if isinstance(node, ast.ClassDef)
    }
    names = [name for name, of in bases.items() if any(base.endswith("TestCase") for base in of)]
    if not names:
        raise row.fault(test, "holds no unittest class")
    body = [node for node in tree.body if not isinstance(node, ast.If)]  # "if __name__ == ..."
    return "\n".join(map(ast.unparse, body)) + _UNITTEST.replace("NAMES", repr(names))


def pytest_cases(row: SourceRow, test: str) -> list[str]:
    """A case for every test function, and for every row of its ``parametrize``; an Unusable for more of pytest."""
    tree = parse_tests(row, test)
    tests = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test")]
    for cls in (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name.startswith("Test")):
        tests += _methods(row, cls)
    classes = (n for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("Test"))
    above: list[ast.stmt] = [
        n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign)
    ]
    above += [*classes, *(n for n in tree.body if isinstance(n, ast.FunctionDef) and n not in tests)]
    prelude = _without_solution(above)
    return [text for node in tests for text in _cases_of(row, prelude, node)]


def _methods(row: SourceRow, cls: ast.ClassDef) -> list[ast.FunctionDef]:
    """The tests of a class, as functions; tests that use ``self`` need the class around them."""
    found = [n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test")]
    for node in found:
        if any(isinstance(inner, ast.Name) and inner.id == "self" for part in node.body for inner in ast.walk(part)):
            raise row.fault(node.name, "a test method that uses self cannot be taken out of its class", UNJUDGEABLE)
        node.args.args = node.args.args[1:]
    return found


def _without_solution(nodes: list[ast.stmt]) -> str:
    """Names from ``solution`` are there: the test runs in the program's own module. pytest is what we make of it."""
    lines = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            lines += [f"{a.asname} = {a.name}" for a in node.names if a.asname and a.asname != a.name]
        elif not (isinstance(node, ast.Import) and [alias.name for alias in node.names] == ["pytest"]):
            lines.append(ast.unparse(node))
    return "\n".join(lines)


def _cases_of(row: SourceRow, prelude: str, node: ast.FunctionDef) -> list[str]:
    rows = [""]
    for decorator in node.decorator_list:
        rows = [f"{line}{given}" for line in rows for given in _parameters(row, decorator)]
    names = {arg.arg for arg in node.args.args}
    if names and not node.decorator_list:
        raise row.fault(node.name, f"its test wants a fixture of pytest ({sorted(names)[0]})", PACKAGE)
    body = [_Plainly().visit(part) for part in node.body]
    text = ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))
    if "pytest." in text:
        raise row.fault(node.name, "its test uses more of pytest than raises, approx and parametrize", PACKAGE)
    above = prelude + (_APPROX if "_Approx(" in text else "")
    return [f"{above}\n{line}{text}\n" for line in rows if "assert " in text]


def _parameters(row: SourceRow, decorator: ast.expr) -> list[str]:
    """Assignments, one per row of ``pytest.mark.parametrize(names, [values, ...])``."""
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize":
        match [*decorator.args, *(keyword.value for keyword in decorator.keywords)]:
            case [ast.Constant() as names, ast.List() | ast.Tuple() as values, *_]:
                return [f"{names.value!s} = {ast.unparse(value)}\n" for value in values.elts]
    raise row.fault(ast.unparse(decorator), "its test uses more of pytest than raises, approx and parametrize", PACKAGE)


class _Plainly(ast.NodeTransformer):
    """``with pytest.raises(E):`` as try and assert; ``pytest.approx`` as a comparison of ours."""

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        call = node.items[0].context_expr
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "pytest.raises" or not call.args:
            return node
        caught = ast.unparse(call.args[0])
        tried = ast.parse(
            f"try:\n    pass\nexcept {caught}:\n    pass\nelse:\n    assert False, 'nothing raised'"
        ).body[0]
        assert isinstance(tried, ast.Try)
        tried.body = node.body
        return tried

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) == "pytest.approx":
            node.func = ast.Name("_Approx", ast.Load())
        return node
