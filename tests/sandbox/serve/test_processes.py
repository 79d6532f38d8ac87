"""Several server processes behind one port: what their parent waits for."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from sandbox.errors import SandboxError
from sandbox.serve import processes
from sandbox.serve.processes import _Processes


@pytest.fixture
def parent() -> Iterator[_Processes]:
    """The parent of one process, with the signals held back as `run` does it."""
    held = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    with socket.socket() as listener:
        yield _Processes(listener, argparse.Namespace(processes=1, workers=1, drain_s=0.0))
    while signal.sigtimedwait(held, 0):
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_signal_ends_the_wait_for_processes_that_never_answer(parent: _Processes) -> None:
    reads, writes = os.pipe()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    parent._await_ready(reads)
    os.close(writes)
    assert parent.asked == signal.SIGTERM


def test_a_process_that_ends_without_an_answer_could_not_start(parent: _Processes) -> None:
    reads, writes = os.pipe()
    os.close(writes)
    with pytest.raises(SandboxError, match="could not start"):
        parent._await_ready(reads)


def dead(parent: _Processes, *rows: int) -> None:
    """Children that have ended."""
    for row in rows:
        parent.children[os.posix_spawnp("true", ["true"], os.environ)] = row


def test_a_signal_is_obeyed_while_one_that_died_waits_for_its_restart(
    parent: _Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(parent, "_fork", started.append)
    monkeypatch.setattr(processes, "_RESTART_S", 900.0)
    dead(parent, 0)
    while parent.children:
        parent._attend()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    parent._attend()
    assert (parent.asked, list(parent.due), started) == (signal.SIGTERM, [0], [])


def test_an_end_is_seen_whose_signal_went_to_another_thread(
    parent: _Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_REAP_S", 0.01)
    parent.signals = (signal.SIGTERM,)
    dead(parent, 0)
    (pid,) = parent.children
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    while signal.sigtimedwait((signal.SIGCHLD,), 0):
        pass
    while parent.children:
        parent._attend()
    assert list(parent.due) == [0]


def test_each_that_dies_is_started_again_in_its_own_time(parent: _Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(processes, "_RESTART_S", 600.0)
    monkeypatch.setattr(parent, "_fork", started.append)
    dead(parent, 0, 1)
    parent.due[2] = 0.0
    while parent.children:
        parent._attend()
    assert started == [2]
    monkeypatch.setattr(processes.time, "monotonic", lambda: max(parent.due.values()))
    parent._attend()
    assert sorted(started) == [0, 1, 2]


def test_a_process_that_obeys_no_signal_holds_up_the_second_one_by_the_margin_alone(
    parent: _Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_MARGIN_S", 0.1)
    monkeypatch.setattr(processes, "ONE_WISH_S", -1.0)  # whatever comes is a second one
    parent.options.drain_s, parent.asked = 600.0, signal.SIGTERM
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stuck:
        stuck.send_signal(signal.SIGSTOP)
        os.waitpid(stuck.pid, os.WUNTRACED)
        parent.children[stuck.pid] = 0
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        parent._end()
        assert (parent.cut, stuck.wait(timeout=60)) == (signal.SIGINT, -signal.SIGKILL)
