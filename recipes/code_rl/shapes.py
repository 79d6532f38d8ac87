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
import re
from collections.abc import Sequence
from typing import Any, Final

from overlap.rows.row import SourceRow
from recipes.code_rl.core import NO_TESTS
from sandbox.core.nouns import Case
from sandbox.rewards.calls import call_text, line_text, result_texts

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
        if not isinstance(test, dict) or not {"input", "output"} <= test.keys():
            raise row.fault(test, "a test must be an object with input and output")
    return [(_bare(test["input"], "stdin"), _bare(test["output"], "stdout")) for test in tests]


def _pairs_of_dict(row: SourceRow, tests: dict[str, Any]) -> Pairs:
    for given, wanted in (("inputs", "outputs"), ("input", "output")):
        if tests.get(given) is not None and tests.get(wanted) is not None:
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
    """Cases of a program that reads and prints, without those of which a site showed the beginning only."""
    cases = [Case(stdio_text(row, given), stdio_text(row, wanted)) for given, wanted in pairs]
    whole = [case for case in cases if not is_cut(case.input) and not is_cut(case.expected or "")]
    if len(whole) < len(cases):
        if not whole:
            raise row.fault(cases[0].input, "all of its tests are truncated ('...' at the end)", NO_TESTS)
        row.notes.append("with truncated tests ('...' at the end of an input or output), which are not used")
    return whole


def is_cut(text: str) -> bool:
    """Return whether a text is the beginning of one that was too long to be shown: numbers that end in "...", or a long
    text without any other dot. Other texts with this end may be meant: a row of a grid, a sentence.
    """
    text = text.rstrip()
    if not text.endswith(("...", "\u2026")):
        return False
    body = text.removesuffix("\u2026").removesuffix("...")
    *words, last = body.rpartition("\n")[2].split(" ")
    if "".join(words) and all(_NUMBER.fullmatch(word) for word in (*words, last) if word):
        return True
    return len(text) >= _SHOWN_LEAST and "." not in body and body.rstrip()[-1:].isalnum()


_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d*)?|-")
_SHOWN_LEAST: Final = 200
"""Characters that sites show at least of a long test; Codeforces shows 255."""


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


def function_cases(row: SourceRow, tests: Any, pairs: Pairs, code: Sequence[str]) -> tuple[list[Case], bool]:
    """Cases of a function, and whether each result may be in a list of one, too. The dict form holds arguments and
    results bare (there a string is a string), the list form bare or as text. ``code``: starter and references, which
    distinguish LeetCode's rows from Codewars'.
    """
    by_line = (
        any(test.get("testtype") == "functional" for test in tests)
        if isinstance(tests, list)
        else all(isinstance(given, str) for given, _ in pairs)
    )
    wrapped = not by_line and _outputs_are_wrapped(code, pairs)
    results = [wanted[0] if wrapped else wanted for _, wanted in pairs]
    as_text = isinstance(tests, list) or by_line
    try:
        inputs = [_input(row, given, by_line) if as_text else call_text(given) for given, _ in pairs]
        outputs = result_texts(results) if as_text and not wrapped else list(map(json.dumps, results))
    except (TypeError, ValueError, RecursionError) as error:  # sets; dates and bytes of a Parquet file
        raise row.fault(pairs, f"a test holds what JSON cannot: {error}") from error
    return list(map(Case, inputs, outputs)), wrapped


def _outputs_are_wrapped(code: Sequence[str], pairs: Pairs) -> bool:
    """Return whether each output may be the result in a list of one: in Codewars' rows it is, in LeetCode's (class
    Solution) not. A row with results such as [5] is ambiguous.
    """
    if any("class Solution" in text for text in code):
        return False
    return all(isinstance(out, list) and len(out) == 1 for _, out in pairs)


def _input(row: SourceRow, given: Any, by_line: bool) -> str:
    """The arguments of a case: in LiveCodeBench's rows text with one value per line, elsewhere the list of them."""
    if isinstance(given, str) and by_line:
        return line_text([line for line in given.split("\n") if line.strip()])
    found = row.literal(given, "a function test's input") if isinstance(given, str) else given
    if not isinstance(found, list | tuple):
        raise row.fault(given, "a function test's input must be the list of arguments")
    return call_text(found)
