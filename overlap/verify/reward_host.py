"""The program of a reward worker's process: it loads the task once, then calls it with one answer after the other.

    driver ── name, arguments ──▶ multiprocess Connection ──▶ this process ── result ──▶ driver

It sends True when it is there. ``load(path, task)`` returns (fault, descriptor of the file that says where it hangs),
``reward(...)`` returns (number or None, fault); a fault is a text, "" for none.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Sequence

import dill
from multiprocess.connection import Connection

from overlap.core import Prompt, described_error
from overlap.process import process_tree
from overlap.process.run_environment import PARENT
from overlap.verify.user_fault import RewardFault, checked_reward

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
            result = getattr(served, name)(*arguments)
            sys.stdout.flush()
            driver.send(result)
    process_tree.leave(0)


class _Served:
    """The calls that a worker takes."""

    def load(self, path: list[str], task: bytes) -> tuple[str, int]:
        sys.path[:] = path
        try:
            self._task = dill.loads(task)
        except (Exception, SystemExit) as error:  # importing a user's module can raise anything
            return described_error(error), -1
        self._prompts = dict[int, bytes | Prompt]()
        location = os.memfd_create("location")
        faulthandler.register(WHERE, file=location, all_threads=False)
        return "", location

    def reward(
        self, number: int, data: bytes | None, forget: list[int], answer: str, token_ids: Sequence[int] | None
    ) -> tuple[float | None, str]:
        if data is not None:
            self._prompts[number] = data
        for gone in forget:
            del self._prompts[gone]
        try:
            if isinstance(prompt := self._prompts[number], bytes):
                prompt = self._prompts[number] = dill.loads(prompt)
            if token_ids is None:
                return checked_reward(self._task.reward(prompt, answer, None)), ""
            return checked_reward(self._task.reward_of_tokens(prompt, answer, list(token_ids))), ""
        except RewardFault as error:
            return None, str(error)
        except (Exception, SystemExit) as error:
            return None, described_error(error)
