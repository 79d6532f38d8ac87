"""A problem: test cases, and how to judge by them. One that passes right and wrong programs alike is refused.

It raises InvalidProblem, which names the field, when it is constructed or read from JSON: so "no tests" can never turn
into "all tests passed".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, Final, Literal, get_args

from sandbox.compare.modes import CHECKER, check_mode
from sandbox.compare.values import loads
from sandbox.core.checks import check_files, check_keys, check_texts, quoted, wrong_type
from sandbox.core.nouns import Case, Limits, Program, Subtask
from sandbox.core.plain import plain_value, python_literal
from sandbox.errors import InvalidProblem, WrongType

Kind = Literal["stdio", "function", "assert", "interactive"]
Convention = Literal["testlib", "kattis", "score"]

ARGUMENTS_BYTES_MAX: Final = 16 << 10
"""Size as JSON: everything about a run is one message to its jail."""
FILES_BYTES_MAX: Final = 64 << 20
"""Per case: they share the work directory with the files of a program."""
POINTS_MAX: Final = 1e12
_MODE_LENGTH_MAX: Final = 200
_NO_CHARACTER: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")


@dataclass(frozen=True, slots=True)
class Problem:
    """Test cases and how to judge by them. Raises InvalidProblem if they cannot distinguish right from
    wrong, and WrongType, which is a TypeError too, for an argument of another type. A case, limits, a program or a
    subtask may be given as its JSON object in `to_json`.
    """

    id: str
    kind: Kind
    cases: tuple[Case, ...]
    fn_name: str | None = None
    """function problems: "f" or "Solution.method"."""
    preamble: str = ""
    """Code that runs before the program (Python), or is placed above it (compiled languages)."""
    compare: str = "tokens"
    """A mode of sandbox/compare/modes.py: exact, tokens, float(1e-6), kattis(...), checker and so on."""
    limits: Limits = field(default_factory=Limits)
    language: str = "python"
    """assert problems: the language of the tests and of every program."""
    checker: Program | None = None
    """compare="checker": decides by input, output and expected answer; see sandbox/judging/referee.py."""
    interactor: Program | None = None
    """interactive problems: talks to the program and decides; see sandbox/judging/interactive.py."""
    convention: Convention = "testlib"
    """Protocol by which checker or interactor is called, and what its end means; "score" is for checkers."""
    referee_limits: Limits | None = None
    """Limits of the checker or the interactor; None means REFEREE_LIMITS."""
    passes: int = 1
    """Maximum number of runs per case.

    With more than one, a checker or interactor (convention kattis) that accepts and writes `nextpass.in` into its
    feedback directory provides the input of the next run.
    """
    subtasks: tuple[Subtask, ...] = ()
    """Points per group of cases; without any, the score is the share of the cases that pass, if all were judged."""

    def __post_init__(self) -> None:
        for name, kind in _LISTS.items():
            object.__setattr__(self, name, _given_list(name, getattr(self, name), kind))
        for name, kind in _PARTS.items():
            object.__setattr__(self, name, _given(name, getattr(self, name), kind, optional=name != "limits"))
        _check_problem(self)

    def to_json(self) -> dict[str, Any]:
        """A plain dict; the format of `sandbox judge problem.json`."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("limits", "checker", "interactor", "referee_limits"):
            data[name] = asdict(data[name]) if data[name] else None
        data["subtasks"] = [asdict(subtask) for subtask in self.subtasks]
        return data | {"cases": [case.to_json() for case in self.cases]}

    @classmethod
    def from_json(cls, data: Any) -> Problem:
        """The inverse of `to_json`; unknown and missing keys raise InvalidProblem. Null is as good as no key, where a
        field has another default: files of Parquet give every row the keys of all.
        """
        return cls(**_fields_of("problem", data, cls))

    @classmethod
    def of(cls, given: Problem | Mapping[str, Any]) -> Problem:
        """The problem itself, or from its JSON object."""
        if isinstance(given, Mapping):
            return cls.from_json(given)
        if not isinstance(given, cls):
            raise wrong_type("judge", "problem", given, "a Problem, or a mapping as in problem.json")
        return given

    def program(self, given: Program | str | Mapping[str, Any]) -> Program:
        """The program itself, or from its source in the problem's language, or from its JSON object."""
        if isinstance(given, str):
            return Program(given, self.language)
        if not isinstance(given, Program | Mapping):
            raise wrong_type(
                "judge", "program", given, "a Program, its source as text, or a mapping (JSON object) of its fields"
            )
        found: Program = _given("program", given, Program)
        return found


_LISTS: Final[dict[str, type]] = {"cases": Case, "subtasks": Subtask}
_PARTS: Final[dict[str, type]] = {"limits": Limits, "checker": Program, "interactor": Program, "referee_limits": Limits}


