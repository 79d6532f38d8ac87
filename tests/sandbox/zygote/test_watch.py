"""What the watcher says of a run that meets its wall limit, with and without a core to run on."""

from __future__ import annotations

import os
import socket

from sandbox.core import MIB
from sandbox.zygote import watch
from sandbox.zygote.inbox import Inbox

SHELL = "/bin/sh"


def cause_of(program: str, starved_s: float) -> str:
    """What the watcher alone says of a shell program under a wall limit of 0.1 s, in a process of its own."""
    limits = {"cpu_s": 5.0, "wall_s": 0.1, "memory_bytes": 1 << 40, "output_bytes": MIB, "processes": 64}
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            watch._starved_s = lambda members: starved_s
            ours, theirs = socket.socketpair()
            child = os.posix_spawn(SHELL, [SHELL, "-c", program], {"PATH": "/bin:/usr/bin"})
            tribe = watch.Tribe(lambda: [child], lambda: watch._kill(child), atomic=False)
            os.write(send, str(watch.watch(watch.Child(child, tribe), limits, [], Inbox(theirs)).cause).encode())
            ours.close()
        finally:
            os._exit(0)
    os.close(send)
    with open(receive, encoding="ascii") as stream:
        cause = stream.read()
    os.waitpid(pid, 0)
    return cause


def test_a_sleeper_meets_the_wall_limit() -> None:
    assert cause_of("exec sleep 60", starved_s=0.0) == "wall"


def test_time_without_a_core_is_not_on_the_wall_clock() -> None:
    assert cause_of("exec sleep 0.3", starved_s=50.0) == "None"


def test_even_a_starved_run_ends() -> None:
    assert cause_of("exec sleep 60", starved_s=50.0) == "wall"
