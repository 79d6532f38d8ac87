"""What is left of a program that was made ready, however that ends, and which of its files wins."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from toolchains import need

from sandbox import Case, Limits, Problem, Program, SandboxError, Verdict
from sandbox.build.builder import Builder
from sandbox.errors import WorkerDied
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun, Sent
from sandbox.judging import python_asserts
from sandbox.judging.judge import Judge
from sandbox.judging.prepared import PreparedProgram

LIMITS = Limits(cpu_s=5, wall_s=30)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_jail_that_dies_under_a_program_leaves_no_descriptor(
    builder: Builder, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("c")

    def die() -> None:
        raise WorkerDied("gone")

    before = descriptors()
    for source, language in (("int main(void) {}", "c"), ("pass", "python")):
        with pytest.raises(WorkerDied), PreparedProgram(judge.jail, builder, Program(source, language)) as prepared:
            monkeypatch.setattr(prepared, "drop", die)
    assert descriptors() == before


def test_a_run_that_cannot_be_sent_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Sent) -> Any:
        raise MemoryError

    with Jail() as jail:
        with monkeypatch.context() as patch:
            patch.setattr(Sent, "pack", full)
            with pytest.raises(WorkerDied):
                jail.start(JailedRun(LIMITS, argv=("/bin/echo", "one")))
        with pytest.raises(WorkerDied, match="has failed"):
            jail.run(JailedRun(LIMITS, argv=("/bin/echo", "two")))


def test_a_jail_that_ends_says_why() -> None:
    with Jail() as jail, pytest.raises(WorkerDied, match="File name too long"):
        jail.run(JailedRun(LIMITS, argv=("/bin/true",), files=(("a" * 300, b""),)))


def test_a_thread_that_cannot_be_started_is_our_fault_and_leaves_nothing(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("p", "interactive", (Case("1"),), interactor=Program("print(1)"), limits=LIMITS)
    assert judge.judge(problem, Program("input()")).verdict is Verdict.AC
    before = descriptors(), threading.active_count()
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "sandbox program":
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(SandboxError, match="can't start new thread"):
            judge.judge(problem, Program("input()"))
    assert (descriptors(), threading.active_count()) == before
    assert judge.judge(problem, Program("input()")).verdict is Verdict.AC


def test_each_test_is_looked_through_once_however_many_there_are(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    plan = python_asserts.plan_asserts.__wrapped__

    def count(text: str, *how: Any) -> Any:
        asked.append(text)
        return plan(text, *how)

    monkeypatch.setattr(python_asserts, "plan_asserts", count)
    cases = tuple(Case(f"assert f({n}) == {n}") for n in range(80))
    assert judge.judge(Problem("p", "assert", cases), Program("def f(n): return n")).verdict is Verdict.AC
    assert sorted(asked) == sorted(case.input for case in cases)
