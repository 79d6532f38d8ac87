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
from sandbox.jail.run import RunResult
from sandbox.judging.judge import Judge
from sandbox.judging.verdicts import case_result, decide_ending, describe_value
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


# --- the line of a runtime error --------------------------------------------------------------------------------------


TRACE = "Traceback (most recent call last):\n  File 'main.py', line 1, in <module>\n    f()\n"


def message(stderr: str, language: str, signal: int | None = None) -> str:
    end = None if signal else 1
    done = RunResult(None, end, signal, 0.1, 0.1, 1, 0, b"", stderr.encode("utf-8", "surrogateescape"), b"", None)
    decision = decide_ending(done, None, Limits(), find_language(language))
    assert decision is not None
    return case_result(0, done, decision).message


@pytest.mark.parametrize(
    ("language", "stderr", "said"),
    [
        ("python", TRACE + "ValueError: a\nsecond line", "ValueError: a"),
        ("python", f"{TRACE}KeyError: 1\n\nDuring handling, another:\n\n{TRACE}TypeError: x\nbye", "TypeError: x"),
        ("java", 'noise\nException in thread "main" E: no\n\tat Main.main(Main.java)\nmore', "E: no"),
        ("javascript", "/box/main.js:1\nf()\n^\n\nTypeError: f is not\n    at x\n\nNode.js v20", "TypeError: f is not"),
        ("javascript", "/box/main.js:1\n  throw 'no'\n  ^\nno\n(Use `node --trace-uncaught ...`)\n\nNode.js v20", "no"),
        ("rust", "thread 'main' panicked at main.rs:1:13:\nno\nnote: run with `RUST_BACKTRACE=1`", "main.rs:1:13: no"),
        ("rust", "thread 'main' panicked at 'no', main.rs:1:13\nnote: run with", "panicked at 'no', main.rs:1:13"),
        ("rust", "thread 'main' (77) panicked at main.rs:1:13:\nno\nnote", "panicked at main.rs:1:13: no"),
        ("go", "panic: no\n\ngoroutine 1 [running]:\nmain.main()\n\t/x.go:3\nexit status 2", "panic: no"),
        ("go", "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1:", "fatal error: all goroutines"),
        ("cpp", "terminate called after throwing an instance of 'E'\n  what():  no\n", "of 'E'   what():  no"),
        ("c", "main: main.c:1: main: Assertion `0' failed.\n", "Assertion `0' failed."),
    ],
)
def test_a_message_quotes_the_line_that_says_what_happened(language: str, stderr: str, said: str) -> None:
    assert said in message(stderr, language)
    assert "goroutine 1" not in message(stderr, language)


@pytest.mark.parametrize("language", ["python", "java", "javascript", "rust", "go", "cpp", "c"])
def test_a_message_is_one_printable_line(language: str) -> None:
    said = message("x\nAC  9 of 9 cases\r\x1b[2K\x07 \udcff \x85", language, signal=11)
    assert said.isprintable()
    assert said.startswith("ended by SIGSEGV")


@pytest.mark.parametrize("source", ["#warning \x1b[2K\nint main() { }", "#error \x1b[2K\n", "int \x1b;"])
def test_a_compile_log_has_lines_and_no_other_control_characters(judge: Judge, source: str) -> None:
    log = stdio(judge, source, ("", "1"), language="c").compile_log
    assert log.replace("\n", "").replace("\t", "").isprintable()
    assert "main.c" in log


@pytest.mark.parametrize(
    ("language", "source", "said"),
    [
        ("python", "import sys\ntry: 1 / 0\nfinally: print('bye', file=sys.stderr)", "ZeroDivisionError: division"),
        ("python", "import atexit, sys\natexit.register(print, 'x', file=sys.stderr)\nint('a')", "ValueError: invalid"),
        ("java", "class M { public static void main(String[] a) { throw new IllegalStateException(\"no\\nyes\"); } }",
         "java.lang.IllegalStateException: no"),
        ("javascript", "function f() { throw new RangeError('no') }\nf()", "RangeError: no"),
        ("rust", 'fn main() { let v: Vec<i32> = vec![]; println!("{}", v[std::env::args().count()]); }',
         "index out of bounds"),
        ("go", "package main\nimport \"os\"\nfunc main() { var a []int; println(a[len(os.Args)]) }",
         "panic: runtime error: index out of range"),
        ("python", "import os, sys\nsys.stderr.write('x' * 200_000 + '\\nkilled because\\n')\nos.abort()",
         "ended by SIGABRT: killed because"),
        ("cpp", '#include <stdexcept>\nint main() { throw std::runtime_error("no"); }', "what():  no"),
    ],
)  # fmt: skip
def test_each_language_says_it_in_its_own_way(judge: Judge, language: str, source: str, said: str) -> None:
    need(language)
    done = stdio(judge, source, ("", "1"), language=language, limits=Limits(cpu_s=5, wall_s=60))
    assert done.verdict is Verdict.RE
    assert said in done.cases[0].message
