"""Problems that cannot be judged are refused when they are made."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

import sandbox
from sandbox import Case, InvalidProblem, Judgement, Limits, Problem, Program, SandboxError, Verdict
from sandbox.core.asserts import says_nothing
from sandbox.core.nouns import CaseResult
from sandbox.errors import WorkerDied, from_wire, to_wire

SUM = {"id": "sum", "kind": "stdio", "cases": [{"input": "3 4\n", "expected": "7"}]}
ONE = (Case("", "1"),)


@pytest.mark.promise("no-tests")
@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"cases": ()}, "cases=()"),
        ({"kind": "quiz"}, "kind='quiz'"),
        ({"cases": (Case(""),)}, "expected=null"),
        ({"cases": (Case("", ""), Case("", " \n"))}, "blank"),
        ({"compare": "vibes"}, "compare='vibes'"),
        ({"compare": "float(2)"}, "compare='float(2)'"),
        ({"kind": "function"}, "fn_name=None"),
        ({"kind": "function", "fn_name": "a.b.c"}, "fn_name='a.b.c'"),
        ({"kind": "function", "fn_name": "f", "cases": (Case("{}", "1"),)}, "JSON list"),
        ({"kind": "function", "fn_name": "f", "cases": (Case("[1", "1"),)}, "not JSON"),
        ({"kind": "function", "fn_name": "f", "cases": (Case("[1]", "one"),)}, "not JSON"),
        ({"kind": "assert", "cases": (Case("assert f(", None),)}, "not Python"),
        ({"kind": "assert", "cases": (Case("f(1)", None),)}, "no assert"),
        ({"kind": "assert", "cases": (Case("def t():\n if f(1): raise AssertionError", None),)}, "calls none"),
        ({"cases": (Case("", "1", arguments=("\udc80", "\ud800")),)}, "arguments: '\\ud800' is no character"),
        ({"kind": "interactive", "interactor": Program("1"), "convention": "score"}, "convention='score'"),
        ({"kind": "assert", "cases": (Case("assert f(1)", "1"),)}, "must be null"),
    ],
)
def test_a_problem_that_could_not_tell_right_from_wrong_is_refused(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        Problem(**{"id": "p", "kind": "stdio", "cases": ONE, **fields})
    assert word in str(caught.value)
    assert isinstance(caught.value, ValueError | SandboxError)


@pytest.mark.parametrize(
    "fields",
    [{"cpu_s": 0}, {"cpu_s": float("inf")}, {"memory_bytes": 1.5}, {"wall_s": -1}, {"processes": True}, {"cpu_s": "4"},
     {"file_bytes": 1}, {"file_bytes": 2 << 20, "output_bytes": 3 << 20}],
)  # fmt: skip
def test_limits_that_limit_nothing_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidProblem, match=r"limits\."):
        Limits(**fields)


CASE = Case("3 4\n", "7")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: sandbox.judge(5, "print(7)"),
            "problem=5: must be a Problem, or a mapping as in problem.json, not int",
        ),
        (lambda: sandbox.judge(SUM, 5), "program=5: must be a Program, its source as text, or a mapping"),
        (
            lambda: sandbox.judge(SUM, "", packages="numpy"),
            "packages='numpy': must be a list of names, as (\"numpy\",)",
        ),
        (lambda: sandbox.Pool("2"), "pool: workers='2': must be a whole number, not str"),
        (lambda: Program(b"x"), "program: source=b'x': must be text, not bytes"),
        (lambda: Case(5), "case: input=5: must be text (of a function problem: a JSON list of its arguments), not int"),
        (lambda: Case("1", arguments="-x"), "case: arguments='-x': must be a list of texts, not str"),
        (lambda: Case("1", files={"a": "b"}), "case: files={'a': 'b'}: must be pairs of a name and a text"),
        (lambda: Limits(memory_bytes=1.5), "limits.memory_bytes=1.5: must be a whole number, not float"),
        (lambda: Problem("p", "stdio", CASE), "must be a list of Case, not Case"),
        (lambda: Problem("p", "stdio", [("a", "b")]), "cases[0]=('a', 'b'): must be a Case, or a mapping"),
        (lambda: Problem("p", "stdio", [{"input": 5}]), "cases[0]: case: input=5: must be text"),
        (lambda: Problem("p", "stdio", [CASE], limits=4), "limits=4: must be a Limits, or a mapping (JSON object)"),
        (lambda: Problem("p", "stdio", [CASE], subtasks=["g"]), "subtasks[0]='g': must be a Subtask, or a mapping"),
        (lambda: Problem("p", "stdio", [CASE], passes="2"), "passes='2': must be a whole number from 1 up, not str"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named_with_its_type_and_the_form_that_is_expected(make: Any, told: str) -> None:
    with pytest.raises(TypeError) as caught:
        make()
    assert isinstance(caught.value, InvalidProblem)
    assert told in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_parts_of_a_problem_may_be_given_as_in_its_file() -> None:
    made = Problem("p", "stdio", [{"input": "3 4\n", "expected": "7"}], limits={"cpu_s": 1})
    assert made == Problem("p", "stdio", (CASE,), limits=Limits(cpu_s=1))
    assert Problem.of(made) is made
    assert Problem.of(MappingProxyType(made.to_json())) == made
    assert replace(made, language="cpp").program("int main() {}") == Program("int main() {}", "cpp")


@pytest.mark.parametrize("program", ["print(sum(map(int, input().split())))", {"source": "print(7)"}])
def test_a_problem_and_a_program_are_judged_as_they_stand_in_a_file(program: Any) -> None:
    assert sandbox.judge(SUM, program).verdict == "AC"


def test_limits_of_wall_time_and_of_files_follow_those_of_cpu_time_and_of_the_output() -> None:
    assert (Limits(cpu_s=2).wall_limit_s, Limits(cpu_s=2, wall_s=3).wall_limit_s) == (8, 3)
    assert [Limits(output_bytes=size << 20).file_limit_bytes >> 20 for size in (1, 64, 90)] == [64, 64, 90]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ([], "object"),
        ({"id": "p", "kind": "stdio"}, "'cases' is missing"),
        ({"id": "p", "kind": "stdio", "cases": [], "tests": []}, "unknown key 'tests'"),
        ({"id": "p", "kind": "stdio", "cases": [{"input": "", "output": "1"}]}, "unknown key 'output'"),
        ({"id": "p", "kind": "stdio", "cases": {}}, "list"),
        (SUM | {"limits": {"ram": 1}}, "'ram'"),
        (SUM | {"checker": {"code": "x"}}, "unknown key 'code'"),
        (SUM | {"checker": {"language": "cpp"}, "compare": "checker"}, "checker: has neither a source nor files"),
        (SUM | {"subtasks": [{"name": "a"}]}, "'points' is missing"),
        (SUM | {"subtasks": {"a": 1}}, "list"),
        (SUM | {"subtasks": [None]}, "object"),
        (SUM | {"interactor": "print()"}, "object"),
    ],
)
def test_a_malformed_problem_file_is_refused_by_name(data: Any, word: str) -> None:
    with pytest.raises(InvalidProblem, match=word):
        Problem.from_json(data)


def test_a_judgement_survives_json() -> None:
    case = CaseResult(0, Verdict.WA, 0.1, 0.2, 3, "wrong output")
    judgement = Judgement("p", Verdict.WA, (case,), 0, 2, False, "A", "python", "cpython 3.11", "", 0.0, 0.1)
    for made in (judgement, replace(judgement, node="n1")):
        written = json.loads(json.dumps(made.to_json()))
        assert Judgement.from_json(written) == made
        assert ("node" in written) == bool(made.node)  # one machine says nothing of others


def test_errors_keep_their_type_and_text_across_processes() -> None:
    back = from_wire(json.loads(json.dumps(to_wire(WorkerDied("gone")))))
    assert type(back) is WorkerDied
    assert str(back) == "gone"
    assert type(from_wire(to_wire(KeyError("k")))) is SandboxError


def test_importing_the_package_takes_neither_long_nor_asyncio() -> None:
    code = "import sys, time; t = time.process_time(); import sandbox; t -= time.process_time(); "
    code += "print(-t, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    seconds, heavy = done.stdout.split()
    assert heavy == "False"
    assert float(seconds) < 1.0  # about 0.03; the bound only catches a heavy import


# --- asserts that say nothing are found in linear time ----------------------------------------------------------------


def steps(count: int) -> int:
    """Steps that it takes to read so many functions, each of which calls the next one; the last one asserts."""
    text = "a0()\n" + "".join(f"def a{n}(): a{n + 1}()\n" for n in range(count)) + f"def a{count}(): assert f(1)\n"
    seen = 0

    def counted(*_: Any) -> Any:
        nonlocal seen
        seen += 1
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        assert says_nothing(text, "f") == ""
    finally:
        sys.settrace(before)
    return seen


def test_many_functions_are_read_in_steps_that_grow_with_their_number() -> None:
    assert steps(600) < 2.2 * steps(300)
