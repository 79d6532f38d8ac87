"""The jail's own promises: tiers, what a watcher counts, what is compiled, what crosses."""

from __future__ import annotations

import marshal
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import jail_of
from wide import wide

from sandbox.core import Limits
from sandbox.errors import Cancelled, IsolationUnavailable, WorkerDied
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.kernel.memfd import make_memfd, new_memfd, seal_memfd

tiered_jail = jail_of("A", wide("B"))

LIMITS = Limits(cpu_s=5, wall_s=30)
SHELL = "/bin/sh"
FEW = Limits(cpu_s=5, wall_s=30, processes=16)
MANY = "i=0; while [ $i -lt 100 ]; do sleep 60 & i=$((i+1)); done"


@pytest.fixture(scope="module")
def jail(tiered_jail: Jail) -> Jail:
    return tiered_jail


def test_the_best_tier_is_taken_and_named() -> None:
    with Jail() as jail:
        assert jail.tier in ("A", "B")
        assert jail.mechanisms


def test_a_tier_that_is_not_to_be_had_is_refused_with_a_way_out() -> None:
    with pytest.raises(IsolationUnavailable, match="use auto, A, B or C"):
        Jail("Z")  # type: ignore[arg-type]


def test_auto_never_falls_to_the_tier_that_does_not_isolate(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def refuse(tier: str, *_: object) -> None:
        tried.append(tier)
        raise IsolationUnavailable(f"tier {tier}: no")

    monkeypatch.setattr("sandbox.jail.jail.Tree", refuse)
    with pytest.raises(IsolationUnavailable, match=r"tier A: no; tier B: no; see `sandbox doctor`"):
        Jail("auto")
    assert tried == ["A", "B"]


def test_the_opt_in_tier_still_limits_and_cleans_up() -> None:
    with Jail("C") as jail:
        script = "(sleep 100 & sleep 100 &) ; touch left; mkdir d; echo ok"
        done = jail.run(JailedRun(LIMITS, argv=(SHELL, "-c", script)))
        assert (done.exit_code, done.stdout) == (0, b"ok\n")
        assert done.left_behind >= 1
        assert jail.run(JailedRun(LIMITS, argv=(SHELL, "-c", "ls"))).stdout == b""
        loop = jail.run(JailedRun(Limits(cpu_s=0.2, wall_s=30), argv=(SHELL, "-c", "while :; do :; done")))
        assert loop.cause == "cpu"


def test_more_processes_than_a_run_may_have_are_its_end_where_they_are_not_refused() -> None:
    with Jail("C") as jail:  # as root, nothing is refused there; else, little
        for script in (f"{MANY}; sleep 60", f"{MANY} & sleep 60", MANY):
            assert jail.run(JailedRun(FEW, argv=(SHELL, "-c", script))).cause == "processes"
        assert jail.run(JailedRun(FEW, argv=(SHELL, "-c", "sleep 60 & sleep 60 & echo ok"))).stdout == b"ok\n"


NEIGHBOUR = """
import threading
for _ in range(200):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("begun", flush=True)
input()
"""


def test_a_run_gains_nothing_by_other_processes_of_its_user_that_end_meanwhile(jail: Jail) -> None:
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with neighbour, open(to_write, "wb", 0) as go, open(from_read, "rb", 0) as said:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == b"begun\n"
        script = f"echo begun; read go; {MANY}; sleep 60"
        jail.start(JailedRun(FEW, argv=(SHELL, "-c", script), pipes=(to_read, from_write)))
        for fd in (to_read, from_write):
            os.close(fd)
        assert said.readline() == b"begun\n"
        neighbour.communicate(b"\n")
        go.write(b"\n")
        done = jail.finish()
    refused = done.exit_code == 2 and b"Cannot fork" in done.stderr
    assert refused or done.cause == "processes"


def test_usage_is_measured_over_all_processes(jail: Jail) -> None:
    burn = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"
    one = jail.run(JailedRun(LIMITS, argv=(SHELL, "-c", burn)))
    four = jail.run(JailedRun(LIMITS, argv=(SHELL, "-c", f"({burn})& ({burn})& ({burn})& ({burn})& wait")))
    assert four.cpu_s > 2 * one.cpu_s
    assert four.exit_code == 0


def test_a_run_can_be_cancelled_and_the_jail_goes_on(jail: Jail) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"stop")
        with pytest.raises(Cancelled):
            jail.run(JailedRun(LIMITS, argv=(SHELL, "-c", "sleep 60")), cancel_fd=theirs.fileno())
    assert jail.run(JailedRun(LIMITS, argv=(SHELL, "-c", "echo on"))).stdout == b"on\n"


def test_runs_under_way_end_in_their_order(jail: Jail) -> None:
    for word in ("one", "two", "three"):
        jail.start(JailedRun(LIMITS, argv=(SHELL, "-c", f"ls; touch left; echo {word}")))
    assert [jail.finish().stdout for _ in range(3)] == [b"one\n", b"two\n", b"three\n"]


def test_results_that_are_held_come_in_their_order(jail: Jail) -> None:
    for word, hold in (("one", True), ("two", True), ("three", False), ("four", True)):
        jail.start(JailedRun(LIMITS, argv=(SHELL, "-c", f"echo {word}"), hold=hold))
    assert [jail.finish().stdout for _ in range(4)] == [b"one\n", b"two\n", b"three\n", b"four\n"]


