"""The jail's own promises: tiers, what a watcher counts, what is compiled, what crosses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jailed_runs import LIMITS, python, shell
from tiers import jail_of
from wide import wide

from sandbox.core.nouns import Limits
from sandbox.errors import IsolationUnavailable, WorkerDied
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.kernel.linux import new_memfd, seal_memfd

jail = jail_of("A", wide("B"))


@pytest.mark.promise("tiers")
def test_the_best_tier_is_taken_and_named() -> None:
    with Jail() as jail:
        assert jail.tier in ("A", "B")
        assert jail.mechanisms


@pytest.mark.promise("tiers")
def test_a_tier_that_is_not_to_be_had_is_refused_with_a_way_out() -> None:
    with pytest.raises(IsolationUnavailable, match="use auto, A, B or C"):
        Jail("Z")  # type: ignore[arg-type]


@pytest.mark.promise("tiers")
def test_auto_never_falls_to_the_tier_that_does_not_isolate(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def refuse(tier: str, *_: object, **__: object) -> None:
        tried.append(tier)
        raise IsolationUnavailable(f"tier {tier}: no")

    monkeypatch.setattr("sandbox.jail.jail.Tree", refuse)
    with pytest.raises(IsolationUnavailable, match=r"tier A: no; tier B: no; see `sandbox doctor`"):
        Jail("auto")
    assert tried == ["A", "B"]


def test_the_opt_in_tier_still_limits_and_cleans_up() -> None:
    with Jail("C") as jail:
        done = jail.run(shell("(sleep 100 & sleep 100 &) ; touch left; mkdir d; echo ok"))
        assert (done.exit_code, done.stdout) == (0, b"ok\n")
        assert done.left_behind >= 1
        assert jail.run(shell("ls")).stdout == b""
        assert jail.run(shell("while :; do :; done", Limits(cpu_s=0.2, wall_s=30))).cause == "cpu"


def test_usage_is_measured_over_all_processes(jail: Jail) -> None:
    burn = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"
    one = jail.run(shell(burn))
    four = jail.run(shell(f"({burn})& ({burn})& ({burn})& ({burn})& wait"))
    assert four.cpu_s > 2 * one.cpu_s
    assert four.exit_code == 0


# --- requests and results ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["", "one two four"], ids=["sent at once", "held"])
def test_results_come_in_the_order_of_their_runs(jail: Jail, held: str) -> None:
    words = ("one", "two", "three", "four")
    for word in words:
        jail.start(shell(f"ls; touch left; echo {word}", hold=word in held.split()))
    assert [jail.finish().stdout.decode() for _ in words] == [f"{word}\n" for word in words]


def test_a_result_is_not_held_while_a_long_run_goes_on(jail: Jail) -> None:
    jail.start(shell("echo on", hold=True))
    jail.start(shell("sleep 60"))
    assert jail.finish().stdout == b"on\n"
    assert jail.is_running()
    jail.drop()


def test_requests_that_differ_in_one_thing_are_not_taken_for_the_same(jail: Jail) -> None:
    limits = [Limits(cpu_s=seconds, wall_s=30) for seconds in (5, 6, 5)]
    first, second, third = (int(jail.run(shell("ulimit -t", each)).stdout) for each in limits)
    assert 5 < first == third < second


def test_a_zygote_that_dies_under_several_runs_is_our_fault_once(jail: Jail) -> None:
    with Jail(jail.tier) as other:
        for _ in range(2):
            other.start(shell("sleep 60"))
        other.process.kill()
        with pytest.raises(WorkerDied):
            other.finish()
        other.drop()
        with pytest.raises(WorkerDied, match="start another"):
            other.start(shell("true"))


def test_a_program_cannot_change_what_it_was_given(jail: Jail) -> None:
    binary = Path("/bin/sh").read_bytes()
    script = "echo x > /proc/self/fd/0 || echo kept\necho x >> /proc/self/exe || echo kept"
    done = jail.run(JailedRun(LIMITS, b"in", argv=("sh", "-c", script), program=binary))
    assert done.stdout == b"kept\nkept\n"


# --- Python programs --------------------------------------------------------------------------------------------------


@pytest.fixture
def code() -> Iterator[int]:
    """Where a program is kept compiled."""
    fd = new_memfd("code")
    yield fd
    os.close(fd)


def printed(jail: Jail, source: str, code: int | None = None) -> str:
    done = jail.run(python(source, code=code))
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode()


def test_a_fork_of_the_programs_own_forgets_threads_and_seeds_chance_anew(jail: Jail) -> None:
    """As the hooks do that modules register for a fork."""
    source = """
import os, random, threading
ended = threading.Event()
threading.Thread(target=ended.wait).start()
first = random.random()
if os.fork() == 0:
    os._exit(threading.active_count() + 10 * (random.random() != random.Random(0).random()))
print(threading.active_count(), os.waitstatus_to_exitcode(os.wait()[1]))
ended.set()
"""
    assert printed(jail, source) == "2 11\n"


def test_a_program_is_compiled_by_its_first_run_only(jail: Jail, code: int) -> None:
    assert printed(jail, "print('first')", code) == "first\n"
    seal_memfd(code)
    assert printed(jail, "print('other')", code) == "first\n"


@pytest.mark.parametrize("junk", [b"", b"junk", b"\xe3" * 100])
def test_code_that_was_not_kept_whole_is_compiled_again(jail: Jail, code: int, junk: bytes) -> None:
    os.write(code, junk)
    seal_memfd(code)
    assert printed(jail, "print('first')", code) == "first\n"
