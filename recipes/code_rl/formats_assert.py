"""Sets whose tests are Python code: functions and classes with asserts.

HumanEval(+)        {prompt, test, entry_point}     one case, the whole ``check`` function; also HumanEval-X's Python
LeetCode            {prompt, test, entry_point}     entry_point "Solution().f"; newfacade/LeetCodeDataset
MBPP(+)             {test_list, text | prompt}      one case per assert, and MBPP+'s ``test``
KodCode             {question, solution, test}      one case per pytest function
BigCodeBench        {instruct_prompt, test}         one case, unittest
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Any

from overlap.rows.row import SourceRow
from recipes.code_rl import assert_tests
from recipes.code_rl.cases import Judging, refuse_other_languages
from recipes.code_rl.core import REFERENCES_KEPT, CodeProblem
from sandbox.core.nouns import Case

_DEF = re.compile(r"^(?:async )?def (\w+)", re.MULTILINE)


def read_humaneval(row: SourceRow, judging: Judging) -> CodeProblem:
    """Read a row of HumanEval; the code above the function in the prompt (imports, helpers) is the preamble."""
    prompt, name, test = row.text("prompt"), row.text("entry_point"), row.text("test")
    if not test.strip():
        raise row.without_tests()
    if not name.isidentifier():
        return _leetcode(row, judging, name, test)
    if "unittest" in test:
        return read_bigcodebench(row, judging)
    judging.check_imports(row, test, above_function(row, prompt, name))
    case = Case(assert_tests.called(row, test, name))
    return completion(row, judging, row.id("task_id", "id"), [case], row.text("canonical_solution", default=""))


def above_function(row: SourceRow, prompt: str, name: str) -> str:
    """Return the code above a function in a prompt. Raises Unusable where the function is not defined there."""
    start = re.search(rf"^(?:async )?def {re.escape(name)}\b", prompt, re.MULTILINE)
    if start is None:
        raise row.fault(name, "entry_point is not defined in the prompt")
    return prompt[: start.start()]


def completion(row: SourceRow, judging: Judging, id: str, cases: list[Case], solution: str) -> CodeProblem:
    """The problem of a row whose program begins with its prompt."""
    prompt = row.text("prompt")
    above = above_function(row, prompt, row.text("entry_point"))
    return CodeProblem(
        id=id,
        statement=f"Complete this Python program:\n\n```python\n{prompt.strip()}\n```",
        problem=judging.problem(row, id, "assert", cases, preamble=above),
        starter=prompt,
        references=(prompt + solution,) if solution else (),
        place=row.place,
    )


def read_humaneval_x(row: SourceRow, judging: Judging) -> CodeProblem:
    """HumanEval-X names the language in its id and no entry point."""
    refuse_other_languages(row, row.id("task_id").partition("/")[0])
    names = _DEF.findall(row.text("declaration"))
    if not names:
        raise row.fault(row.text("declaration"), "declares no function")
    return read_humaneval(row.having(entry_point=names[-1]), judging)


def _leetcode(row: SourceRow, judging: Judging, entry: str, test: str) -> CodeProblem:
    """``entry`` is "Solution().f"; the prompt holds the imports and helpers that programs and tests rely on."""
    prompt, id = row.text("prompt"), row.id("task_id", "id", "question_id")
    judging.check_imports(row, test, prompt)
    case = Case(assert_tests.helpers(prompt, test) + assert_tests.called(row, test, entry))
    return CodeProblem(
        id=id,
        statement=row.text("problem_description", "query"),
        problem=judging.problem(row, id, "assert", [case], preamble=f"{judging.contest_preamble}{prompt}\n"),
        starter=row.text("starter_code", default=""),
        references=tuple(filter(None, (row.text("completion", "canonical_solution", default=""),))),
        place=row.place,
    )


def read_harness(row: SourceRow, judging: Judging, statement: str, harness: dict[str, Any]) -> CodeProblem:
    """{entry_point, test_code | assert_code, import_prefix}: LeetCode's rows in verl's files."""
    inner = replace(row, values=harness)
    test, prefix = inner.text("test_code", "assert_code", "test"), inner.text("import_prefix", default="")
    id = row.id("id", "task_id", "index")
    case = Case(assert_tests.helpers(prefix, test) + assert_tests.called(row, test, inner.text("entry_point")))
    problem = judging.problem(row, id, "assert", [case], preamble=f"{judging.contest_preamble}{prefix}\n")
    return CodeProblem(id, statement, problem, place=row.place)


def read_functional(row: SourceRow, judging: Judging, statement: str, test: Any) -> CodeProblem:
    """rLLM's LeetCode files: ``tests.functional`` is code that ends with the call of its own check."""
    if not isinstance(test, str):
        raise row.fault(test, "tests.functional must be text")
    if not test.strip():
        raise row.without_tests()
    id, entry = row.id("id", "task_id", "question_id"), assert_tests.entry_of(row, test)
    solutions = row.parsed("solutions") if row.values.get("solutions") else []
    listed = [solutions] if isinstance(solutions, str) else solutions
    return CodeProblem(
        id=id,
        statement=statement,
        problem=judging.problem(
            row, id, "assert", [Case(assert_tests.called(row, test, entry))], preamble=judging.contest_preamble
        ),
        starter=row.text("starter_code", default=""),
        references=tuple(str(s) for s in listed[:REFERENCES_KEPT]) if isinstance(listed, list) else (),
        place=row.place,
    )


