"""A failed case shows what the program printed or returned and how it ended; an accepted one shows nothing."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from asserting import LIMITS, asserts, function, stdio
from toolchains import need
from wide import wide

from sandbox import Case, CaseResult, Judgement, Limits, Problem, Program, Verdict
from sandbox.core.nouns import FAILURES_SHOWN_MAX, MIB
from sandbox.judging.judge import Judge
from sandbox.judging.verdicts import describe_value
from sandbox.languages.table import LANGUAGES, find_language

ECHO = Program(
    "import sys\nlines = sys.stdin.read().split()\nsecret = open(sys.argv[1]).read()\n"
    "sys.exit(0 if lines and lines[0] == secret else 1)"
)


def first(judgement: Judgement) -> CaseResult:
    return judgement.cases[0]


def said(result: CaseResult) -> str | None:
    return None if result.got is None else result.got.head


@pytest.mark.parametrize("language", ["python", "c", *map(wide, [*LANGUAGES][2:])])
def test_what_a_program_printed_stands_in_its_failed_case(judge: Judge, language: str) -> None:
    need(language)
    samples = find_language(language).samples
    wrong = first(stdio(judge, samples.adds, ("3 4\n", "8"), language=language, limits=Limits(cpu_s=10, wall_s=60)))
    assert (wrong.verdict, said(wrong), wrong.exit_code, wrong.signal) == (Verdict.WA, "7\n", 0, None)
    failed = first(stdio(judge, samples.fails, ("", "8"), language=language, limits=Limits(cpu_s=10, wall_s=60)))
    assert failed.verdict is Verdict.RE
    assert failed.exit_code or failed.signal
    assert failed.message
    right = first(stdio(judge, samples.adds, ("3 4\n", "7"), language=language, limits=Limits(cpu_s=10, wall_s=60)))
    assert (right.verdict, right.got, right.stderr, right.exit_code) == (Verdict.AC, None, None, 0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([1, 2.5, "aü", None, True], '[1, 2.5, "aü", null, true]'),
        ((1, 2), "[1, 2]"),
        ({1: "x"}, '{"1": "x"}'),
        (float("nan"), "NaN"),
        ({1}, "{1}"),
        (b"\xff", "b'\\xff'"),
        (1 << 70, str(1 << 70)),
        (Fraction(1, 3), "Fraction(1, 3)"),
        ([Fraction(1, 3)], "[Fraction(1, 3)]"),
        (10**5000, "1" + "0" * 5000),
        (1 << 200_000, hex(1 << 200_000)),
        ([10**5000], "a value with an integer of more than 4,300 digits"),
    ],
    ids=range(12),
)
def test_a_returned_value_is_shown_as_json_where_it_has_that_form(value: object, shown: str) -> None:
    assert describe_value(value) == shown


def test_a_function_that_dies_or_returns_what_cannot_be_shown_says_why(judge: Judge) -> None:
    bodies = ("return open", "raise KeyError(5)", "raise SystemExit(0)", "import os; os._exit(7)")
    ends = [first(function(judge, f"def f(): {body}", "[]", "0")) for body in bodies]
    assert [(end.got, end.exit_code, end.message[:21]) for end in ends] == [
        (None, None, "returned a builtin_fu"),
        (None, None, "KeyError: 5"),
        (None, None, "SystemExit: 0"),
        (None, 7, "ended with exit code "),
    ]


@pytest.mark.parametrize(
    ("test", "shown"),
    [
        ("assert f(1) == 2", "f(1) = [1]"),
        ("assert f(1) == [1]\nassert sorted(f(2)) == [1] and f(3) == f(4)", None),
        ("assert f(1) == [1]\nassert len(f(2)) == len(f(3)) + 1", "f(2) = [2]\nf(3) = [3]"),
        ("assert f('" + "x" * 500 + "') == 2", "f('" + "x" * 197 + "… = ['" + "x" * 500 + "']"),
        ("for n in (1, 2):\n    assert f(n) == n", None),
    ],
)
def test_a_failed_assert_shows_the_calls_and_what_they_gave(judge: Judge, test: str, shown: str | None) -> None:
    failed = first(asserts(judge, "def f(x): return [x]", test))
    assert failed.verdict is Verdict.WA
    assert (
        said(failed) == shown or (shown is None and failed.got is None) or shown == (failed.got.head + failed.got.tail)
    )  # type: ignore[union-attr]


def test_an_interactor_s_case_shows_what_the_program_told_it(judge: Judge) -> None:
    problem = Problem("p", "interactive", (Case("7", "7"),), interactor=ECHO, limits=LIMITS)
    failed = first(judge.judge(problem, Program("print('hello')\nprint(8, flush=True)")))
    assert failed.verdict is Verdict.WA
    assert said(failed) == "hello\n8\n"


def test_a_program_that_is_stopped_has_no_exit_code_and_shows_what_it_printed(judge: Judge) -> None:
    limits = Limits(cpu_s=0.3, wall_s=30, output_bytes=MIB)
    late = first(stdio(judge, "print('so far', flush=True)\nwhile True: pass", ("", "1"), limits=limits))
    assert (late.verdict, said(late), late.exit_code, late.signal) == (Verdict.TLE, "so far\n", None, None)
    flood = first(stdio(judge, "while True: print('x' * 1000)", ("", "1"), limits=limits))
    assert flood.verdict is Verdict.OLE
    assert flood.got is not None
    assert flood.got.head.startswith("xxxx")
    assert flood.got.size == 64 << 10


@pytest.mark.promise("expected-outputs")
def test_nothing_of_the_expected_output_stands_in_a_result(judge: Judge) -> None:
    expected = "a-very-secret-answer"
    cases = (
        stdio(judge, "print(1)", ("", expected)),
        stdio(judge, "raise SystemExit(1)", ("", expected)),
        function(judge, "def f(): return 1", "[]", json.dumps(expected)),
        function(judge, "def f(): return lambda: 1", "[]", json.dumps(expected)),
        asserts(judge, "def f(): return 1", f"assert f() == '{expected}'"),
    )
    for done in cases:
        assert done.verdict in (Verdict.WA, Verdict.RE)
        assert expected not in json.dumps(done.to_json())


def test_only_the_first_failures_of_a_judgement_show_what_was_printed(judge: Judge) -> None:
    every = Judge(judge.jail, judge.builder, stop_at_first_failure=False)
    done = stdio(every, "print(input())", *[(f"{n}\n", "-1") for n in range(FAILURES_SHOWN_MAX + 5)])
    assert [said(case) for case in done.cases] == [f"{n}\n" for n in range(FAILURES_SHOWN_MAX)] + [None] * 5
    assert all(case.exit_code == 0 for case in done.cases)
