"""A judgement that is cancelled ends at once, whatever it is busy with, and its jail does the next."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tiers import jail_of
from toolchains import need
from wide import wide

from sandbox import Case, Limits, Problem, Program, Verdict
from sandbox.compare import modes, values
from sandbox.errors import Cancelled
from sandbox.judging import assert_values
from sandbox.judging.interrupt import cancellable
from sandbox.judging.judge import Judge

tiered_jail = jail_of("A", wide("B"))

# Nobody waits so long: a test that is not cancelled never ends.
LIMITS = Limits(cpu_s=100_000, wall_s=100_000)
SPINS, SLEEPS = "while True: pass", "import time\ntime.sleep(100000)"
FUNCTION = f"def f():\n  {SPINS}"
SUM = Problem("sum", "stdio", (Case("1 2\n", "3"),))
FOR_EVER = {"limits": LIMITS, "referee_limits": LIMITS}


NO_INPUT = Case("", "1")


def problem(kind: str = "stdio", case: Case = NO_INPUT, **fields: object) -> Problem:
    return Problem("p", kind, (case,), fn_name="f" if kind == "function" else None, **fields)  # type: ignore[arg-type]


ENDLESS = {
    "a run that spins": (problem(limits=LIMITS), SPINS),
    "a run that sleeps": (problem(limits=LIMITS), SLEEPS),
    "a run with children": (problem(limits=LIMITS), f"import os\nos.fork()\n{SPINS}"),
    "a function": (problem("function", Case("[]", "1"), limits=LIMITS), FUNCTION),
    "an assert": (problem("assert", Case("assert f() == 1"), limits=LIMITS), FUNCTION),
    "a test in a jail of its own": (
        problem("assert", Case("for i in [1]:\n  assert f() == i"), limits=LIMITS),
        FUNCTION,
    ),
    "a checker": (problem(compare="checker", checker=Program(SPINS), **FOR_EVER), "print(1)"),
    "an interactor": (problem("interactive", interactor=Program(SPINS), **FOR_EVER), "input()"),
}


@pytest.fixture
def cancelled() -> Iterator[int]:
    fd = os.eventfd(1, os.EFD_CLOEXEC)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("name", ENDLESS)
def test_a_cancel_ends_what_would_never_end(tiered_judge: Judge, cancelled: int, name: str) -> None:
    asked, source = ENDLESS[name]
    before = threading.active_count()
    with pytest.raises(Cancelled):
        replace(tiered_judge, cancel_fd=cancelled).judge(asked, Program(source))
    assert threading.active_count() == before
    done = tiered_judge.judge(SUM, Program("print(sum(map(int, input().split())))"))
    assert done.verdict is Verdict.AC, done.cases


def test_a_cancel_ends_a_compilation(tiered_judge: Judge, cancelled: int) -> None:
    need("cpp")
    source = (
        "template <int N> int f() { return N % 2 ? f<N / 2>() : f<N - 1>(); }\ntemplate <> int f<0>() { return 0; }\n"
    )
    with pytest.raises(Cancelled):
        replace(tiered_judge, cancel_fd=cancelled).judge(
            SUM, Program(f"{source}int main() {{ return f<9999>(); }}", "cpp")
        )


TEXT = "'x' * 100_000"
RETURNS = f"def f(): return {TEXT}"
WRITES = {
    "an output": (problem(), f"print({TEXT})", modes, "parse_mode"),
    "a value": (problem("function", Case("[]", "1")), RETURNS, values, "same"),
    "what an assert is about": (problem("assert", Case("assert f() == 1")), RETURNS, assert_values, "holds"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_cancel_ends_a_comparison(tiered_judge: Judge, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked, source, room, compares = WRITES[name]
    fd = os.eventfd(0, os.EFD_CLOEXEC)

    def compare(*_: object) -> None:
        os.eventfd_write(fd, 1)
        while True:
            pass

    before = signal.getsignal(signal.SIGVTALRM)
    with monkeypatch.context() as patch:
        patch.setattr(room, compares, compare)
        with pytest.raises(Cancelled):
            replace(tiered_judge, cancel_fd=fd).judge(asked, Program(source))
    os.close(fd)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) == before
    assert gc.isenabled()
    done = tiered_judge.judge(SUM, Program("print(sum(map(int, input().split())))"))
    assert done.verdict is Verdict.AC, done.cases


def test_where_no_cancel_comes_a_comparison_is_what_it_was(tiered_judge: Judge) -> None:
    many = " ".join(f"{number}.50" for number in range(60_000))
    fd = os.eventfd(0, os.EFD_CLOEXEC)
    source = "print(*(f'{{number}}.5' for number in range({})))"
    judge = replace(tiered_judge, cancel_fd=fd)
    for count, verdict in ((60_000, Verdict.AC), (59_999, Verdict.WA)):
        assert judge.judge(problem(case=Case("", many)), Program(source.format(count))).verdict is verdict
    os.close(fd)


def test_work_in_a_thread_goes_on_to_its_end(cancelled: int) -> None:
    done: list[int] = []

    def work() -> None:
        with cancellable(cancelled, 1 << 30):
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert done
