"""Hostile programs, really run, in every tier that isolates. Each is an attack, and the end that it must come to."""

from __future__ import annotations

import os

import pytest

from sandbox.core import MIB, Case, CaseResult, Judgement, Limits, Problem, Program, Verdict
from sandbox.judging.judge import Judge

FAST = Limits(cpu_s=0.5, wall_s=20.0, memory_bytes=256 * MIB, output_bytes=1 * MIB, processes=32)


@pytest.fixture(scope="module")
def judge(tiered_judge: Judge) -> Judge:
    return tiered_judge


def stdio(judge: Judge, source: str, stdin: str = "", expected: str = "ok", limits: Limits = FAST) -> CaseResult:
    return only(judge.judge(Problem("p", "stdio", (Case(stdin, expected),), limits=limits), Program(source)))


def call(judge: Judge, source: str, args: str = "[1]", expected: str = "2") -> CaseResult:
    problem = Problem("p", "function", (Case(args, expected),), fn_name="f", limits=FAST)
    return only(judge.judge(problem, Program(source)))


def asserts(judge: Judge, source: str, test: str) -> Judgement:
    return judge.judge(Problem("p", "assert", (Case(test),), limits=FAST), Program(source))


def only(done: Judgement) -> CaseResult:
    assert len(done.cases) == 1, done
    return done.cases[0]


def counted_alone(judge: Judge) -> bool:
    """The kernel counts a run's processes apart from all others, and refuses what is over the limit."""
    return judge.jail.tier == "A" or os.geteuid() == 0


def leftovers(judge: Judge) -> list[str]:
    """What the next program finds in the work directory, in /tmp and of other processes."""
    source = "import os\nprint(sorted(os.listdir('.')), os.listdir(os.environ['TMPDIR']))"
    problem = Problem("p", "stdio", (Case("", "[] []"),))
    return [] if judge.judge(problem, Program(source)).verdict is Verdict.AC else ["files"]


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_busy_loop_is_stopped_by_its_cpu_time(judge: Judge) -> None:
    done = stdio(judge, "while True: pass")
    assert done.verdict is Verdict.TLE
    assert "CPU" in done.message
    assert done.cpu_s >= 0.5


def test_a_sleeper_is_stopped_by_the_wall_clock(judge: Judge) -> None:
    done = stdio(judge, "import time\ntime.sleep(60)", limits=Limits(cpu_s=1, wall_s=0.3))
    assert done.verdict is Verdict.TLE
    assert "wall" in done.message


def test_one_refused_allocation_is_a_memory_verdict(judge: Judge) -> None:
    assert stdio(judge, "x = bytearray(1 << 40)").verdict is Verdict.MLE
    assert call(judge, "def f(x): return len([0] * (1 << 40))").verdict is Verdict.MLE


def test_processes_are_capped(judge: Judge) -> None:
    source = "import os, time\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(60)\n    n += 1\n"
    source += "except BlockingIOError: print('ok' if 16 <= n <= 32 else n)"
    done = stdio(judge, source)
    ended = (Verdict.AC, "") if counted_alone(judge) else (Verdict.RE, "limit of 32 processes")
    assert (done.verdict, done.message) == ended


def test_descriptors_are_capped(judge: Judge) -> None:
    source = "import os\nn = 0\ntry:\n  while True: os.dup(0); n += 1\nexcept OSError: print('ok' if n < 64 else n)"
    assert stdio(judge, source).verdict is Verdict.AC


def test_inodes_are_capped(judge: Judge) -> None:
    if judge.jail.tier != "A":
        pytest.skip("only tier A has a private file system to fill")
    assert stdio(judge, "for i in range(10000): open(f'f{i}', 'w').close()").verdict is Verdict.RE
    assert not leftovers(judge)


def test_a_sparse_file_cannot_pass_the_file_limit(judge: Judge) -> None:
    source = "f = open('big', 'wb')\ntry: f.truncate(1 << 40)\nexcept OSError: print('ok')"
    assert stdio(judge, source).verdict is Verdict.AC


# --- what it leaves behind --------------------------------------------------------------------------------------------


def test_files_do_not_pass_from_run_to_run(judge: Judge) -> None:
    source = (
        "import os, tempfile\nopen('here', 'w').write('x')\nopen(tempfile.gettempdir() + '/there', 'w').write('x')\n"
        "d = '.'\nfor _ in range(300):\n  d += '/d'\n  os.mkdir(d)\nos.chmod('d', 0)\nprint('ok')"
    )
    assert stdio(judge, source).verdict is Verdict.AC
    assert not leftovers(judge)


# --- ending early -----------------------------------------------------------------------------------------------------


def test_the_right_output_with_a_bad_exit_code_is_a_runtime_error(judge: Judge) -> None:
    assert stdio(judge, "print('ok')\nraise SystemExit(1)").verdict is Verdict.RE
    assert stdio(judge, "print('ok')\n1 / 0").verdict is Verdict.RE
    assert stdio(judge, "print('ok')\nexit()").verdict is Verdict.AC


# --- forging the answer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["10**6000", "-(10**6000)", "[1] * 100000", "{'a': (1, 2)}", "1e308 * 10"])
def test_large_and_odd_values_cross_unharmed(judge: Judge, value: str) -> None:
    assert asserts(judge, f"def f(x): return {value}", "assert f(1) != 3 and f(1) == f(1)").verdict is Verdict.AC


def test_an_integer_over_the_digit_limit_can_be_printed(judge: Judge) -> None:
    assert stdio(judge, "print(10 ** 5000)", expected="1" + "0" * 5000).verdict is Verdict.AC
