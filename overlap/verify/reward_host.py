"""The program of a reward worker's process: it loads the task once, then calls it with one answer after the other.

    driver ── name, arguments ──▶ multiprocess Connection ──▶ this process ── (result, fault) ──▶ driver

It sends True when it is there. A fault is a text, "" for none.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import dill
from multiprocess.connection import Connection

from overlap.core.user_code import checked_reward, described_error
from overlap.process import process_tree
from overlap.process.run_environment import PARENT

BOOT = "from overlap.verify.reward_host import serve_rewards; serve_rewards()"
"""Not run as ``__main__``: what a script or a notebook defines there is loaded beside nothing of ours."""
WHERE: signal.Signals = signal.SIGUSR2
"""Has the process write where it is."""


def serve_rewards() -> None:
    """Serve the connection argv[1], one call after the other, until the driver is gone or ends the connection."""
    process_tree.bind_to_parent(int(os.environ[PARENT]))
    served = _Served()
    with Connection(int(sys.argv[1])) as driver, contextlib.suppress(EOFError, ConnectionError):
        driver.send(True)
        while True:
            name, *arguments = driver.recv()
            try:
                reply = getattr(served, name)(*arguments), ""
            except (Exception, SystemExit) as error:  # the user's code, or the import of it, can raise anything
                reply = None, described_error(error)
            sys.stdout.flush()
            driver.send(reply)
    process_tree.leave(0)


class _Served:
    """The calls that a worker takes."""

    _dumped: bytes | None = None

    def load(self, path: list[str], task: bytes) -> int:
        """Load the task; return the descriptor of the file that says where this process hangs."""
        sys.path[:] = path
        self._task: Any = dill.loads(task)
        location = os.memfd_create("location")
        faulthandler.register(WHERE, file=location, all_threads=False)
        return location

    def reward(self, prompt: bytes, answer: str, token_ids: Sequence[int] | None) -> float | None:
        if prompt != self._dumped:  # samples of one prompt often come one after the other
            self._prompt, self._dumped = dill.loads(prompt), prompt
        if token_ids is None:
            return checked_reward(self._task.reward(self._prompt, answer, None))
        return checked_reward(self._task.reward_of_tokens(self._prompt, answer, list(token_ids)))
