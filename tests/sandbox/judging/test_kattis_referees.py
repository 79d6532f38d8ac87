"""Checkers and interactors of the convention kattis: arguments, feedback directory, several runs of the program."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox import Case, CheckerError, Judgement, Limits, Problem, Program, Verdict
from sandbox.judging.judge import Judge
from sandbox.judging.referee import Referee

HEAD = """
import os, sys
given, answer, feedback, *more = sys.argv[1:]
given, answer = open(given).read(), open(answer).read()
def note(name, text): open(feedback + name, "a").write(text)
"""
ECHO = "print(input())"


def judged(judge: Judge, referee: str, source: str = ECHO, *cases: Case, **fields: Any) -> Judgement:
    fields = {"compare": "checker", "checker": Program(HEAD + referee), "convention": "kattis", **fields}
    problem = Problem("p", fields.pop("kind", "stdio"), cases or (Case("1\n", "1"),), **fields)
    return judge.judge(problem, Program(source))


def interactive(judge: Judge, referee: str, source: str, *cases: Case, **fields: Any) -> Judgement:
    fields |= {"kind": "interactive", "compare": "tokens", "checker": None, "interactor": Program(HEAD + referee)}
    return judged(judge, referee, source, *cases, **fields)


def test_a_case_gives_its_arguments_to_the_checker_and_to_the_interactor(judge: Judge) -> None:
    cases = (Case("1\n", "1", referee_arguments=("a b", "")), Case("1\n", "1"))
    wanted = "sys.exit(42 if more == (['a b', ''] if answer == '1' and len(more) else []) else 43)"
    assert judged(judge, wanted, ECHO, *cases).verdict is Verdict.AC
    assert interactive(judge, wanted, "pass", *cases).verdict is Verdict.AC


def test_the_feedback_directory_is_empty_ends_in_a_slash_and_is_told(judge: Judge) -> None:
    referee = """
assert feedback.endswith("/") and os.listdir(feedback) == []
note("judgemessage.txt", "expected " + answer); note("score.txt", "0.5\\n"); note("own.txt", "x")
sys.exit(43)
"""
    cases = (Case("1\n", "1"), Case("2\n", "2"))
    for done in (judged(judge, referee, ECHO, *cases), interactive(judge, referee, ECHO, *cases)):
        assert [case.verdict for case in done.cases] == [Verdict.WA, Verdict.WA]
        notes = [dict(case.feedback) for case in done.cases]
        assert notes == [{"judgemessage.txt": f"expected {n}", "score.txt": "0.5\n"} for n in "12"]
        assert "expected" not in done.cases[0].message


def test_a_program_that_fails_has_no_feedback_of_the_case_before(judge: Judge) -> None:
    cases = (Case("1\n", "1"), Case("", "2"))
    done = judged(judge, "note('judgemessage.txt', 'x'); sys.exit(42)", ECHO, *cases)
    assert [(case.verdict, bool(case.feedback)) for case in done.cases] == [(Verdict.AC, True), (Verdict.RE, False)]


@pytest.mark.parametrize(
    ("referee", "fields", "word"),
    [
        ("for i in range(100): note(str(i), '')\nsys.exit(42)", {}, "feedback directory"),
        ("while True: pass", {"referee_limits": Limits(cpu_s=0.2)}, "was stopped: CPU-time limit of"),
        ("note('nextpass.in', '1\\n'); sys.exit(43)", {"passes": 2}, "did not accept"),
        ("note('nextpass.in', '1\\n'); sys.exit(42)", {"passes": 1}, "more than the problem's 1 run"),
    ],
)
def test_a_referee_that_does_what_it_may_not_is_at_fault(
    judge: Judge, referee: str, fields: dict[str, Any], word: str
) -> None:
    with pytest.raises(CheckerError, match=word):
        judged(judge, referee, **fields)
    with pytest.raises(CheckerError, match=word):
        interactive(judge, referee, "import sys\nsys.stdin.read()", **fields)  # it waits, and is not heard


COUNTING = """
passes = int(open(feedback + "count").read()) + 1 if os.path.exists(feedback + "count") else 1
open(feedback + "count", "w").write(str(passes))
note("judgemessage.txt", f"run {passes} was given {given.strip()} and said {sys.stdin.read().strip()}\\n")
if passes < int(answer): note("nextpass.in", str(10 * passes) + "\\n")
sys.exit(42)
"""


def test_a_checker_that_leaves_an_input_has_the_program_run_again(judge: Judge) -> None:
    done = judged(judge, COUNTING, ECHO, Case("1\n", "3"), Case("2\n", "1"), passes=3)
    assert [case.verdict for case in done.cases] == [Verdict.AC, Verdict.AC]
    assert dict(done.cases[0].feedback)["judgemessage.txt"] == (
        "run 1 was given 1 and said 1\nrun 2 was given 10 and said 10\nrun 3 was given 20 and said 20\n"
    )
    assert dict(done.cases[1].feedback)["judgemessage.txt"] == "run 1 was given 2 and said 2\n"


@pytest.mark.promise("checkers")
def test_every_run_is_a_fresh_process_with_limits_of_its_own(judge: Judge) -> None:
    spend = "import time\nopen('mark', 'x')\nwhile time.process_time() < 0.2: pass\n" + ECHO
    done = judged(judge, COUNTING, spend, Case("1\n", "3"), passes=3, limits=Limits(cpu_s=0.5))
    assert done.verdict is Verdict.AC
    assert 0.2 <= done.cases[0].cpu_s < 0.5


SECOND = "if given == '1\\n': note('nextpass.in', 'second'); sys.exit(42)\nsys.exit(43)"


@pytest.mark.parametrize(
    ("referee", "source", "passes", "verdict", "shown"),
    [
        (SECOND, ECHO, 2, Verdict.WA, "second\n"),
        (COUNTING, "x = int(input())\nprint(1 // (x - 10))", 3, Verdict.RE, ""),
        # what it keeps from run to run is the program's to shape, so it cannot be tried again as it was
        ("note('nextpass.in', '1\\n'); sys.exit(42)", ECHO, 2, Verdict.WA, "1\n"),
    ],
)
def test_a_later_run_that_fails_is_named_and_shows_what_it_printed(
    judge: Judge, referee: str, source: str, passes: int, verdict: Verdict, shown: str
) -> None:
    failed = judged(judge, referee, source, Case("1\n", "3"), passes=passes).cases[0]
    assert failed.verdict is verdict
    assert failed.message.startswith("run 2: ")
    assert failed.got is not None
    assert failed.got.head == shown


AGAIN = """
said = {}
if "again" in said: note("nextpass.in", "1\\n")
sys.exit(42 if said.strip() in ("1", "again") else 43)
"""


@pytest.mark.parametrize("passes", [1, 3])
def test_a_program_that_has_a_referee_ask_for_too_many_runs_is_wrong(judge: Judge, passes: int) -> None:
    done = judged(judge, AGAIN.format("sys.stdin.read()"), "print('again')", passes=passes)
    assert done.verdict is Verdict.WA
    assert "the checker asked for more than the problem's" in done.cases[0].message
    done = interactive(judge, AGAIN.format("input()"), "print('again')", passes=passes)
    assert done.verdict is Verdict.WA
    assert "the interactor asked for more than the problem's" in done.cases[0].message
    assert judged(judge, AGAIN.format("sys.stdin.read()"), "print(1)", passes=passes).verdict is Verdict.AC


def test_an_output_on_which_a_checker_falls_leaves_no_feedback_of_another_output(judge: Judge) -> None:
    referee = """
