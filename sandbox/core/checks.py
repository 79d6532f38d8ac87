"""Check that a problem can tell a right program from a wrong one. Raises InvalidProblem that names the field.

Called when a data type is constructed or read from JSON, so that "no tests" can never turn into "all tests passed".
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from sandbox.compare import CHECKER, check_mode, loads
from sandbox.errors import InvalidProblem, InvalidProgram, SandboxError

if TYPE_CHECKING:
    from sandbox.core.nouns import Case, Problem, Program

Kind = Literal["stdio", "function", "assert", "interactive"]
Convention = Literal["testlib", "kattis"]
Isolation = Literal["auto", "A", "B", "C"]

FILES_MAX: Final = 1000
NAMES_BYTES_MAX: Final = 24 << 10
ARGUMENTS_BYTES_MAX: Final = 16 << 10
"""As JSON: everything about a run is one message to its jail."""
FILES_BYTES_MAX: Final = 64 << 20
"""Per case: they share the work directory with the files of a program."""
POINTS_MAX: Final = 1e12
_MODE_LENGTH_MAX: Final = 200


def check_texts(where: str, noun: object, *names: str) -> None:
    """Check that these fields are texts. Raises InvalidProblem."""
    for name in names:
        value = getattr(noun, name)
        if not isinstance(value, str):
            raise InvalidProblem(f"{where}: {name}={quoted(value)}: must be text, not {type(value).__name__}")


def quoted(value: object) -> str:
    """Return the value as a message quotes it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits
        return f"of type {type(value).__name__}"
    return text if len(text) <= 200 else text[:200] + "..."


def check_problem(problem: Problem) -> None:
    check_texts("problem", problem, "id")
    where = f"problem {problem.id!r}"
    check_texts(where, problem, "preamble", "compare", "language", *(["fn_name"] if problem.fn_name else []))
    _check_choice(where, "kind", problem.kind, get_args(Kind))
    _check_choice(where, "convention", problem.convention, get_args(Convention))
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
    _check_subtasks(where, problem)
    _check_passes(where, problem)


def check_program(program: Program) -> None:
    """Raises InvalidProgram, and InvalidProblem for what is no text."""
    check_texts("program", program, "source", "language", "entry")
    if program.source and program.files:
        raise InvalidProgram("program: source and files are given; put the source among the files")
    if program.files:
        _check_files("program", program.files, InvalidProgram)


def _check_files(where: str, files: object, error: type[SandboxError]) -> None:
    """Check names and texts of files; every name must lie below the directory."""
    pairs = files if isinstance(files, tuple) else (files,)
    if not all(isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(x, str) for x in pair) for pair in pairs):
        raise error(f"{where}: files must be pairs of a name and a text")
    names = [name for name, _ in pairs]
    if len(names) > FILES_MAX or len(json.dumps(names)) > NAMES_BYTES_MAX:
        raise error(f"{where}: files: more than {FILES_MAX}, or names of more than {NAMES_BYTES_MAX} bytes as JSON")
    for name in names:
        if not _is_below(name):
            raise error(f"{where}: files: {quoted(name)} is no name below a directory; use one like 'lib/util.py'")
    folders = {name[:at] for name in names for at, letter in enumerate(name) if letter == "/"}
    if double := min(folders.intersection(names), default=None):
        raise error(f"{where}: files: {double!r} is there twice, as a file and as a folder")
    if len(set(names)) < len(names):
        raise error(f"{where}: files: a name is there twice")
    if len(names) + len(folders) > FILES_MAX:
        raise error(f"{where}: files: more than {FILES_MAX} with their folders")


def _is_below(name: str) -> bool:
    try:
        parts = name.encode().split(b"/")
    except UnicodeEncodeError:
        return False
    return len(name) <= 1024 and not any(
        part in (b"", b".", b"..") or len(part) > 255 or b"\0" in part for part in parts
    )


def check_keys(where: str, data: Any, known: Collection[str], required: Collection[str]) -> None:
    """Check for a JSON object with all `required` keys and no others than `known`."""
    if not isinstance(data, dict):
        raise InvalidProblem(f"{where}: must be a JSON object, not {type(data).__name__}")
    if unknown := sorted(set(data) - set(known)):
        raise InvalidProblem(f"{where}: unknown key {quoted(unknown[0])}; known keys: {', '.join(sorted(known))}")
    if missing := sorted(set(required) - set(data)):
        raise InvalidProblem(f"{where}: key {missing[0]!r} is missing")


def _check_passes(where: str, problem: Problem) -> None:
    passes = problem.passes
    if not isinstance(passes, int) or isinstance(passes, bool) or passes < 1:
        raise InvalidProblem(f"{where}: passes={quoted(passes)}: must be a whole number from 1 up")
    if passes > 1 and (problem.convention != "kattis" or not (problem.checker or problem.interactor)):
        raise InvalidProblem(
            f"{where}: passes={passes}: only a checker or interactor of convention 'kattis' asks for more"
        )


def _check_choice(where: str, field: str, value: object, known: Collection[str]) -> None:
    if value not in known:
        raise InvalidProblem(f"{where}: {field}={quoted(value)} is unknown; use one of {', '.join(known)}")


