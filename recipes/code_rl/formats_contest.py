"""DeepCoder's two ``tests`` shapes, and APPS/TACO's ``input_output``.

    a list     [{input, output, testtype, metadata: {func_name}}, ...]      LiveCodeBench, Codeforces
               [{input, output, type, fn_name}, ...]                        PrimeIntellect
    a dict     {inputs: [...], outputs: [...], fn_name?}                    TACO, APPS, CodeContests

both as a JSON string or as the object itself. A function name anywhere makes it a function problem, whatever the number
of tests. A function test's input is one JSON value per line in LiveCodeBench's rows, the list of arguments elsewhere.
"""

from __future__ import annotations

import json
from typing import Any

from recipes.code_rl.cases import CONTEST_PREAMBLE, Judging, paired, stdio_text, to_json
from recipes.code_rl.core import CodeProblem, Row
from sandbox.core import Case

DEEPCODER = frozenset({"problem", "tests"})
APPS = frozenset({"question", "input_output"})
_FUNCTION_TYPES = ("functional", "function_call")
_APPS_LEVELS = {"introductory": 1, "interview": 2, "competition": 3}


def read_deepcoder(row: Row, judging: Judging) -> CodeProblem | None:
    """None when the row has no tests."""
    return _read(row, judging, row.text("problem"), row.parsed("tests"))


def read_apps(row: Row, judging: Judging) -> CodeProblem | None:
    """None when the row has no tests. APPS leaves ``input_output`` empty for those."""
    if row.values.get("input_output") in ("", None):
        return None
    return _read(row, judging, row.text("question"), row.parsed("input_output"))


def _read(row: Row, judging: Judging, statement: str, tests: Any) -> CodeProblem | None:
    if not isinstance(tests, dict | list):
        raise row.fault(tests, "tests must be a list of {input, output} or an object {inputs, outputs}")
    starter = row.text("starter_code", default="")
    fn_name = _function_name(row, tests)
    pairs = _pairs_of_dict(row, tests) if isinstance(tests, dict) else _pairs_of_list(row, tests)
    if not pairs:
        return None
    id = row.id("id", "problem_id", "task_id", "question_id")
    if fn_name is None:
        cases = [Case(stdio_text(row, given), stdio_text(row, wanted)) for given, wanted in pairs]
        problem = judging.problem(row, id, "stdio", cases)
    else:
        cases = _function_cases(row, tests, pairs, starter)
        full_name = f"Solution.{fn_name}" if "class Solution" in starter and "." not in fn_name else fn_name
        problem = judging.problem(row, id, "function", cases, full_name, CONTEST_PREAMBLE)
    level = _APPS_LEVELS.get(str(row.values.get("difficulty", "")).lower(), 0)
    return CodeProblem(id, statement, problem, starter, _first_solution(row), level)


def _pairs_of_dict(row: Row, tests: dict[str, Any]) -> list[tuple[Any, Any]]:
    if "inputs" not in tests or "outputs" not in tests:
        raise row.fault(sorted(tests), "an object of tests needs inputs and outputs")
    return paired(row, tests["inputs"], tests["outputs"])


def _pairs_of_list(row: Row, tests: list[Any]) -> list[tuple[Any, Any]]:
    for test in tests:
        if not isinstance(test, dict) or "input" not in test or "output" not in test:
            raise row.fault(test, "a test must be an object with input and output")
    return [(test["input"], test["output"]) for test in tests]


def _function_name(row: Row, tests: dict[str, Any] | list[Any]) -> str | None:
    """The name in the tests, in their metadata or in the row's; None makes a stdio problem."""
    metadata = [row.parsed("metadata")] if "metadata" in row.values else []
    if isinstance(tests, dict):
        return _one_name(row, [tests.get("fn_name"), *(m.get("func_name") for m in metadata if isinstance(m, dict))])
    tests = [test for test in tests if isinstance(test, dict)]
    types = {test.get("testtype") or test.get("type") for test in tests}
    if not types & {*_FUNCTION_TYPES, None}:
        return None
    metadata += [test.get("metadata") for test in tests]
    names = [test.get("fn_name") for test in tests] + [m.get("func_name") for m in metadata if isinstance(m, dict)]
    name = _one_name(row, names)
    if name is None and types & set(_FUNCTION_TYPES):
        raise row.fault(sorted(map(str, types)), "function tests need fn_name or metadata.func_name")
    if name is not None and types - {*_FUNCTION_TYPES, None}:
        raise row.fault(sorted(map(str, types)), "a problem's tests must be all stdio or all functional")
    return name


def _one_name(row: Row, names: list[Any]) -> str | None:
    found = sorted({str(name) for name in names if name})
    if len(found) > 1:
        raise row.fault(found, "the tests name several functions; a problem has one")
    return found[0] if found else None


def _outputs_are_wrapped(starter: str, pairs: list[tuple[Any, Any]]) -> bool:
    """Whether each output is the result in a list of one: Codewars' rows are, LeetCode's (class Solution) are not."""
    return "class Solution" not in starter and all(isinstance(out, list) and len(out) == 1 for _, out in pairs)


def _function_cases(row: Row, tests: Any, pairs: list[tuple[Any, Any]], starter: str) -> list[Case]:
    """The dict form holds arguments and results bare (there a string is a string), the list form as JSON text."""
    if isinstance(tests, dict):
        unwrap = _outputs_are_wrapped(starter, pairs)
        pairs = [(given, wanted[0] if unwrap else wanted) for given, wanted in pairs]
    else:
        by_line = any(test.get("testtype") == "functional" for test in tests)
        pairs = [(_arguments(row, given, by_line), _result(wanted)) for given, wanted in pairs]
    return [Case(to_json(row, given), to_json(row, wanted)) for given, wanted in pairs]


def _arguments(row: Row, given: Any, by_line: bool) -> Any:
    """LiveCodeBench: text with one JSON value per line, each an argument. PrimeIntellect: the list of arguments."""
    if not isinstance(given, str):
        return given
    try:
        return [json.loads(line) for line in given.split("\n") if line.strip()] if by_line else json.loads(given)
    except (ValueError, RecursionError) as error:
        raise row.fault(given, f"a function test's input must be JSON: {error}") from error


def _result(wanted: Any) -> Any:
    try:
        return json.loads(wanted) if isinstance(wanted, str) else wanted
    except (ValueError, RecursionError):
        return wanted  # a string that was stored without its quotes


def _first_solution(row: Row) -> str | None:
    solutions = row.parsed("solutions") if row.values.get("solutions") else None
    if isinstance(solutions, list) and solutions and isinstance(solutions[0], str):
        return solutions[0]
    return None