def _given(where: str, value: Any, kind: type[Any], *, optional: bool = False) -> Any:
    """A ``kind``, which may be given as its JSON object; or None, where that may be."""
    if isinstance(value, kind) or (optional and value is None):
        return value
    if not isinstance(value, Mapping):
        raise wrong_type("problem", where, value, f"a {kind.__name__}, or a mapping (JSON object) of its fields")
    try:
        return kind(**_fields_of(where, value, kind))
    except WrongType as error:
        raise WrongType(f"{where}: {error}") from error


def _fields_of(where: str, data: Any, kind: type[Any]) -> dict[str, Any]:
    """Return the fields of a ``kind`` that a JSON object gives. Raises InvalidProblem."""
    nullable = {item.name for item in fields(kind) if item.default is None or _is_required(item)}
    try:
        data = plain_value(data)
    except ValueError as error:
        raise InvalidProblem(f"{where}: {error}") from error
    if isinstance(data, dict):
        data = {name: value for name, value in data.items() if value is not None or name in nullable}
    check_keys(where, data, {f.name for f in fields(kind)}, {f.name for f in fields(kind) if _is_required(f)})
    return dict(data)


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _given_list(where: str, values: Any, kind: type[Any]) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | Mapping | kind) or not isinstance(values, Iterable):
        raise wrong_type("problem", where, values, f"a list of {kind.__name__}")
    return tuple(_given(f"{where}[{index}]", value, kind) for index, value in enumerate(values))


def _check_problem(problem: Problem) -> None:
    check_texts("problem", problem, "id")
    where = f"problem {problem.id!r}"
    named = ("fn_name",) if problem.fn_name else ()
    check_texts(where, problem, "kind", "convention", "preamble", "compare", "language", *named)
    for name, known in (("kind", get_args(Kind)), ("convention", get_args(Convention))):
        if (value := getattr(problem, name)) not in known:
            raise InvalidProblem(f"{where}: {name}={quoted(value)} is unknown; use one of {', '.join(known)}")
    if not problem.cases:
        raise InvalidProblem(f"{where}: cases=() can tell nothing; give at least one case")
    _check_mode(where, problem.compare)
    _check_referee(where, problem)
    if problem.kind == "function":
        _check_fn_name(where, problem.fn_name)
    for index, case in enumerate(problem.cases):
        _check_case(f"{where}: cases[{index}]", problem, case)
    blank = not any((case.expected or "").strip() for case in problem.cases)
    if problem.kind == "stdio" and problem.checker is None and blank:
        raise InvalidProblem(f"{where}: every expected output is blank, so an empty program would pass")
    if problem.kind == "function" and all(loads(case.expected or "0") is None for case in problem.cases):
        raise InvalidProblem(
            f"{where}: every expected result is null, so a function that returns nothing would pass; give the results"
        )
    _check_subtasks(where, problem)
    _check_passes(where, problem)


def _check_passes(where: str, problem: Problem) -> None:
    passes = problem.passes
    if not isinstance(passes, int) or isinstance(passes, bool):
        raise wrong_type(where, "passes", passes, "a whole number from 1 up")
    if passes < 1:
        raise InvalidProblem(f"{where}: passes={quoted(passes)}: must be a whole number from 1 up")
    if passes > 1 and (problem.convention != "kattis" or not (problem.checker or problem.interactor)):
        raise InvalidProblem(
            f"{where}: passes={passes}: only a checker or interactor of convention 'kattis' asks for more"
        )


def _check_referee(where: str, problem: Problem) -> None:
    """Check that checker and interactor are given exactly where the problem uses them."""
    asked = {"checker": problem.compare == CHECKER, "interactor": problem.kind == "interactive"}
    if asked["checker"] and problem.kind != "stdio":
        raise InvalidProblem(f"{where}: compare='checker' judges the output of stdio problems, not {problem.kind!r}")
    if problem.convention == "score" and asked["interactor"]:
        raise InvalidProblem(f"{where}: convention='score' is for checkers; an interactor prints to the program")
    for name, needed in asked.items():
        value = getattr(problem, name)
        if needed and value is None:
            raise InvalidProblem(f"{where}: {name}={quoted(value)}: give the {name} as a Program")
        if needed and not (value.source or value.files):
            raise InvalidProblem(f"{where}: {name}: has neither a source nor files; give it one of them")
        if value is not None and not needed:
            way_out = "compare='checker'" if name == "checker" else "kind='interactive'"
            raise InvalidProblem(f"{where}: {name} is given, but has no effect here; use {way_out}")


