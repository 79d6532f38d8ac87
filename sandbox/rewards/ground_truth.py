"""A problem from what data sets hold as the truth about an answer: labels, ground truths, tests.

{id, kind, cases, ...}                          a problem as Problem.to_written() writes it
{inputs, outputs[, fn_name]}                    APPS, TACO, verl
{assert_case: [...]}, {test_list: [...]}        asserts: verl, MBPP
{test_cases: [...]}, {tests: [...]}             open-r1, rLLM: a list of the next kind
[{input, output[, fn_name]}], ["assert ..."]    tests one by one; also {input: {stdin}, output: {stdout}}
{ground_truth: ...}, or any of these as JSON    verl's reward_model; asserts as plain text too
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from sandbox.compare.modes import LISTED
from sandbox.compare.values import loads
from sandbox.core.nouns import Case, Limits
from sandbox.core.plain import plain_value, python_literal
from sandbox.core.problem import Problem
from sandbox.errors import InvalidProblem
from sandbox.languages.table import find_language
from sandbox.rewards.calls import CONTEST_PREAMBLE, call_text, line_text, result_texts

_Text = TypeVar("_Text")
COLUMNS: Final = (
    "verification_info", "reward_model", "ground_truth", "input_output", "test_cases", "tests", "test_list", "label",
    "problem", "answer",
)  # fmt: skip
"""Columns of a row that may hold the truth, the surest first."""
_INSIDE: Final = ("ground_truth", "test_cases", "tests", "test", "assert_case", "test_list")
"""Keys under which the tests are nested."""
_LONG: Final = "an integer of more than 4,300 digits"
_FORMS: Final = (
    "give a problem as JSON (Problem.to_json), {inputs, outputs[, fn_name]}, a list of {input, output}, or asserts"
)


def problem_of(
    given: Any, *, id: str = "problem", language: str = "python", limits: Limits | None = None, compare: str = "tokens"
) -> Problem:
    """The problem that a value of a data set describes. ``limits`` and ``compare`` hold where it says nothing of them;
    ``language`` is that of the programs: functions in Python find the imports that public graders put in front. Raises
    InvalidProblem for what is none of the forms, InvalidProgram for an unknown language.
    """
    if isinstance(given, Problem):
        return given
    value = parsed_value(given)
    if isinstance(value, Mapping) and value.get("kind") and value.get("cases") is not None:
        return Problem.from_json({**value, "id": value.get("id") or id})
    limits = limits or Limits()
    tests, name = _tests(value, "")
    if tests and all(isinstance(test, str) for test in tests):
        return Problem(id, "assert", tuple(map(Case, tests)), fn_name=name or None, language=language, limits=limits)
    pairs = [_pair(test) for test in tests]
    if not pairs:
        raise InvalidProblem(f"problem {id!r}: it has no tests: {_FORMS}")
    if not name:
        if any(wanted is None for _, wanted in pairs):
            raise InvalidProblem(f"problem {id!r}: an expected output is null: give the text that a program must print")
        streams = [(_bare(given, "stdin"), _bare(wanted, "stdout")) for given, wanted in pairs]
        cases = [Case("" if given is None else _text(given), _text(wanted)) for given, wanted in streams]
        return Problem(id, "stdio", tuple(cases), compare=compare, limits=limits)
    if all(isinstance(given, list) and isinstance(wanted, list) and len(wanted) == 1 for given, wanted in pairs):
        pairs, compare = [(given, wanted[0]) for given, wanted in pairs], compare + LISTED
    preamble = CONTEST_PREAMBLE if find_language(language).name == "python" else ""
    cases = list(map(Case, [_arguments(given) for given, _ in pairs], _results(pairs)))
    return Problem(id, "function", tuple(cases), fn_name=name, preamble=preamble, compare=compare, limits=limits)


def problem_in(row: Mapping[str, Any], column: str = "", **how: Any) -> Problem:
    """The problem of a row: what its ``column`` describes, or else the first of ``COLUMNS`` that describes one, or the
    row itself. ``how``: as for `problem_of`. Raises InvalidProblem.
    """
    row = plain_value(row)
    how = {"id": str(next((row[name] for name in ("id", "task_id", "problem_id") if row.get(name)), "problem")), **how}
    if column:
        if column not in row:
            raise InvalidProblem(f"problem {how['id']!r}: the row has no column {column!r}, but {', '.join(row)}")
        return problem_of(row[column], **how)
    refused: InvalidProblem | None = None
    for value in (row, *(row[name] for name in COLUMNS if row.get(name))):
        try:
            return problem_of(value, **how)
        except InvalidProblem as error:
            if _holds_tests(value):
                if value is not row:
                    raise  # what another column says may be the answer
                refused = error
            continue  # of a row, most columns describe no problem
    if refused is not None:
        raise refused
    columns = ", ".join(map(str, row))
    raise InvalidProblem(
        f"problem {how['id']!r}: none of the columns {columns} holds tests: {_FORMS}, and name the column"
    )


def _holds_tests(value: Any) -> bool:
    """Return whether a value is meant as tests, even faulty ones: pairs of inputs and outputs, or asserts in a
    list. A text that asserts may be an answer.
    """
    try:
        tests, _ = _tests(value, "")
    except InvalidProblem:
        return True
    asserts = tests != [value] and any(isinstance(test, str) and "assert" in test for test in tests)
    return asserts or any(isinstance(test, Mapping) and {"input", "output"} <= test.keys() for test in tests)


def parsed_value(given: Any) -> Any:
    """Return what JSON text holds, or a Python literal of a list or an object; asserts unchanged. All of it in plain
    values, whatever library handed it out.
    """
    if not isinstance(given := plain_value(given), str):
        return given
    try:
        return plain_value(loads(given))
    except ValueError:
        if given.lstrip()[:1] in ("{", "[", "("):
            with suppress(ValueError):
                return plain_value(python_literal(given))
        return [given] if "assert" in given else given


def _tests(value: Any, name: str, inner: bool = False) -> tuple[list[Any], str]:
    """Return the tests one by one, and the name of the function that they call, "" for none. ``inner``: of a value
    in the place of tests.
    """
    value = parsed_value(value)
    if isinstance(value, Mapping):
        name = str(value.get("fn_name") or value.get("entry_point") or name)
        for each, other in (("inputs", "outputs"), *([("input", "output")] if inner else [])):
            if not (value.get(each) and value.get(other)):
                continue
            given, wanted = value[each], value[other]
            if not isinstance(given, list) or not isinstance(wanted, list) or len(given) != len(wanted):
                raise InvalidProblem("inputs and outputs must be lists of the same length")
            return [{"input": one, "output": other} for one, other in zip(given, wanted, strict=True)], name
        inside = next((value[key] for key in _INSIDE if value.get(key)), None)
        return _tests(inside, name, True) if inside is not None else ([], name)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        named = next((test["fn_name"] for test in value if isinstance(test, Mapping) and test.get("fn_name")), name)
        return list(value), str(named)
    return [], name


def _pair(test: Any) -> tuple[Any, Any]:
    if not isinstance(test, Mapping) or "input" not in test or not {"output", "expected"} & test.keys():
        raise InvalidProblem(f"a test must be an object with input and output, not {reprlib.repr(test)}")
    return test["input"], test["output"] if test.get("output") is not None else test.get("expected")


def _bare(value: Any, stream: str) -> Any:
    return value[stream] if isinstance(value, Mapping) and value.keys() == {stream} else value


def _text(value: Any) -> str:
    """Return the content of a stream: a text, or lines."""
    if isinstance(value, list | tuple):
        return "\n".join(map(_line, value))
    return _line(value)


def _line(value: Any) -> str:
    if isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value):
        return " ".join(map(_line, value))
    if not isinstance(value, str | int | float):
        raise InvalidProblem(f"{reprlib.repr(value)} is no text of a stream: give a text, or lines")
    return _written(value, str)


def _arguments(given: Any) -> str:
    """The list of a call's arguments; a text has one value per line, in JSON or as Python's literal."""
    if not isinstance(given, str):
        return _written(given if isinstance(given, list) else [given], call_text)
    try:
        return line_text([line for line in given.splitlines() if line.strip()])
    except ValueError as error:
        raise InvalidProblem(f"the input of a function must hold a JSON value per line: {error}") from error


def _results(pairs: list[tuple[Any, Any]]) -> list[str]:
    """The JSON of results. A text is JSON or Python's literal where the input is text too, and the result itself where
    it is neither, or is beside arguments as values.
    """
    texts = _written([wanted for given, wanted in pairs if isinstance(given, str)], result_texts)
    read = iter(texts)
    return [next(read) if isinstance(given, str) else _written(wanted, json.dumps) for given, wanted in pairs]


def _written(value: Any, write: Callable[[Any], _Text]) -> _Text:
    try:
        return write(value)
    except (TypeError, ValueError, RecursionError) as error:
        why = _LONG if "digits" in str(error) else f"{reprlib.repr(value)} is no value of JSON ({error})"
        raise InvalidProblem(f"{why}: give inputs and outputs as JSON text") from error
