"""Tests as public sets write them: every shape becomes (input, output) pairs, and those become Cases.

    {inputs: [...], outputs: [...], fn_name?}       TACO, APPS, CodeContests, verl; also {input, output}
    [{input, output, testtype, metadata}, ...]      LiveCodeBench, Codeforces
    [{input, output, type, fn_name}, ...]           PrimeIntellect
    [{input: {stdin}, output: {stdout}}, ...]       SandboxFusion

An input or output is text, a list of lines, or a list of values. For a function, an input is the list of arguments,
bare or as JSON text; in LiveCodeBench's rows (testtype "functional") it is text with one JSON value per line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from overlap.rows import SourceRow
from sandbox.core import Case

Pairs = list[tuple[Any, Any]]
_FUNCTION_TYPES = frozenset({"functional", "function_call", "function", "call_based"})


def pairs_of(row: SourceRow, tests: Any) -> Pairs:
    """All tests of a row; none for a row that has none."""
    if tests in (None, "", [], {}):
        return []
    if isinstance(tests, dict):
        return _pairs_of_dict(row, tests)
    if not isinstance(tests, list):
        raise row.fault(tests, "tests must be a list of {input, output} or an object {inputs, outputs}")
    for test in tests:
        if not isinstance(test, dict) or "input" not in test or "output" not in test:
            raise row.fault(test, "a test must be an object with input and output")
    return [(_bare(test["input"], "stdin"), _bare(test["output"], "stdout")) for test in tests]


def _pairs_of_dict(row: SourceRow, tests: dict[str, Any]) -> Pairs:
    for given, wanted in (("inputs", "outputs"), ("input", "output")):
        if given in tests and wanted in tests:
            return paired(row, tests[given], tests[wanted])
    raise row.fault(sorted(map(str, tests)), "an object of tests needs inputs and outputs")


def _bare(value: Any, stream: str) -> Any:
    return value[stream] if isinstance(value, dict) and stream in value else value


def paired(row: SourceRow, inputs: Any, outputs: Any) -> Pairs:
    """Inputs with their outputs; an Unusable when their numbers differ."""
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise row.fault({"inputs": inputs, "outputs": outputs}, "inputs and outputs must be lists")
    if len(inputs) != len(outputs):
        raise row.fault(f"{len(inputs)} inputs, {len(outputs)} outputs", "every input needs its output")
    return list(zip(inputs, outputs, strict=True))


def function_name(row: SourceRow, tests: Any) -> str | None:
    """The name in the tests, in their metadata or in the row's; None makes a stdio problem."""
    metadata = [row.parsed("metadata")] if row.values.get("metadata") else []
    given = [row.values.get("fn_name"), row.values.get("func_name")]
    if isinstance(tests, dict):
        return _one_name(row, [tests.get("fn_name"), *given, *_func_names(metadata)])
    listed = [test for test in tests if isinstance(test, dict)]
    types = {test.get("testtype") or test.get("type") for test in listed}
    if not types & {*_FUNCTION_TYPES, None}:
        return None
    metadata += [test.get("metadata") for test in listed]
    name = _one_name(row, [*(test.get("fn_name") for test in listed), *given, *_func_names(metadata)])
    if name is None and types & _FUNCTION_TYPES:
        raise row.fault(sorted(map(str, types)), "function tests need fn_name or metadata.func_name")
    if name is not None and types - {*_FUNCTION_TYPES, None}:
        raise row.fault(sorted(map(str, types)), "a problem's tests must be all stdio or all functional")
    return name


def _func_names(metadata: list[Any]) -> list[Any]:
    return [entry.get("func_name") for entry in metadata if isinstance(entry, dict)]


def _one_name(row: SourceRow, names: list[Any]) -> str | None:
    found = sorted({str(name) for name in names if name})
    if len(found) > 1:
        raise row.fault(found, "the tests name several functions; a problem has one")
    return found[0] if found else None


def stdio_cases(row: SourceRow, pairs: Pairs) -> list[Case]:
    """Cases of a program that reads and prints."""
    return [Case(stdio_text(row, given), stdio_text(row, wanted)) for given, wanted in pairs]


def stdio_text(row: SourceRow, value: Any) -> str:
    """Standard input or output as text. A list holds lines; a list inside it, the values of a line."""
    if isinstance(value, list):
        return "\n".join(_line(row, item) for item in value)
    return _line(row, value)


def _line(row: SourceRow, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return " ".join(map(str, value))
    raise row.fault(value, "a stdio test holds text, a list of lines, or a list of values")


def function_cases(row: SourceRow, tests: Any, pairs: Pairs, code: Sequence[str]) -> list[Case]:
    """Cases of a function. The dict form holds arguments and results bare (there a string is a string), the list form
    bare or as JSON text. ``code``: starter and references, which tell LeetCode's rows from Codewars'.
    """
    by_line = (
        any(test.get("testtype") == "functional" for test in tests)
        if isinstance(tests, list)
        else all(isinstance(given, str) for given, _ in pairs)
    )
    wrapped = not by_line and _outputs_are_wrapped(code, pairs)
    if wrapped:
        pairs = [(given, wanted[0]) for given, wanted in pairs]
    if isinstance(tests, list) or by_line:
        pairs = [(_arguments(row, given, by_line), wanted if wrapped else _result(wanted)) for given, wanted in pairs]
    return [Case(to_json(row, given), to_json(row, wanted)) for given, wanted in pairs]


def _outputs_are_wrapped(code: Sequence[str], pairs: Pairs) -> bool:
    """Whether each output is the result in a list of one: Codewars' rows are, LeetCode's (class Solution) are not."""
    if any("class Solution" in text for text in code):
        return False
    return all(isinstance(out, list) and len(out) == 1 for _, out in pairs)


def _arguments(row: SourceRow, given: Any, by_line: bool) -> Any:
    """LiveCodeBench: text with one JSON value per line, each an argument. PrimeIntellect: the list of arguments."""
    if not isinstance(given, str):
        return given
    try:
        if by_line:
            return [json.loads(line) for line in given.split("\n") if line.strip()]
        found = row.literal(given, "input")
    except (ValueError, RecursionError) as error:
        raise row.fault(given, f"a function test's input must be JSON: {error}") from error
    if not isinstance(found, list):
        raise row.fault(given, "a function test's input must be the list of arguments")
    return found


def _result(wanted: Any) -> Any:
    try:
        return json.loads(wanted) if isinstance(wanted, str) else wanted
    except (ValueError, RecursionError):
        return wanted  # a string that was stored without its quotes


def to_json(row: SourceRow, value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:  # dates and bytes of a Parquet file
        raise row.fault(value, f"a test holds what JSON cannot: {error}") from error
