"""Our own rows: {id, kind, level, statement, fn_name, starter, tests: [{input, output}], reference}.

stdio: input and output are text. function: input is a JSON list of positional arguments as text, output a JSON value
as text. assert: input holds asserts that run after the program, output is null. The first test of the first two is the
one that the statement shows.
"""

from __future__ import annotations

from typing import get_args

from overlap.rows.row import SourceRow
from recipes.code_rl.cases import Judging, refuse_other_languages
from recipes.code_rl.core import CodeProblem
from sandbox.core.nouns import Case
from sandbox.core.problem import Kind


def read_own(row: SourceRow, judging: Judging) -> CodeProblem:
    named = row.text("kind")
    kind = next((known for known in get_args(Kind) if known == named), None)
    if kind is None:
        raise row.fault(named, f"kind must be one of {', '.join(get_args(Kind))}")
    refuse_other_languages(row, row.text("language", default="python"))
    tests = row.parsed("tests")
    if not isinstance(tests, list) or not all(isinstance(t, dict) and "input" in t for t in tests):
        raise row.fault(tests, "tests must be a list of {input, output}")
    if not tests:
        raise row.without_tests()
    id, level = row.id("id"), row.values.get("level") or 0
    if not isinstance(level, int):
        raise row.fault(level, "level must be a whole number")
    cases = [Case(t["input"], t.get("output")) for t in tests]
    return CodeProblem(
        id=id,
        statement=row.text("statement"),
        problem=judging.problem(row, id, kind, cases, row.text("fn_name", default="") or None),
        starter=row.text("starter", default=""),
        references=tuple(filter(None, (row.text("reference", default=""),))),
        level=level,
        place=row.place,
        public=tuple(cases[:1]) if kind != "assert" else (),
    )
