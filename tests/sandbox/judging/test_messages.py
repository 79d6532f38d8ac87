"""What a runtime error's message quotes: the line that says what happened, wherever it stands."""

from __future__ import annotations

import pytest
from asserting import stdio
from toolchains import need

from sandbox import Limits, Verdict
from sandbox.jail.run import RunResult
from sandbox.judging.judge import Judge
from sandbox.judging.verdicts import case_result, decide_ending
from sandbox.languages.table import find_language

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