def _check_referee(where: str, problem: Problem) -> None:
    """Check that checker and interactor are given exactly where the problem uses them."""
    asked = {"checker": problem.compare == CHECKER, "interactor": problem.kind == "interactive"}
    if asked["checker"] and problem.kind != "stdio":
        raise InvalidProblem(f"{where}: compare='checker' judges the output of stdio problems, not {problem.kind!r}")
    for field, needed in asked.items():
        value = getattr(problem, field)
        if needed and not hasattr(value, "source"):
            raise InvalidProblem(f"{where}: {field}={quoted(value)}: give the {field} as a Program")
        if needed and not (value.source or value.files):
            raise InvalidProblem(f"{where}: {field}: has neither a source nor files; give it one of them")
        if value is not None and not needed:
            way_out = "compare='checker'" if field == "checker" else "kind='interactive'"
            raise InvalidProblem(f"{where}: {field} is given, but nobody would ask it; use {way_out}")


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
        good = isinstance(points, int | float) and not isinstance(points, bool)
        if not good or not 0 <= points <= POINTS_MAX:
            raise InvalidProblem(
                f"{where}: subtask {subtask.name!r}: points={quoted(points)}: must be a number from 0 to {POINTS_MAX:g}"
            )
    if names and sum(subtask.points for subtask in problem.subtasks) == 0:
        raise InvalidProblem(f"{where}: subtasks: nobody can earn a point; give at least one of them points")


def _check_fn_name(where: str, fn_name: str | None) -> None:
    parts = (fn_name or "").split(".")
    if len(parts) > 2 or not all(part.isidentifier() for part in parts):
        raise InvalidProblem(f"{where}: fn_name={quoted(fn_name)}: a function problem needs 'name' or 'Class.method'")


def _check_case(where: str, problem: Problem, case: Case) -> None:
    if not isinstance(case.input, str) or not isinstance(case.expected, str | None):
        raise InvalidProblem(f"{where}: input and expected must be text")
    if not isinstance(case.group, str | None):
        raise InvalidProblem(f"{where}: group={quoted(case.group)}: must be the name of a subtask, or null")
    for name in ("input", "expected") if problem.kind in ("stdio", "interactive") else ():  # what is sent as bytes
        _check_encodable(f"{where}.{name}", getattr(case, name) or "")
    _check_extras(where, problem, case)
    if problem.kind == "assert":
        if case.expected is not None:
            raise InvalidProblem(f"{where}: expected must be null in an assert problem; the asserts hold it")
        if problem.language == "python":
            _check_asserts(where, case.input)
        elif not case.input.strip():
            raise InvalidProblem(f"{where}: input is blank, so every program would pass")
    elif case.expected is None:
        if problem.checker is None and problem.interactor is None:
            raise InvalidProblem(f"{where}: expected=null; give the expected output")
    elif problem.kind == "function":
        if not isinstance(_parse_json(f"{where}.input", case.input), list):
            raise InvalidProblem(f"{where}: input must be a JSON list of positional arguments")
        _parse_json(f"{where}.expected", case.expected)


def _check_encodable(where: str, text: str) -> None:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidProblem(
            f"{where}: {text[error.start]!a} is no character; write bytes that are no UTF-8 as "
            r"'\udc80' to '\udcff'"
        ) from error


def _check_extras(where: str, problem: Problem, case: Case) -> None:
    """Check the fields that most cases leave empty."""
    for field in ("arguments", "referee_arguments"):
        value = getattr(case, field)
        if not isinstance(value, tuple) or not all(isinstance(part, str) and "\0" not in part for part in value):
            raise InvalidProblem(f"{where}: {field}={quoted(value)}: must be a list of texts")
        if value and len(json.dumps(value)) > ARGUMENTS_BYTES_MAX:
            raise InvalidProblem(f"{where}: {field} take more than {ARGUMENTS_BYTES_MAX} bytes as JSON; use a file")
    if case.files:
        _check_files(where, case.files, InvalidProblem)
        if (size := sum(len(text.encode("utf-8", "surrogatepass")) for _, text in case.files)) > FILES_BYTES_MAX:
            raise InvalidProblem(f"{where}: files hold {size} bytes; a work directory has room for {FILES_BYTES_MAX}")
    if (case.arguments or case.files) and problem.kind not in ("stdio", "interactive"):
        raise InvalidProblem(
            f"{where}: arguments and files are for stdio and interactive problems, not {problem.kind!r}"
        )
    if case.referee_arguments and not (problem.checker or problem.interactor):
        raise InvalidProblem(f"{where}: referee_arguments are given, but there is no checker and no interactor")
    if case.compare is not None:
        check_texts(where, case, "compare")
        if problem.kind != "stdio" or CHECKER in (problem.compare, case.compare):
            raise InvalidProblem(
                f"{where}: compare={quoted(case.compare)}: a case of its own mode is for stdio without a checker"
            )
        _check_mode(where, case.compare)


def _check_mode(where: str, mode: str) -> None:
    if len(mode) > _MODE_LENGTH_MAX:
        raise InvalidProblem(f"{where}: compare={quoted(mode)} is unknown")
    check_mode(mode)


def _check_asserts(where: str, text: str) -> None:
    import ast

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidProblem(f"{where}: input is not Python: {error}") from error
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
        raise InvalidProblem(f"{where}: input holds no assert statement, so every program would pass")


def _parse_json(where: str, text: str) -> Any:
    try:
        return loads(text)
    except ValueError as error:
        raise InvalidProblem(f"{where}: not JSON: {error}") from error


def printable(text: str, keep: str = "") -> str:
    r"""`text` with all but printable characters and those of `keep` escaped: no line, colour or cursor of its own.

    The result can be encoded: a lone surrogate becomes `\udcff`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
