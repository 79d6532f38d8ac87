"""SandboxFusion's rows: {content, test | test_list, labels}. The rest follows from ``test``.

[{input: {stdin}, output: {stdout}}]    a program that reads and prints
{code: "#<INSERT>..."}                  test code around the program, in the language of the labels
def check(candidate): ...               HumanEval, with labels.entry_point
class TestCases(unittest.TestCase)      BigCodeBench
assert f(1) == 2                        asserts, one a line
eJx...                                  packed tests (LiveCodeBench)
"""

from __future__ import annotations

import re

from overlap.rows.row import SourceRow
from recipes.code_rl import assert_tests
from recipes.code_rl.cases import Judging, refuse_other_languages
from recipes.code_rl.core import CodeProblem
from recipes.code_rl.formats_assert import read_bigcodebench, read_humaneval, read_mbpp
from recipes.code_rl.formats_contest import contest, unfenced
from recipes.code_rl.formats_judge import unpacked
from sandbox.core.nouns import Case

_PACKED = re.compile(r"[A-Za-z0-9+/=\s]{16,}")
_FENCED = re.compile(r"```python\n(.*?)```", re.DOTALL)


def read_fusion(row: SourceRow, judging: Judging) -> CodeProblem:
    labels = row.parsed("labels") or {}
    if not isinstance(labels, dict):
        raise row.fault(labels, "labels must be an object")
    refuse_other_languages(row, str(labels.get("programming_language") or labels.get("language") or "python"))
    if row.values.get("test_list"):
        return read_mbpp(row.having(**{**labels, **row.values}), judging)
    test = row.values.get("test")
    if isinstance(test, str) and (test.lstrip()[:1] in ("[", "{") or _PACKED.fullmatch(test)):
        test = unpacked(row, "test", test)
    if isinstance(test, dict) and isinstance(test.get("input_output"), str):
        test = row.literal(test["input_output"], "test")
    if not test:
        raise row.without_tests()
    if isinstance(test, str):
        return _code(row, judging, test, str(labels.get("entry_point") or ""))
    if isinstance(test, dict) and isinstance(around := test.get("code") or test.get("test"), str):
        return _code(row, judging, around.replace("#<INSERT>", ""), "")
    return contest(row, judging, row.text("content"), test)


def _code(row: SourceRow, judging: Judging, test: str, entry: str) -> CodeProblem:
    inner = row.having(test=test, prompt=row.text("content"), entry_point=entry)
    if "unittest" in test:
        return read_bigcodebench(inner, judging)
    if entry:
        return read_humaneval(inner, judging)
    judging.check_imports(row, test)
    id, content = row.id("id"), row.text("content")
    shown = _FENCED.search(content)
    solution = unfenced(row.text("canonical_solution", default=""))
    return CodeProblem(
        id,
        content,
        judging.problem(row, id, "assert", [Case(assert_tests.called(row, test, assert_tests.entry_of(row, test)))]),
        starter=shown[1] if shown else "",
        references=(solution,) if solution.strip() else (),
        place=row.place,
    )
