"""The proof that a jail confines: before a program is let in, a child confined like it tries to break out."""

from __future__ import annotations

import errno
import os
import socket
import time

from sandbox.kernel import linux


def try_to_escape(tier: str) -> None:
    """What `RequestLoop.prove` runs: each of these must fail for a confined child."""
    if 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()):
        raise AssertionError("the program would run as root")
    for what, attempt in (
        ("open a socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        ("write to /", lambda: os.open("/escape", os.O_CREAT | os.O_WRONLY)),
        ("read /etc/passwd", lambda: os.open("/etc/passwd", os.O_RDONLY)),
        ("signal its keeper", lambda: _signal_keeper(tier)),
        ("see its keeper", lambda: os.listdir("/proc/1/task") if tier == "A" else _refuse()),
        ("time its keeper", lambda: time.clock_gettime((~os.getppid() << 3) | 2)),
        ("unshare", lambda: linux.unshare(linux.CLONE_NEWUSER)),
    ):
        try:
            attempt()
        except OSError:
            continue
        raise AssertionError(f"a confined program could {what}")


def _signal_keeper(tier: str) -> None:
    """pid 1 of a namespace takes no signal from inside; elsewhere the kernel must refuse."""
    if tier == "A":
        _refuse()
    os.kill(os.getppid(), 0)


def _refuse() -> None:
    raise OSError(errno.EPERM, "refused")
