"""What problems and cases may have besides inputs and answers, and what of it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from toolchains import need
from wide import wide

from sandbox import Case, InvalidProblem, Problem, Program, Subtask
from sandbox.judging.judge import Judge


def verdicts(judge: Judge, source: str, *cases: Case, language: str = "python") -> list[str]:
    done = judge.judge(Problem("p", "stdio", cases), Program(source, language))
    return [case.verdict.value for case in done.cases]


SAYS_ITS_ARGUMENTS = {
    "python": "import sys\nprint('|'.join(sys.argv[1:]))",
    "c": '#include <stdio.h>\nint main(int n, char **v) { while (--n) printf("%s%s", *++v, n > 1 ? "|" : ""); }',
    "cpp": '#include <iostream>\nint main(int n, char **v) { while (--n) std::cout << *++v << (n > 1 ? "|" : ""); }',
    "java": 'class Main { public static void main(String[] a) { System.out.print(String.join("|", a)); } }',
    "javascript": "console.log(process.argv.slice(2).join('|'))",
    "rust": 'fn main() { print!("{}", std::env::args().skip(1).collect::<Vec<_>>().join("|")); }',
    "go": 'package main\nimport ("fmt"; "os"; "strings")\nfunc main() { fmt.Print(strings.Join(os.Args[1:], "|")) }',
}


@pytest.mark.parametrize("language", ["python", "c", *map(wide, [*SAYS_ITS_ARGUMENTS][2:])])
def test_a_case_gives_its_arguments_to_the_program(judge: Judge, language: str) -> None:
    need(language)
    cases = (Case("", "a b|", arguments=("a b", "")), Case("", "x", arguments=("x",)), Case("", ""))
    assert verdicts(judge, SAYS_ITS_ARGUMENTS[language], *cases, language=language) == ["AC", "AC", "AC"]


def test_a_cases_files_are_there_for_it_alone(judge: Judge) -> None:
    source = "import os\nprint(open('in/words').read() if os.path.exists('in') else 'none')"
    cases = (Case("", "a", files=(("in/words", "a"),)), Case("", "none"), Case("", "b", files=(("in/words", "b"),)))
    assert verdicts(judge, source, *cases) == ["AC", "AC", "AC"]


def test_a_case_may_be_compared_in_a_mode_of_its_own(judge: Judge) -> None:
    cases = (Case("", "yes"), Case("", "yes", compare="kattis"), Case("", "YES", compare="exact"))
    assert verdicts(judge, "print('YES')", *cases) == ["WA", "AC", "WA"]


CHECKED: dict[str, Any] = {"compare": "checker", "checker": Program("x")}
TALK: dict[str, Any] = {"kind": "interactive", "interactor": Program("x")}
ONE, GROUPED = Case("1", "1"), Case("1", "1", "a")


@pytest.mark.parametrize(
    ("case", "fields", "word"),
    [
        (Case("", "1", arguments=("a\0",)), {}, "arguments"),
        (Case("", "1", files=(("../x", ""),)), {}, "'../x'"),
        (Case("", "1", files=(("a\0", ""),)), {}, "no name below"),
        (Case("", "1", files=(("\ud800", ""),)), {}, "no name below"),
        (Case("", "1", compare="no such"), {}, "no such"),
        (Case("", "1", compare="exact"), CHECKED, "'exact'"),
        (Case("", "1", referee_arguments=("a",)), {}, "no checker"),
        (Case("[]", "1", arguments=("a",)), {"kind": "function", "fn_name": "f"}, "not 'function'"),
        (Case("", "1"), {"passes": 2}, "passes=2"),
        (Case("", "1"), {**CHECKED, "passes": 2}, "kattis"),
        (Case("", "1"), {**CHECKED, "convention": "kattis", "passes": 0}, "passes=0"),
        (ONE, {"compare": "checker"}, "checker=None"),
        (ONE, {"checker": Program("x")}, "has no effect here"),
        (ONE, {"interactor": Program("x")}, "has no effect here"),
        (ONE, {"kind": "interactive"}, "interactor=None"),
        (ONE, {"kind": "interactive", "interactor": "print()"}, "must be a Program"),
        (ONE, {**TALK, **CHECKED}, "interactive"),
        (ONE, {**CHECKED, "convention": "icpc"}, "convention='icpc'"),
        (ONE, {"subtasks": (Subtask("a", 1),)}, "no case"),
        (GROUPED, {}, "group='a'"),
        (GROUPED, {"subtasks": (Subtask("a", 1), Subtask("a", 2))}, "same name"),
        (GROUPED, {"subtasks": (Subtask("a", -1),)}, "points=-1"),
        (GROUPED, {"subtasks": (Subtask("a", float("nan")),)}, "points=nan"),
        (GROUPED, {"subtasks": (Subtask("a", 0),)}, "none has points"),
        (Case("", "1", arguments=("x" * 20_000,)), {}, "arguments take more than"),
        (Case("", "1", referee_arguments=("x" * 20_000,)), CHECKED, "arguments take more than"),
        (Case("", "1", files=tuple((f"{k:0200}", "") for k in range(200))), {}, "names of more than"),
        (Case("", "1", files=tuple((f"{k}", "") for k in range(100_000))), {}, "more than 1000"),
        (Case("", "1", files=(("a", "x" * (65 << 20)),)), {}, "files hold"),
    ],
)
def test_what_nobody_could_heed_decide_or_give_to_a_jail_is_refused(
    case: Case, fields: dict[str, Any], word: str
) -> None:
    with pytest.raises(InvalidProblem, match=word):
        Problem("p", **{"kind": "stdio", "cases": (case,), **fields})


def test_a_checker_needs_no_expected_output() -> None:
    Problem("p", "stdio", (Case("1"),), **CHECKED)
    Problem("p", cases=(Case("1"),), **TALK)


EXTREMES = [
    Case("", "1", arguments=("\x01" * 2700,)),
    Case("", "1", files=tuple((f"{k:03}" + "\U0001f600", "") for k in range(1000))),
    Case("", "1", files=(("\x01" * 255 + "/" + "\x02" * 255, ""),)),
]


@pytest.mark.parametrize("language", ["python", "c"])
@pytest.mark.parametrize("case", EXTREMES)
def test_the_most_that_a_case_may_have_reaches_the_program(judge: Judge, case: Case, language: str) -> None:
    need(language)
    source = "print(1)" if language == "python" else '#include <stdio.h>\nint main() { puts("1"); }'
    assert verdicts(judge, source, case, language=language) == ["AC"]


def test_arguments_that_json_has_not_may_be_written_as_pythons_literal_for_programs_in_python(judge: Judge) -> None:
    problem = Problem("p", "function", (Case("[{1: 2}, (3, {4}), {'5': 6}]", "[1, 3, 5]"),), fn_name="f")
    source = "def f(a, b, c):\n    return [*a, b[0] + ({4} != b[1]), *map(int, c)]\n"
    assert judge.judge(problem, Program(source)).verdict == "AC"
    with pytest.raises(
        InvalidProblem, match=r"cases\[0\]: input is a Python literal, with which no program in javascript"
    ):
        judge.judge(problem, Program("function f() {}", "javascript"))
