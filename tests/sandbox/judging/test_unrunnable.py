"""Programs that compile to what cannot be run: a verdict against them, never a failure of ours."""

from __future__ import annotations

import pytest
from tiers import jail_of
from toolchains import need
from wide import every, wide

from sandbox import Case, Limits, Problem, Program, Verdict
from sandbox.core.nouns import MIB
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.judging.judge import Judge

tiered_jail = jail_of("A", wide("B"))

LIMITS = Limits(cpu_s=3, wall_s=60, memory_bytes=128 * MIB)
TWO = Problem("p", "stdio", (Case("", "1"), Case("", "1")), limits=LIMITS)
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
    done = tiered_jail.run(JailedRun(LIMITS, argv=("main",), program=content))
    assert (done.cause, done.exit_code) == (None, 126)
    assert b"cannot be run" in done.stderr
