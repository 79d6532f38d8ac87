"""Problems from public formats: rows ──▶ CodeProblem, the format told by the columns (``FORMATS``).

A row that cannot be used never ends a run: it is left out, with its place and the reason. What raises is a source that
cannot be read, or that holds nothing to train on.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

from overlap.core import LeftOut
from overlap.errors import ConfigError
from recipes.code_rl import (
    formats_assert,
    formats_contest,
    formats_evalplus,
    formats_fusion,
    formats_judge,
    formats_own,
)
from recipes.code_rl.cases import Judging
from recipes.code_rl.core import DUPLICATE, CodeProblem, Row, Unusable
from recipes.code_rl.sources import read_rows

__all__ = ["FORMATS", "CodeProblem", "Judging", "ProblemSet", "load_problems", "reader_of"]

Reader = Callable[[Row, Judging], CodeProblem]

FORMATS: tuple[tuple[str, Set[str], Reader], ...] = (
    ("our own", formats_own.COLUMNS, formats_own.read),
    ("DeepCoder", formats_contest.DEEPCODER, formats_contest.read_deepcoder),
    ("APPS, TACO", formats_contest.APPS, formats_contest.read_apps),
    ("SYNTHETIC-1, SYNTHETIC-2", formats_contest.SYNTHETIC, formats_contest.read_synthetic),
    ("verl", formats_contest.VERL, formats_contest.read_verl),
    ("rStar-Coder", formats_contest.RSTAR, formats_contest.read_rstar),
    ("LiveCodeBench", formats_judge.LIVECODEBENCH, formats_judge.read_livecodebench),
    ("CodeContests", formats_judge.CODECONTESTS, formats_judge.read_codecontests),
    ("CodeContests+", formats_judge.CODECONTESTS_PLUS, formats_judge.read_codecontests_plus),
    ("Codeforces", formats_judge.CODEFORCES, formats_judge.read_codeforces),
    ("BigCodeBench", formats_assert.BIGCODEBENCH, formats_assert.read_bigcodebench),
    ("HumanEval, HumanEval+, LeetCode", formats_assert.HUMANEVAL, formats_assert.read_humaneval),
    ("EvalPlus' releases", formats_evalplus.COLUMNS, formats_evalplus.read),
    ("HumanEval-X", formats_assert.HUMANEVAL_X, formats_assert.read_humaneval_x),
    ("KodCode", formats_assert.KODCODE, formats_assert.read_kodcode),
    ("KodCode", formats_assert.KODCODE_CODE, formats_assert.read_kodcode),
    ("SandboxFusion", formats_fusion.COLUMNS, formats_fusion.read),
    ("MBPP, MBPP+", formats_assert.MBPP, formats_assert.read_mbpp),
)
"""Name, columns that a row of it has, reader. The first that fits is taken."""


_UNFORESEEN = (TypeError, ValueError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """All problems of a source, in its order, and the rows that gave none."""

    source: str
    problems: tuple[CodeProblem, ...]
    left_out: tuple[LeftOut, ...] = ()


def load_problems(
    source: str,
    judging: Judging | None = None,
    field: str = "data.train",
    *,
    wanted: Callable[[Row], bool] = lambda row: True,
) -> ProblemSet:
    """Read a file, a folder or a hub data set (see ``sources``). ``field`` is the config field that errors name.

    Rows that are not ``wanted`` are passed over, unread; it may raise Unusable.

    Raises ConfigError when the source cannot be read or holds no problem that can be used.
    """
    with long_integers():
        problems, left_out = _read_all(read_rows(source, field), judging or Judging(), wanted)
    if not problems:
        raise ConfigError(field, source, f"holds no usable problem: {counted(left_out)}")
    return ProblemSet(source, tuple(problems), tuple(left_out))


def counted(left_out: Sequence[LeftOut]) -> str:
    """Rows by reason, each with its first place and complaint; "no rows" for none."""
    first = {row.reason: row for row in reversed(left_out)}
    counts = Counter(row.reason for row in left_out).most_common()
    return "; ".join(f"{n} {reason} (first {first[reason]})" for reason, n in counts) or "no rows"


@contextmanager
def long_integers() -> Iterator[None]:
    """TACO holds integers of more digits than Python converts by default."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def _read_all(
    rows: Iterable[Row | Unusable], judging: Judging, wanted: Callable[[Row], bool]
) -> tuple[list[CodeProblem], list[LeftOut]]:
    problems: list[CodeProblem] = []
    left_out: list[LeftOut] = []
    for found in read_problems(rows, judging, wanted):
        if isinstance(found, LeftOut):
            left_out.append(found)
        else:
            problems.append(found)
    return problems, left_out


def read_problems(
    rows: Iterable[Row | Unusable], judging: Judging, wanted: Callable[[Row], bool] = lambda row: True
) -> Iterator[CodeProblem | LeftOut]:
    """Row by row: the problem that it gives, or why it gives none."""
    places: dict[str, str] = {}
    for row in rows:
        if isinstance(row, Unusable):
            yield row.left_out()
            continue
        try:
            if not wanted(row):
                continue
            problem = reader_of(row)(row, judging)
            _check_text(row, problem)
            if problem.id in places:
                raise row.fault(problem.id, f"was already used at {places[problem.id]}; ids must be unique", DUPLICATE)
        except Unusable as error:
            yield error.left_out()
            continue
        except _UNFORESEEN as error:  # a shape that its reader did not think of: counted like any other bad row
            complaint = row.fault(f"{type(error).__name__}: {error}", "its shape cannot be read")
            yield complaint.left_out()
            continue
        places[problem.id] = row.place
        yield problem


def _check_text(row: Row, problem: CodeProblem) -> None:
    """Half of a surrogate pair (JSON can hold it) could reach neither the tokenizer nor the sandbox."""
    texts = [problem.id, problem.statement, problem.starter, problem.problem.preamble, *problem.references]
    texts += [text for case in problem.problem.cases for text in (case.input, case.expected or "")]
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise row.fault(error.object[error.start : error.end], "is no Unicode text (a lone surrogate)") from error


def reader_of(row: Row) -> Reader:
    """The reader for this row's columns; an Unusable that names the known formats where none fits."""
    for _, columns, reader in FORMATS:
        if columns <= row.values.keys():
            return reader
    known = "; ".join(f"{name}: {', '.join(sorted(columns))}" for name, columns, _ in FORMATS)
    raise row.fault(sorted(map(str, row.values)), f"these columns are of no known format; needed are ({known})")