def _check_subtasks(where: str, problem: Problem) -> None:
    for subtask in problem.subtasks:
        check_texts(f"{where}: subtasks", subtask, "name")
    names = [subtask.name for subtask in problem.subtasks]
    if len(set(names)) < len(names):
        raise InvalidProblem(f"{where}: subtasks: two have the same name")
    groups = {case.group for case in problem.cases if case.group is not None}
    if empty := [name for name in names if name not in groups]:
        raise InvalidProblem(f"{where}: subtask {empty[0]!r} has no case, so every program would earn its points")
    if unknown := sorted(groups - set(names)):
        raise InvalidProblem(f"{where}: group={unknown[0]!r} names no subtask; add Subtask({unknown[0]!r}, points)")
    for subtask in problem.subtasks:
        points = subtask.points
        if not isinstance(points, int | float) or isinstance(points, bool):
            raise wrong_type(f"{where}: subtask {subtask.name!r}", "points", points, "a number")
        if not 0 <= points <= POINTS_MAX:
            raise InvalidProblem(
                f"{where}: subtask {subtask.name!r}: points={quoted(points)}: must be a number from 0 to {POINTS_MAX:g}"
            )
    if names and sum(subtask.points for subtask in problem.subtasks) == 0:
        raise InvalidProblem(f"{where}: subtasks: none has points; give at least one of them points")


def _check_fn_name(where: str, fn_name: str | None) -> None:
    parts = (fn_name or "").split(".")
    if len(parts) > 2 or not all(part.isidentifier() for part in parts):
        raise InvalidProblem(f"{where}: fn_name={quoted(fn_name)}: a function problem needs 'name' or 'Class.method'")


def _check_case(where: str, problem: Problem, case: Case) -> None:
    for name in ("input", "expected") if problem.kind in ("stdio", "interactive") else ():  # what is sent as bytes
        _check_encodable(f"{where}.{name}", getattr(case, name) or "")
    _check_extras(where, problem, case)
    if problem.kind == "assert":
        if case.expected is not None:
            raise InvalidProblem(f"{where}: expected must be null in an assert problem; the asserts hold it")
        if problem.language == "python":
            _check_asserts(where, case.input, problem.fn_name)
        elif not case.input.strip():
            raise InvalidProblem(f"{where}: input is blank, so every program would pass")
    elif case.expected is None:
        if problem.checker is None and problem.interactor is None:
            raise InvalidProblem(f"{where}: expected=null; give the expected output")
    elif problem.kind == "function":
        if not isinstance(_parse(f"{where}.input", case.input, loads, python_literal), list):
            raise InvalidProblem(f"{where}: input must be a JSON list of positional arguments")
        _parse(f"{where}.expected", case.expected, loads)


def _check_encodable(where: str, text: str) -> None:
    if found := _NO_CHARACTER.search(text):
        raise InvalidProblem(
            f"{where}: {found[0]!a} is no character; write bytes that are no UTF-8 as " r"'\udc80' to '\udcff'"
        )


def _check_extras(where: str, problem: Problem, case: Case) -> None:
    """Check the fields that most cases leave empty."""
    for name in ("arguments", "referee_arguments"):
        value = getattr(case, name)
        if any("\0" in part for part in value):
            raise InvalidProblem(f"{where}: {name}={quoted(value)}: must be a list of texts without null characters")
        for part in value:
            _check_encodable(f"{where}.{name}", part)
        if value and len(json.dumps(value)) > ARGUMENTS_BYTES_MAX:
            raise InvalidProblem(f"{where}: {name} take more than {ARGUMENTS_BYTES_MAX} bytes as JSON; use a file")
    if case.files:
        check_files(where, case.files, InvalidProblem)
        if (size := sum(len(text.encode("utf-8", "surrogatepass")) for _, text in case.files)) > FILES_BYTES_MAX:
            raise InvalidProblem(f"{where}: files hold {size} bytes; a work directory has room for {FILES_BYTES_MAX}")
    if (case.arguments or case.files) and problem.kind not in ("stdio", "interactive"):
        raise InvalidProblem(
            f"{where}: arguments and files are for stdio and interactive problems, not {problem.kind!r}"
        )
    if case.referee_arguments and not (problem.checker or problem.interactor):
        raise InvalidProblem(f"{where}: referee_arguments are given, but there is no checker and no interactor")
    if case.compare is not None:
        if problem.kind != "stdio" or CHECKER in (problem.compare, case.compare):
            raise InvalidProblem(
                f"{where}: compare={quoted(case.compare)}: a case of its own mode is for stdio without a checker"
            )
        _check_mode(where, case.compare)


def _check_mode(where: str, mode: str) -> None:
    if len(mode) > _MODE_LENGTH_MAX:
        raise InvalidProblem(f"{where}: compare={quoted(mode)} is unknown")
    check_mode(mode)


def _check_asserts(where: str, text: str, fn_name: str | None) -> None:
    from sandbox.core.asserts import says_nothing  # other kinds of problems need none of it

    try:
        why = says_nothing(text, fn_name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidProblem(f"{where}: input is not Python: {error}") from error
    if why:
        raise InvalidProblem(f"{where}: input {why}")


def _parse(where: str, text: str, *readers: Callable[[str], Any]) -> Any:
    """The value of a text in the form of the first reader that takes it: arguments may be JSON or a Python literal,
    as JSON has no keys but texts.
    """
    errors: list[ValueError] = []
    for read in readers:
        try:
            return read(text)
        except ValueError as error:
            errors.append(error)
    raise InvalidProblem(f"{where}={quoted(text)}: not JSON: {errors[0]}") from errors[0]
