"""Several server processes behind one port: what their parent waits for."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from sandbox.errors import SandboxError
from sandbox.serve.processes import _Processes


@pytest.fixture
def parent() -> Iterator[_Processes]:
    """The parent of one process, with the signals held back as `run` does it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    with socket.socket() as listener:
        yield _Processes(listener, argparse.Namespace(processes=1, workers=1, drain_s=0.0))
    signal.sigtimedwait((signal.SIGTERM,), 0)
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
