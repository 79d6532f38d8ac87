"""Verdicts for honest programs, right and wrong, of every kind and language."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from asserting import function, stdio
from tiers import jail_of
from toolchains import need
from wide import every, wide

import sandbox
from sandbox import Case, InvalidProblem, Judgement, Limits, Problem, Program, SandboxError, Verdict
from sandbox.build.units import compose
from sandbox.core.nouns import MIB
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.judging.judge import Judge
from sandbox.judging.single_run import not_run, run_program
from sandbox.languages.table import find_language
from sandbox.zygote.inbox import AHEAD

# --- what a judgement says -------------------------------------------------------------------------------------------


def test_a_judgement_counts_cases_and_names_the_first_failure(judge: Judge) -> None:
    source = "n = int(input())\nprint(n if n < 3 else 1 / 0 if n == 4 else 0)"
    done = stdio(judge, source, ("1", "1"), ("3", "3"), ("4", "4"), ("2", "2"))
    assert [case.verdict for case in done.cases] == ["AC", "WA", "RE", "AC"]
    assert (done.verdict, done.passed, done.total) == (Verdict.WA, 2, 4)
    assert "ZeroDivisionError" in done.cases[2].message
    assert done.tier in ("A", "B")
    assert done.toolchain.startswith("cpython 3.")
    assert done.run_s > 0
    assert all(case.memory_bytes > MIB and case.wall_s > 0 for case in done.cases)


@pytest.mark.parametrize(("failing", "ahead"), [(0, 0), (1, 1), (2, 2), (20, AHEAD), (39, 0)])
def test_no_more_is_run_past_a_failure_than_has_passed(judge: Judge, failing: int, ahead: int) -> None:
    before = judge.jail.runs
    cases = [(str(number), "wrong" if number == failing else str(number)) for number in range(40)]
    done = stdio(dataclasses.replace(judge, stop_at_first_failure=True), "print(input())", *cases)
    assert [case.verdict for case in done.cases] == ["AC"] * failing + ["WA"]
    assert judge.jail.runs - before <= failing + 1 + ahead


def test_the_plain_function_needs_no_set_up_and_works_inside_a_running_loop() -> None:
    async def main() -> Verdict:
        return sandbox.judge(Problem("p", "stdio", (Case("", "1"),)), Program("print(1)")).verdict

    assert asyncio.run(main()) is Verdict.AC
    problem = Problem("sum", "stdio", (Case("3 4\n", "7"),))
    assert sandbox.judge(problem, Program("print(8)")).verdict is Verdict.WA


def test_an_unknown_language_is_our_error_and_a_kind_that_a_language_lacks_the_problems(judge: Judge) -> None:
    with pytest.raises(SandboxError, match="language='cobol'"):
        stdio(judge, "", ("", "1"), language="cobol")
    with pytest.raises(InvalidProblem, match="rust"):
        judge.judge(Problem("p", "function", (Case("[]", "1"),), fn_name="f"), Program("", "rust"))


# --- functions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "fn_name"),
    [
        ("def f(a, b): return a + b", "f"),
        ("f = lambda a, b: a + b", "f"),
        ("class Solution:\n  def f(self, a, b): return a + b", "Solution.f"),
        ("class Solution:\n  def f(self, a, b): return a + b", "f"),
        ("import functools\n@functools.lru_cache(None)\ndef f(a, b): return a + b", "f"),
        ("from __future__ import annotations\ndef f(a: Foo, b: Bar) -> Baz: return a + b", "f"),
        ("def f(a, b): return a + b\nif __name__ == '__main__': print(input())", "f"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\ndef f(a, b): return P(a + b).x", "f"),
    ],
)
def test_functions_are_found_the_way_people_write_them(judge: Judge, source: str, fn_name: str) -> None:
    assert function(judge, source, "[3, 4]", "7", fn_name=fn_name).verdict is Verdict.AC


# --- C++ -------------------------------------------------------------------------------------------------------------


def cpp(judge: Judge, body: str, *cases: tuple[str, str], head: str = "", **fields: object) -> Judgement:
    source = f"#include <cstdio>\n#include <cstdlib>\n{head}\nint main() {{ {body} }}"
    return stdio(judge, source, *(cases or (("", "ok"),)), language="cpp", **fields)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("int main() { return x; }", "x"),
        ("", "main"),
        ('#include "/etc/passwd"\nint main() {}', "passwd"),
        ("template<int N> struct A { A<N + 1> a; }; A<0> a; int main() {}", ""),
        ("\x00\x01", ""),
    ],
)
def test_what_does_not_compile_is_a_compile_error_with_the_log(judge: Judge, source: str, word: str) -> None:
    done = stdio(judge, source, ("", "1"), language="cpp")
    assert (done.verdict, done.cases, done.passed, done.total) == (Verdict.CE, (), 0, 1)
    assert word in done.compile_log
    assert 0 < len(done.compile_log) <= 65 << 10
    assert "root:" not in done.compile_log


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("fatal error: ld terminated with signal 25 [File size limit exceeded]", "disk"),
        ("link: mapping output file failed: file too large", "disk"),
        ("ERROR: IO failure on output stream: No space left on device", "disk"),
        ("main.c:1:2: error: #error File too large\n    1 | #error File too large", ""),
    ],
)
def test_a_file_that_is_too_large_for_a_compiler_is_a_limit(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, said: str, cause: str
) -> None:
    argv = ("/bin/sh", "-c", 'printf "%s" "$0" >&2; exit 4', said)
    monkeypatch.setattr(
        "sandbox.build.units.compose", lambda *args, **how: dataclasses.replace(compose(*args, **how), argv=argv)
    )
    done = stdio(judge, "int main() {}", ("", "1"), language="c")
    assert (done.verdict, done.compile_cause, said in done.compile_log) == (Verdict.CE, cause, True)


def test_a_limit_that_ended_the_compiler_is_named(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    language = find_language("c")
    slow = dataclasses.replace(language, compile_limits=dataclasses.replace(language.compile_limits, cpu_s=0.01))
    monkeypatch.setattr("sandbox.judging.prepared.find_language", lambda name: slow)
    source = '#define A(x) x x x x x x x x\nchar *s = A(A(A(A(A(A(A("a")))))));\nint main() {}'
    done = stdio(judge, source, ("", "1"), language="c")
    assert (done.verdict, done.compile_cause) == (Verdict.CE, "cpu"), done
    assert done.compile_log.startswith("the compiler exceeded its CPU time limit")
    assert Judgement.from_json(done.to_json()) == done
    _, run = run_program(
        judge.jail, judge.builder, Problem("run", "stdio", (Case("", "-"),)), Program(source + "\n", "c")
    )
    assert (run.compiled, run.compile_cause) == (False, "cpu")
    assert not_run(done).compile_cause == "cpu"


@pytest.mark.promise("limits")
@pytest.mark.parametrize(
    ("body", "head", "verdict"),
    [
        ('puts("ok");', "", Verdict.AC),
        ('puts("no");', "", Verdict.WA),
        ('puts("ok"); return 1;', "", Verdict.RE),
        ("abort();", "", Verdict.RE),
        ("volatile int *p = nullptr; *p = 1;", "", Verdict.RE),
        ("for (volatile int i = 0;; i++);", "", Verdict.TLE),
        ('for (;;) puts("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");', "", Verdict.OLE),
        ("for (;;) { volatile char *p = new char[1 << 20]; for (int i = 0; i < 1 << 20; i += 512) p[i] = 1; }", "", Verdict.MLE),  # noqa: E501
        ("char *p = new char[1ll << 40]; p[5] = 1; printf(\"%p\", p);", "", Verdict.MLE),
        ("fork(); execl(\"/bin/sh\", \"sh\", \"-c\", \"sleep 60 & sleep 60\", 0);", "#include <unistd.h>", Verdict.TLE),
    ],
)  # fmt: skip
def test_each_way_a_native_program_ends_has_its_verdict(judge: Judge, body: str, head: str, verdict: Verdict) -> None:
    cpu_s, wall_s = (0.3, 1.0) if verdict is Verdict.TLE else (4.0, 30.0)
    limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_bytes=64 * MIB, output_bytes=MIB)
    assert cpp(judge, body, head=head, limits=limits).verdict is verdict


def test_a_deep_native_recursion_has_its_stack(judge: Judge) -> None:
    head = "int d(int n) { volatile char pad[100]; pad[n % 100] = 1; return n ? d(n - 1) + pad[n % 100] : 0; }"
    assert cpp(judge, 'printf("%d", d(500000));', ("", "500000"), head=head).verdict is Verdict.AC


# --- programs that compile to what cannot be run ----------------------------------------------------------------------


tiered_jail = jail_of("A", wide("B"))

SMALL = Limits(cpu_s=3, wall_s=60, memory_bytes=128 * MIB)
TWO = Problem("p", "stdio", (Case("", "1"), Case("", "1")), limits=SMALL)
MAIN = "int main() { }"
INTERP = '__attribute__((section(".interp"))) const char where[] = "%s";\n' + MAIN
PROGRAMS = [
    ("c", INTERP % ("/" + "x" * 5000)),
    ("c", "int main = 1;"),
    ("c", 'asm(".globl main\\nmain = 0");'),
    ("c", "char x[1l << 40];\n" + MAIN),
    ("c", "char x[1 << 20] = {1}, y[300 << 20];\nint main() { return y[5] + 1; }"),
    ("cpp", "int main;"),
    ("cpp", "struct X { X() { __builtin_trap(); } } x;\n" + MAIN),
    ("rust", '#![crate_type = "lib"]\nfn main() {}'),
    ("rust", '#![crate_type = "rlib"]\npub fn f() {}'),
    ("rust", '#![crate_type = "staticlib"]\npub fn f() {}'),
    ("rust", '#![crate_type = "cdylib"]\npub fn f() {}'),
    ("rust", "#![no_main]\n#[no_mangle]\npub static main: i32 = 1;"),
    ("go", "package x\nfunc F() {}"),
    ("java", "interface X { }"),
    ("java", "class A { static void main() {} }"),
    ("javascript", "#!/bin/sh\nthrow 1"),
]  # fmt: skip


@pytest.mark.parametrize(("language", "source"), [("c", "int f() { return 1; }"), *every(3, PROGRAMS)])
def test_what_cannot_be_run_is_the_programs_fault(tiered_judge: Judge, language: str, source: str) -> None:
    need(language)
    done = tiered_judge.judge(TWO, Program(source, language))
    assert done.verdict in (Verdict.CE, Verdict.RE, Verdict.MLE)
    assert done.compile_log or done.cases[0].message


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"#!/nonexistent\n", b"\x7fELF", b"\x7fELF" + bytes(200), b"!<arch>\n"]
)
def test_bytes_that_are_no_program_are_not_started(tiered_jail: Jail, content: bytes) -> None:
    done = tiered_jail.run(JailedRun(SMALL, argv=("main",), program=content))
    assert (done.cause, done.exit_code) == (None, 126)
    assert b"cannot be run" in done.stderr
