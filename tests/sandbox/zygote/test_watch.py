"""What the watcher says of a run that meets its wall limit, with and without a core to run on."""

from __future__ import annotations

import os
import socket

import pytest

from sandbox.core import MIB
from sandbox.zygote import watch
from sandbox.zygote.inbox import Inbox


@pytest.mark.parametrize(
    ("sleeps", "starved_s", "cause"),
    [("60", 0.0, "wall"), ("0.3", 50.0, "None"), ("60", 50.0, "wall")],
    ids=["a sleeper meets it", "time without a core does not count", "even a starved run ends"],
)
def test_under_a_wall_limit_of_a_tenth_of_a_second(sleeps: str, starved_s: float, cause: str) -> None:
    limits = {"cpu_s": 5.0, "wall_s": 0.1, "memory_bytes": 1 << 40, "output_bytes": MIB, "processes": 64}
    receive, send = os.pipe()
    pid = os.fork()  # a watcher reaps all children of its process
    if pid == 0:
        try:
            watch._starved_s = lambda members: starved_s
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