note("judgemessage.txt", "saw " + str(len(os.listdir(feedback))))
if sys.stdin.read().strip() != "1": raise ValueError
sys.exit(42)
"""
    done = judged(judge, referee, "print(2)")
    assert done.verdict is Verdict.WA
    assert done.cases[0].feedback == ()


def test_an_interactor_may_have_the_program_run_again(judge: Judge) -> None:
    referee = """
print(given.strip(), flush=True)
said = input()
note("judgemessage.txt", said + " ")
if said != str(2 * int(given)): sys.exit(43)
if int(given) < 4: note("nextpass.in", said + "\\n")
sys.exit(42)
"""
    done = interactive(judge, referee, "print(2 * int(input()))", Case("1\n"), passes=3)
    assert done.verdict is Verdict.AC
    assert dict(done.cases[0].feedback)["judgemessage.txt"] == "2 4 8 "
    wrong = interactive(judge, referee, "n = int(input())\nprint(2 * n + (n == 2))", Case("1\n"), passes=3)
    assert wrong.verdict is Verdict.WA


REMEMBERS = """
if os.path.exists(feedback + "state"):
    int(open(feedback + "state").read())
    sys.exit(42)
note("state", sys.stdin.readline()); note("nextpass.in", "2\\n")
sys.exit(42)
"""


def test_what_the_runs_before_have_left_must_fit(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Referee, "_fits", lambda referee, files: not referee.again)
    failed = interactive(judge, REMEMBERS, "print(1)", passes=2).cases[0]
    assert (failed.verdict, "left more for the next run" in failed.message) == (Verdict.WA, True)


@pytest.mark.parametrize("ask", [judged, interactive])
def test_what_a_program_told_the_referee_in_an_earlier_run_is_no_fault_of_the_referee(judge: Judge, ask: Any) -> None:
    assert ask(judge, REMEMBERS, "print(1)", passes=2).verdict is Verdict.AC
    done = ask(judge, REMEMBERS, "print('x')", passes=2)
    assert done.verdict is Verdict.WA
    assert done.cases[0].message.startswith("run 2: ")
