"""Problems from public formats: rows ──▶ CodeProblem. The format is recognised by the columns (``FORMATS``).

A row that cannot be used never ends a run: it is left out, with its place and the reason. What raises is a source that
cannot be read, or that holds nothing to train on.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from overlap.core import LeftOut
from overlap.core.errors import ConfigError
from overlap.pipeline.dataset_filter import PromptSplit
from overlap.rows.row import DUPLICATE, MALFORMED, SourceRow, Unusable
from overlap.rows.sources import source_rows
from recipes.code_rl import (
    formats_assert,
    formats_contest,
    formats_evalplus,
    formats_fusion,
    formats_judge,
    formats_own,
)
from recipes.code_rl.cases import Judging
from recipes.code_rl.core import NO_CODE, UNJUDGEABLE, CodeProblem
from sandbox.core.plain import strange_encoding
from sandbox.errors import InvalidProblem

__all__ = ["FORMATS", "CodeProblem", "Judging", "ProblemSet", "format_of", "load_problems"]

Reader = Callable[[SourceRow, Judging], CodeProblem]


class Format(NamedTuple):
    """A public format of problems."""

    name: str
    columns: str
    """The columns that distinguish it from the others, separated by ", "."""
    read: Reader
    settings: str = ""
    """Columns that say how to judge, and hold, separated by ", "."""

    def fits(self, row: SourceRow, *, filled: bool) -> bool:
        """Return whether a row has the columns, each of them ``filled`` or not."""
        return all(
            name in row.values and not (filled and row.values[name] is None) for name in self.columns.split(", ")
        )

    def unread(self, row: SourceRow) -> list[str]:
        """A note for each key of a row, or of its tests, that looks as if it said how to judge, and does not."""
        tests = row.values.get("tests")
        filled = [name for name, value in row.values.items() if value not in (None, "", [], {})]
        inside = (
            [f"tests.{name}" for test in tests[:1] if isinstance(test, dict) for name in test]
            if isinstance(tests, list)
            else []
        )
        found = [name for name in (*filled, *inside) if _LIKE_A_SETTING.fullmatch(name.rpartition(".")[2])]
        return [f"with {name}, which has no effect" for name in found if name not in self.settings.split(", ")]


_LIMITS = "time_limit, memory_limit, memory_limit_bytes"
FORMATS: tuple[Format, ...] = (
    Format("our own", "statement, tests, kind", formats_own.read_own),
    Format("DeepCoder", "problem, tests", formats_contest.read_deepcoder, _LIMITS),
    Format("APPS, TACO", "question, input_output", formats_contest.read_apps, _LIMITS),
    Format("SYNTHETIC-1, SYNTHETIC-2", "prompt, verification_info", formats_contest.read_synthetic, _LIMITS),
    Format("verl", "prompt, reward_model", formats_contest.read_verl, _LIMITS),
    Format("rStar-Coder", "question, inputs, outputs", formats_contest.read_rstar, _LIMITS),
    Format("LiveCodeBench", "question_content, public_test_cases", formats_judge.read_livecodebench, _LIMITS),
    Format("CodeContests", "description, public_tests", formats_judge.read_codecontests, _LIMITS),
    Format("CodeContests+", "description, test_cases", formats_judge.read_codecontests_plus, _LIMITS + ", checker"),
    Format("Codeforces", "description, official_tests", formats_judge.read_codeforces, _LIMITS + ", generated_checker"),
    Format("BigCodeBench", "instruct_prompt, test, entry_point", formats_assert.read_bigcodebench),
    Format("HumanEval, HumanEval+, LeetCode", "prompt, test, entry_point", formats_assert.read_humaneval),
    Format(
        "EvalPlus' releases",
        "prompt, entry_point, canonical_solution, base_input, plus_input",
        formats_evalplus.read_evalplus,
    ),
    Format("HumanEval-X", "prompt, test, declaration", formats_assert.read_humaneval_x),
    Format("KodCode", "question, solution, test", formats_assert.read_kodcode),
    Format("KodCode's test_code", "question, solution, test_code", formats_assert.read_kodcode),
    Format("SandboxFusion", "content, labels", formats_fusion.read_fusion),
    Format("MBPP, MBPP+", "test_list", formats_assert.read_mbpp),
)
"""The first format whose columns a row has is taken. A new format needs an entry here, a line in docs/data.md, and a
sample in tests/support/samples.py; a test names what is missing."""


_LIKE_A_SETTING = re.compile(
    r"(?:\w+_)?checker|interactor|compare|limits|(?:(?:cpu|wall|time|memory)_?limit|time_?out)\w*|cpu_s|wall_s"
    r"|(?:\w+_)?weights?|points|tolerance"
)
"""Names of keys that look as if they said how to judge."""
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
    wanted: Callable[[SourceRow], bool] = lambda row: True,
) -> ProblemSet:
    """Read a file, a folder or a hub data set (see ``overlap.rows``). ``field`` is the config field that errors name.

    Rows that are not ``wanted`` are passed over, unread; it may raise Unusable.

    Raises ConfigError when the source cannot be read or holds no problem that can be used.
    """
    with long_integers():
        problems, left_out = _read_all(source_rows(source, field), judging or Judging(), wanted)
    if not problems:
        by_reason = PromptSplit(left_out=tuple(left_out)).by_reason()
        reasons = "; ".join(f"{len(rows)} {reason} (first {rows[0]})" for reason, rows in by_reason.items())
        way_out = "; rows that a function of yours rewards: --reward MODULE:FUNCTION" if NO_CODE in by_reason else ""
        raise ConfigError(field, source, f"holds no usable problem: {reasons or 'no rows'}{way_out}")
    return ProblemSet(source, tuple(problems), tuple(left_out))


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
    rows: Iterable[SourceRow | Unusable], judging: Judging, wanted: Callable[[SourceRow], bool]
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
    rows: Iterable[SourceRow | Unusable], judging: Judging, wanted: Callable[[SourceRow], bool] = lambda row: True
) -> Iterator[CodeProblem | LeftOut]:
    """SourceRow by row: the problem that it gives, or why it gives none."""
    places: dict[str, str] = {}
    for row in rows:
        if isinstance(row, Unusable):
            yield row.left_out()
            continue
        try:
            if not wanted(row):
                continue
            known = format_of(row)
            problem = known.read(row, judging)
            problem = replace(problem, split=row.values.get("split"), notes=(*row.notes, *known.unread(row)))
            _check_text(row, problem)
            if problem.id in places:
                raise row.fault(problem.id, f"was already used at {places[problem.id]}; ids must be unique", DUPLICATE)
        except Unusable as error:
            yield error.left_out()
            continue
        except InvalidProblem as error:
            yield LeftOut(row.place, MALFORMED, str(error))
            continue
        except _UNFORESEEN as error:  # a shape that its reader did not think of: counted like any other bad row
            complaint = row.fault(f"{type(error).__name__}: {error}", "its shape cannot be read")
            yield complaint.left_out()
            continue
        places[problem.id] = row.place
        yield problem


def _check_text(row: SourceRow, problem: CodeProblem) -> None:
    """Half of a surrogate pair (JSON can hold it) could reach neither the tokenizer nor the sandbox, and what a test
    was read from in another encoding can be printed by no program.
    """
    for case in problem.problem.cases:
        for name, text in (("input", case.input), ("output", case.expected or "")):
            if strange := strange_encoding(text):
                raise row.fault(text, f"the {name} of a test {strange}; save it as UTF-8 without a mark", UNJUDGEABLE)
    texts = [problem.id, problem.statement, problem.starter, problem.problem.preamble, *problem.references]
    texts += [text for case in problem.problem.cases for text in (case.input, case.expected or "")]
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise row.fault(error.object[error.start : error.end], "is no Unicode text (a lone surrogate)") from error


def format_of(row: SourceRow) -> Format:
    """The format with this row's columns; an Unusable that names the known formats where none fits. Columns that are
    null may be those of other rows of its file.
    """
    for filled in (True, False):
        for known_format in FORMATS:
            if known_format.fits(row, filled=filled):
                return known_format
    known = "; ".join(f"{known.name}: {known.columns}" for known in FORMATS)
    raise row.fault(sorted(map(str, row.values)), f"no known format has these columns; known are ({known})")
