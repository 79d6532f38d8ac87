"""HumanEval and MBPP: function problems whose tests are Python asserts.

HumanEval    {task_id, prompt, entry_point, canonical_solution, test}: one case, the whole ``check`` function
MBPP         {task_id, text | prompt, code, test_list, test_setup_code | test_imports}: one case per assert
"""

from __future__ import annotations

import ast
import re
from typing import Any

from recipes.code_rl.cases import Judging
from recipes.code_rl.core import CodeProblem, Row
from sandbox.core import Case

HUMANEVAL = frozenset({"prompt", "test", "entry_point"})
MBPP = frozenset({"test_list"})


def read_humaneval(row: Row, judging: Judging) -> CodeProblem | None:
    """None when ``test`` is blank. What stands above the function in the prompt (imports, helpers) is the preamble."""
    prompt, name, test = row.text("prompt"), row.text("entry_point"), row.text("test")
    if not test.strip():
        return None
    start = re.search(rf"^(?:async )?def {re.escape(name)}\b", prompt, re.MULTILINE)
    if start is None:
        raise row.fault(name, "entry_point is not defined in the prompt")
    id = row.id("task_id", "id")
    case = Case(f"{test.strip()}\n\ncheck({name})\n")
    solution = row.text("canonical_solution", default="")
    return CodeProblem(
        id=id,
        statement=f"Complete this Python program:\n\n```python\n{prompt.strip()}\n```",
        problem=judging.problem(row, id, "assert", [case], preamble=prompt[: start.start()]),
        starter=prompt,
        reference=prompt + solution if solution else None,
    )


def read_mbpp(row: Row, judging: Judging) -> CodeProblem | None:
    """None when ``test_list`` is empty. The statement shows the asserts, as they alone say the function's name."""
    tests = row.parsed("test_list")
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise row.fault(tests, "test_list must be a list of assert statements")
    if not tests:
        return None
    id = row.id("task_id", "id")
    setup = _setup(row)
    cases = [Case(setup + test.replace("\r\n", "\n")) for test in tests]
    name = _tested_name(tests[0])
    return CodeProblem(
        id=f"MBPP/{id}",
        statement=f"{row.text('text', 'prompt').strip()} It must pass:\n" + "\n".join(tests),
        problem=judging.problem(row, f"MBPP/{id}", "assert", cases),
        starter=f"def {name}(" if name else "",
        reference=row.text("code", default="").replace("\r\n", "\n") or None,
    )


def _setup(row: Row) -> str:
    """Statements before each assert; a test's own set-up runs after the program, which may define what it uses."""
    setup: Any = row.values.get("test_setup_code") or row.values.get("test_imports") or ""
    if isinstance(setup, list):
        setup = "\n".join(map(str, setup))
    if not isinstance(setup, str):
        raise row.fault(setup, "test_setup_code must be text")
    return setup.replace("\r\n", "\n").rstrip() + "\n" if setup.strip() else ""


def _tested_name(test: str) -> str | None:
    """The function that an assert calls: in ``assert set(f(1)) == ...`` that is f, not the builtin around it."""
    try:
        calls = [node for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return None  # Problem refuses the row, with the reason
    names = [call.func.id for call in calls if isinstance(call.func, ast.Name)]
    return next((name for name in names if name not in _WRAPPERS), None)


_WRAPPERS = frozenset(
    {"set", "sorted", "list", "tuple", "dict", "str", "int", "float", "round", "abs", "len", "isclose"}
)
