"""Hostile programs, really run, in every tier that isolates. Each is an attack, and the end that it must come to."""

from __future__ import annotations

import os

import pytest

from sandbox.core.nouns import MIB, Case, CaseResult, Judgement, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.judging.judge import Judge

FAST = Limits(cpu_s=0.5, wall_s=20.0, memory_bytes=256 * MIB, output_bytes=1 * MIB, processes=32)


@pytest.fixture(scope="module")
def judge(tiered_judge: Judge) -> Judge:
    return tiered_judge


def stdio(judge: Judge, source: str, stdin: str = "", expected: str = "ok", limits: Limits = FAST) -> CaseResult:
    return only(judge.judge(Problem("p", "stdio", (Case(stdin, expected),), limits=limits), Program(source)))


def only(done: Judgement) -> CaseResult:
    assert len(done.cases) == 1, done
    return done.cases[0]


def counted_alone(judge: Judge) -> bool:
    """The kernel counts a run's processes apart from all others, and refuses what is over the limit."""
    return judge.jail.tier == "A" or os.geteuid() == 0


def leftovers(judge: Judge) -> list[str]:
    """What the next program finds in the work directory and in /tmp beside its own source."""
    source = "import os\nprint(sorted(os.listdir('.')), os.listdir(os.environ['TMPDIR']))"
    problem = Problem("p", "stdio", (Case("", "['main.py'] ['main.py']"),))
    return [] if judge.judge(problem, Program(source)).verdict is Verdict.AC else ["files"]


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("limits")
@pytest.mark.parametrize(
    ("source", "limits", "verdict", "word"),
    [
        ("while True: pass", FAST, Verdict.TLE, "CPU"),
        ("import time\ntime.sleep(60)", Limits(cpu_s=1, wall_s=0.3), Verdict.TLE, "wall"),
        ("x = bytearray(1 << 40)", FAST, Verdict.MLE, "memory"),
        (
            "import os\nn = 0\ntry:\n  while True: os.dup(0); n += 1\nexcept OSError: print('ok' if n < 64 else n)",
            *(FAST, Verdict.AC, ""),
        ),
        ("print('ok' if len(str(10 ** 5000)) == 5001 else 0)", FAST, Verdict.AC, ""),
        ("f = open('big', 'wb')\ntry: f.truncate(1 << 40)\nexcept OSError: print('ok')", FAST, Verdict.AC, ""),
    ],
    ids=["a busy loop", "a sleeper", "an allocation", "descriptors", "digits", "a sparse file"],
)
def test_a_run_is_held_to_its_limits(judge: Judge, source: str, limits: Limits, verdict: Verdict, word: str) -> None:
    done = stdio(judge, source, limits=limits)
    assert done.verdict is verdict
    assert word in done.message
    assert done.cpu_s >= 0.5 or word != "CPU"


def test_one_refused_allocation_of_a_function_is_a_memory_verdict(judge: Judge) -> None:
    problem = Problem("p", "function", (Case("[1]", "2"),), fn_name="f", limits=FAST)
    done = judge.judge(problem, Program("def f(x): return len([0] * (1 << 40))"))
    assert only(done).verdict is Verdict.MLE


@pytest.mark.promise("limits")
def test_processes_are_capped(judge: Judge) -> None:
    source = "import os, time\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(60)\n    n += 1\n"
    source += "except BlockingIOError: print('ok' if 16 <= n <= 32 else n)"
    done = stdio(judge, source)
    ended = (Verdict.AC, "") if counted_alone(judge) else (Verdict.RE, "limit of 32 processes")
    assert (done.verdict, done.message) == ended


def test_inodes_are_capped(judge: Judge) -> None:
    if judge.jail.tier != "A":
        pytest.skip("only tier A has a private file system to fill")
    assert stdio(judge, "for i in range(10000): open(f'f{i}', 'w').close()").verdict is Verdict.RE
    assert not leftovers(judge)


# --- what it leaves behind --------------------------------------------------------------------------------------------


@pytest.mark.promise("leftovers")
def test_files_do_not_pass_from_run_to_run(judge: Judge) -> None:
    source = (
        "import os, tempfile\nopen('here', 'w').write('x')\nopen(tempfile.gettempdir() + '/there', 'w').write('x')\n"
        "d = '.'\nfor _ in range(300):\n  d += '/d'\n  os.mkdir(d)\nos.chmod('d', 0)\nprint('ok')"
    )
    assert stdio(judge, source).verdict is Verdict.AC
    assert not leftovers(judge)


# --- forging the answer -----------------------------------------------------------------------------------------------
