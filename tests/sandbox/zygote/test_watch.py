"""What the watcher says of a run that meets its wall limit, and of the time that it lost to the machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sandbox.core.nouns import MIB
from sandbox.kernel import procfs
from sandbox.zygote import run_clock, watch
from sandbox.zygote.inbox import Inbox


@pytest.mark.parametrize(
    ("sleeps", "state", "cause"),
    [("60", "", "wall"), ("0.3", "R", "None"), ("60", "R", "starved"), ("60", "D", "wall")],
    ids=["a sleeper meets it", "time without a core does not count", "even a starved run ends", "vfork is no reading"],
)
def test_under_a_wall_limit_of_a_tenth_of_a_second(sleeps: str, state: str, cause: str) -> None:
    limits = {"cpu_s": 5.0, "wall_s": 0.1, "memory_bytes": 1 << 40, "output_bytes": MIB, "processes": 64}
    receive, send = os.pipe()
    pid = os.fork()  # a watcher reaps all children of its process
    if pid == 0:
        try:
            run_clock.waiting_state = lambda members: state
            ours, theirs = socket.socketpair()
            child = os.posix_spawn("/bin/sleep", ["sleep", sleeps], {})
            tribe = watch.Tribe(lambda: [child], lambda: watch._kill(child), atomic=False)
            outcome = watch.Watcher(Inbox(theirs)).watch(watch.Child(child, tribe), limits, [], None)
            os.write(send, str(outcome.cause).encode())
            ours.close()
        finally:
            os._exit(0)
    os.close(send)
    with open(receive, encoding="ascii") as stream:
        assert stream.read() == cause
    os.waitpid(pid, 0)


Look = tuple[str, dict[int, float], int]
"""State, CPU seconds by process, pages read. The machine reads again what it has dropped, where it says so."""


@pytest.mark.parametrize(
    ("looks", "refaults", "lost_s"),
    [
        ([("R", {1: 0.0}, 0), ("R", {1: 0.25}, 0)], 0, 1.75),
        ([("", {1: 0.0}, 0), ("", {1: 0.0}, 9)], 5000, 0.0),
        ([("D", {1: 0.0}, 0), ("D", {1: 0.0}, 0), ("", {1: 0.0}, 0), ("", {1: 0.0}, 1)], 5000, 0.0),
        ([("D", {1: 0.0}, 0), ("D", {1: 0.0}, 0), ("", {1: 0.0}, 1)], 5000, 2.0),
        ([("D", {1: 0.0}, 0), ("D", {1: 0.0}, 0), ("", {1: 0.0}, 1)], 50, 0.0),
        ([("R", {1: 0.0, 2: 1.0}, 0), ("R", {1: 0.0, 3: 1.0}, 0), ("R", {1: 0.0, 4: 1.0}, 0)], 0, 0.0),
    ],
    ids=[
        "ready",
        "asleep",
        "stuck, and no page read",
        "a dropped page is read",
        "a page is read that it dropped itself",
        "children that end unseen",
    ],
)
def test_time_is_lost_while_a_run_waits_for_the_machine_and_not_by_its_own_will(
    looks: list[Look], refaults: int, lost_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(run_clock, "machine_refaults", lambda: int(now * refaults))
    clock = run_clock.RunClock({"wall_s": 9.0})
    for state, cpu_s, faults in looks:
        now += 1.0
        monkeypatch.setattr(run_clock, "waiting_state", lambda members, state=state: state)
        clock.look(run_clock.RunUse(cpu_s, 1, faults), sum(cpu_s.values()))
    assert clock.lost_s == lost_s


@pytest.mark.parametrize(
    ("states", "nice", "found"),
    [("S", 0, ""), ("SR", 0, "R"), ("SD", 0, "D"), ("DR", 0, "R"), ("T", 0, ""), ("SR", 19, ""), ("Z", 0, "")],
)
def test_any_thread_may_wait_and_one_that_asked_for_less_does_not(
    states: str, nice: int, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "_root", str(tmp_path))
    rank = os.getpriority(os.PRIO_PROCESS, 0) + nice
    for row, state in enumerate(states):
        folder = tmp_path / "7" / "task" / str(os.getpid() if row else os.getppid())
        folder.mkdir(parents=True)
        fields = [state] + ["0"] * 49
        fields[16], fields[38] = str(rank), str(os.sched_getscheduler(0))
        (folder / "stat").write_text(f"7 (a) b) {' '.join(fields)}\n")
    assert run_clock.waiting_state([7, 8]) == found