def test_a_result_is_not_held_while_a_long_run_goes_on(jail: Jail) -> None:
    jail.start(JailedRun(LIMITS, argv=(SHELL, "-c", "echo on"), hold=True))
    jail.start(JailedRun(LIMITS, argv=(SHELL, "-c", "sleep 60")))
    assert jail.finish().stdout == b"on\n"
    assert jail.is_running()
    jail.drop()


def test_requests_that_differ_in_one_thing_are_not_taken_for_the_same(jail: Jail) -> None:
    for seconds in (5, 6, 5):
        limits = Limits(cpu_s=seconds, wall_s=30)
        assert jail.run(JailedRun(limits, argv=(SHELL, "-c", "ulimit -t"))).stdout == b"%d\n" % (seconds + 2)


def test_a_zygote_that_dies_under_several_runs_is_our_fault_once(jail: Jail) -> None:
    with Jail(jail.tier) as other:  # type: ignore[arg-type]
        for _ in range(2):
            other.start(JailedRun(LIMITS, argv=(SHELL, "-c", "sleep 60")))
        other.process.kill()
        with pytest.raises(WorkerDied):
            other.finish()
        other.drop()
        with pytest.raises(WorkerDied, match="start another"):
            other.start(JailedRun(LIMITS, argv=(SHELL, "-c", "true")))


def harness(jail: Jail, source: str, code: int) -> bytes:
    job = marshal.dumps({"kind": "stdio", "source": source, "preamble": ""}) + bytes(32)
    done = jail.run(JailedRun(LIMITS, job=job, code=code))
    assert done.exit_code == 0, done.stderr
    return done.stdout


FORKS = """
import os, random, threading
ended = threading.Event()
threading.Thread(target=ended.wait).start()
first = random.random()
if os.fork() == 0:
    os._exit(threading.active_count() + 10 * (random.random() != random.Random(0).random()))
print(threading.active_count(), os.waitstatus_to_exitcode(os.wait()[1]))
ended.set()
"""


def test_a_fork_of_the_programs_own_forgets_threads_and_seeds_chance_anew(jail: Jail) -> None:
    """As the hooks do that modules register for a fork."""
    code = new_memfd("code")
    try:
        assert harness(jail, FORKS, code) == b"2 11\n"
    finally:
        os.close(code)


def test_threads_are_waited_for_and_what_they_leave_to_do_at_the_end_is_done(jail: Jail) -> None:
    source = """
import concurrent.futures, threading
ended = threading.Event()
def early():
    print("early")
    ended.set()
def late():
    ended.wait()
    print("late")
threading.Thread(target=late).start()
concurrent.futures.ThreadPoolExecutor(1).submit(early)
"""
    code = new_memfd("code")
    try:
        assert harness(jail, source, code) == b"early\nlate\n"
    finally:
        os.close(code)


def test_a_program_is_compiled_by_its_first_run_only(jail: Jail) -> None:
    code = new_memfd("code")
    try:
        assert harness(jail, "print('first')", code) == b"first\n"
        seal_memfd(code)
        assert harness(jail, "print('other')", code) == b"first\n"
    finally:
        os.close(code)


def test_a_package_is_there_when_asked_for_and_only_then(jail: Jail) -> None:
    pytest.importorskip("numpy")
    source = """
import numpy, numpy.fft, numpy.polynomial, os
try:
    beside = set(os.listdir(numpy.__path__[0] + "/..")) - {"numpy", "numpy.libs"}
except OSError:
    beside = set()
print(numpy.arange(4).sum(), len(beside), numpy.linalg.norm([3, 4]))
"""
    job = marshal.dumps({"kind": "stdio", "source": source, "preamble": ""}) + bytes(32)
    assert b"No module named 'numpy'" in jail.run(JailedRun(LIMITS, job=job)).stderr
    with Jail(jail.tier, packages=("numpy",)) as other:  # type: ignore[arg-type]
        found = other.run(JailedRun(LIMITS, job=job))
    assert found.stdout == b"6 0 5.0\n", found.stderr


@pytest.mark.parametrize("junk", [b"", b"junk", b"\xe3" * 100])
def test_code_that_was_not_kept_whole_is_compiled_again(jail: Jail, junk: bytes) -> None:
    code = new_memfd("code")
    try:
        os.write(code, junk)
        seal_memfd(code)
        assert harness(jail, "print('first')", code) == b"first\n"
    finally:
        os.close(code)


def test_files_go_in_and_come_out(jail: Jail) -> None:
    run = JailedRun(LIMITS, argv=(SHELL, "-c", "cat in in > out"), files=(("in", b"ab"),), collect="out")
    assert jail.run(run).collected == b"abab"


def test_a_program_cannot_change_what_it_was_given(jail: Jail) -> None:
    binary = make_memfd("program", Path(SHELL).read_bytes(), seal=True)
    try:
        script = "echo x > /proc/self/fd/0 || echo kept"
        done = jail.run(JailedRun(LIMITS, b"in", argv=("sh", "-c", script), program=binary))
        assert done.stdout == b"kept\n"
        assert os.pread(binary, 4, 0) == b"\x7fELF"
    finally:
        os.close(binary)
