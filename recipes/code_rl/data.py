"""Problems from public formats: rows ──▶ CodeProblem, the format told by the columns.

    our own    {statement, tests, kind}          formats_own
    DeepCoder  {problem, tests}                  formats_contest
    APPS/TACO  {question, input_output}          formats_contest
    HumanEval  {prompt, test, entry_point}       formats_assert
    MBPP       {test_list, text | prompt}        formats_assert
    a split    {id, split, source}               splits: ids of problems that lie elsewhere

A row that cannot be read raises DataError with its place, the value and the way out. A row without tests is no problem:
it is left out and counted, and a source with nothing else raises.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass

from overlap.errors import ConfigError
from recipes.code_rl import formats_assert, formats_contest, formats_own
from recipes.code_rl.cases import Judging
from recipes.code_rl.core import CodeProblem, Row
from recipes.code_rl.sources import read_rows

__all__ = ["CodeProblem", "Judging", "ProblemSet", "load_problems", "reader_of"]

log = logging.getLogger(__name__)
Reader = Callable[[Row, Judging], CodeProblem | None]

_FORMATS: tuple[tuple[str, Set[str], Reader], ...] = (
    ("our own", formats_own.COLUMNS, formats_own.read),
    ("DeepCoder", formats_contest.DEEPCODER, formats_contest.read_deepcoder),
    ("APPS/TACO", formats_contest.APPS, formats_contest.read_apps),
    ("HumanEval", formats_assert.HUMANEVAL, formats_assert.read_humaneval),
    ("MBPP", formats_assert.MBPP, formats_assert.read_mbpp),
)


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """All problems of a source, in its order, and the places of the rows that had no tests."""

    source: str
    problems: tuple[CodeProblem, ...]
    without_tests: tuple[str, ...] = ()


def load_problems(source: str, judging: Judging | None = None, field: str = "data.train") -> ProblemSet:
    """Read a file, a folder or a hub data set (see ``sources``). ``field`` is the config field that errors name.

    Raises ConfigError when the source cannot be read or holds no problem, DataError for a malformed row or an id
    that occurs twice.
    """
    with _long_integers():
        problems, without_tests = _read_all(read_rows(source, field), judging or Judging())
    if without_tests:
        log.warning(
            "%s: %d of %d rows have no tests and are left out, the first at %s",
            source,
            len(without_tests),
            len(without_tests) + len(problems),
            without_tests[0],
        )
    if not problems:
        what = f"all {len(without_tests)} rows have no tests" if without_tests else "holds no rows"
        raise ConfigError(field, source, f"{what}; give problems with tests")
    return ProblemSet(source, tuple(problems), tuple(without_tests))


@contextmanager
def _long_integers() -> Iterator[None]:
    """TACO holds integers of more digits than Python converts by default."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def _read_all(rows: Iterable[Row], judging: Judging) -> tuple[list[CodeProblem], list[str]]:
    problems: list[CodeProblem] = []
    without_tests: list[str] = []
    places: dict[str, str] = {}
    for row in rows:
        problem = reader_of(row)(row, judging)
        if problem is None:
            without_tests.append(row.place)
            continue
        if problem.id in places:
            raise row.fault(problem.id, f"this id was already used at {places[problem.id]}; ids must be unique")
        _check_text(row, problem)
        places[problem.id] = row.place
        problems.append(problem)
    return problems, without_tests


def _check_text(row: Row, problem: CodeProblem) -> None:
    """Half of a surrogate pair (JSON can hold it) could reach neither the tokenizer nor the sandbox."""
    texts = [problem.id, problem.statement, problem.starter, problem.reference or ""]
    texts += [text for case in problem.problem.cases for text in (case.input, case.expected or "")]
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise row.fault(error.object[error.start : error.end], "is no Unicode text (a lone surrogate)") from error


def reader_of(row: Row) -> Reader:
    """The reader for this row's columns; a DataError that names the known formats where none fits."""
    for _, columns, reader in _FORMATS:
        if columns <= row.values.keys():
            return reader
    known = "; ".join(f"{name}: {', '.join(sorted(columns))}" for name, columns, _ in _FORMATS)
    raise row.fault(sorted(row.values), f"these columns are of no known format; needed are ({known})")