def read_mbpp(row: SourceRow, judging: Judging) -> CodeProblem:
    """The statement shows the asserts, as they alone say the function's name. MBPP+ has more tests in ``test``."""
    tests = row.parsed("test_list")
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise row.fault(tests, "test_list must be a list of assert statements")
    if not tests:
        raise row.without_tests()
    id = row.id("task_id", "id").removeprefix("MBPP/").removeprefix("Mbpp/")
    setup = _setup(row)
    cases = [Case(setup + test.replace("\r\n", "\n")) for test in tests]
    if plus := row.text("test", default="").strip():
        cases.append(Case(f"{setup}{plus}\n"))
    judging.check_imports(row, setup, plus)
    name = _tested_name(tests[0])
    return CodeProblem(
        id=f"MBPP/{id}",
        statement=f"{row.text('text', 'prompt', 'content').strip()} It must pass:\n" + "\n".join(tests),
        problem=judging.problem(row, f"MBPP/{id}", "assert", cases),
        starter=f"def {name}(" if name else "",
        references=tuple(filter(None, (row.text("code", "canonical_solution", default="").replace("\r\n", "\n"),))),
        place=row.place,
    )


def _setup(row: SourceRow) -> str:
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


def read_kodcode(row: SourceRow, judging: Judging) -> CodeProblem:
    """Read a row of KodCode: pytest functions that import from ``solution``; ``test_info``'s first name is used."""
    test = row.text("test", "test_code")
    if not test.strip():
        raise row.without_tests()
    cases = [Case(text) for text in assert_tests.pytest_cases(row, test)]
    if not cases:
        raise row.fault(test, "holds no test function with an assert")
    judging.check_imports(row, *(case.input for case in cases))
    id, statement = row.id("question_id", "conversation_id", "id"), row.text("question")
    info = row.parsed("test_info") or []
    declared = [i.get("function_declaration") for i in info if isinstance(i, dict)] if isinstance(info, list) else []
    first = next((text.strip() for text in declared if isinstance(text, str)), "")
    if first and first not in statement:
        statement += f"\n\nIt must begin with `{first}`."
    reference = row.text("solution", default="")
    return CodeProblem(
        id,
        statement,
        judging.problem(row, id, "assert", cases),
        references=(reference,) if reference.strip() else (),
        place=row.place,
    )


def read_bigcodebench(row: SourceRow, judging: Judging) -> CodeProblem:
    """One case: all of the unittest classes."""
    test, code = row.text("test"), row.text("code_prompt", "prompt", "content", default="")
    judging.check_imports(row, test, code + "\n    pass\n")
    id = row.id("task_id", "id")
    case = Case(assert_tests.unit_test(row, test))
    solution = row.text("canonical_solution", default="")
    return CodeProblem(
        id,
        row.text("instruct_prompt", "complete_prompt", "prompt", "content"),
        judging.problem(row, id, "assert", [case]),
        starter=code,
        references=(code + solution,) if solution else (),
        place=row.place,
    )
