"""Programs whose fate a problem's row says or implies: what ``overlap check-data`` judges.

    reference    the row's own solutions; one that is accepted will do
    empty        a program that does nothing, or whose function (class) does
    example      one that prints, or returns, what the first test expects: most statements contain it

What accepts one of the last two pays a policy for nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from overlap.core import Probe
from recipes.code_rl.core import CodeProblem
from sandbox.core.nouns import Program
from sandbox.core.problem import Problem


def probes(problem: CodeProblem) -> Iterator[Probe]:
    """The probes of one problem, its references first; a kind that makes no sense for it is not there."""
    judged = problem.problem
    if problem.references:
        yield Probe("reference", judged, tuple(map(Program, problem.references)))
    name = _called(problem)
    if judged.kind == "stdio":
        yield Probe("empty", judged, (Program("import sys\n"),))
        if len({case.expected for case in judged.cases}) > 1 or len(judged.cases) == 1:
            yield Probe("example", judged, (Program(f"print({(judged.cases[0].expected or '').rstrip()!r})\n"),))
    elif judged.kind in ("function", "assert"):
        nothing = (Program("nothing = None\n"), *((Program(_function(name, "None")),) if name else ()))
        yield Probe("empty", judged, nothing)
        if judged.kind == "function":
            value = f"json.loads({judged.cases[0].expected!r})"
            yield Probe("example", judged, (Program(f"import json\n{_function(name, value)}"),))


def _function(name: str, value: str) -> str:
    cls, _, method = name.rpartition(".")
    if cls:
        return f"class {cls}:\n    def {method}(self, *args, **named):\n        return {value}\n"
    return f"def {name}(*args, **named):\n    return {value}\n"


def _called(problem: CodeProblem) -> str:
    """The function that tests call: the problem's, or for asserts the last one of the first reference; "" for none."""
    judged: Problem = problem.problem
    if judged.fn_name:
        return judged.fn_name
    if judged.kind != "assert" or judged.language != "python":
        return ""
    if problem.references:
        return _last_defined(problem.references[0])
    return ""


def _last_defined(source: str) -> str:
    """The last function of a program, or the first method of its last class."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for node in reversed(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return node.name
        if isinstance(node, ast.ClassDef):
            methods = [n.name for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
            return f"{node.name}.{methods[0]}" if methods else ""
    return ""
