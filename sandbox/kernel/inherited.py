"""Reset what a process inherits: signals, limits and a umask that exec keeps, and descriptors below 3 or none.

Our processes depend on none of it (`reset_inherited`), nor does what we write in a caller's own process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

FILES_MIN: Final = 256
"""Descriptors that a process of ours may need."""
UMASK: Final = 0o022
_FILES: Final = 1 << 16
_STACK_BYTES: Final = 8 << 20
_SOFT: Final = (
    resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC,
)  # fmt: skip
_OF_PYTHON: Final = {signal.SIGPIPE, signal.SIGXFSZ}
"""Ignored by every interpreter."""
_CAP_SYS_RESOURCE: Final = 1 << 24


def reset_inherited() -> None:
    """Handle signals by default, block none, and raise soft limits as far as is allowed and useful."""
    for number in signal.valid_signals() - _OF_PYTHON:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for what in _SOFT:
        _raise_soft(what, resource.RLIM_INFINITY)
    _raise_soft(resource.RLIMIT_STACK, _STACK_BYTES)
    _raise_soft(resource.RLIMIT_NOFILE, _FILES)
    if 0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < FILES_MIN:
        with suppress(OSError, ValueError):  # root may
            resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MIN, FILES_MIN))


def _raise_soft(what: int, wanted: int) -> None:
    soft, hard = resource.getrlimit(what)
    wanted = hard if wanted == resource.RLIM_INFINITY or 0 <= hard < wanted else wanted
    if soft != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or soft < wanted):
        resource.setrlimit(what, (wanted, hard))


def check_open_files() -> None:
    """Raises OSError where a process that is started from here could not open what it needs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < FILES_MIN and not _may_raise_limits():
        raise OSError(errno.EMFILE, f"at most {most} files may be open at once, and {FILES_MIN} are needed")


def _may_raise_limits() -> bool:
    """Return whether this is root of the machine's first user namespace, who alone may raise hard limits."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        first = file.read().split() == ["0", "0", "4294967295"]
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        effective = next((line.split()[1] for line in file if line.startswith("CapEff:")), "0")
    return first and bool(int(effective, 16) & _CAP_SYS_RESOURCE)


def above_streams(fd: int) -> int:
    """Return the descriptor, moved where it is one of 0 to 2: a started process has its own streams there."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def connected_sockets(kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Return `socket.socketpair`, with descriptors that can be handed to a started process."""
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    try:
        return tuple(_above_streams(end) for end in (one, other))  # type: ignore[return-value]
    except OSError:
        one.close()
        other.close()
        raise


def _above_streams(end: socket.socket) -> socket.socket:
    return end if end.fileno() > 2 else socket.socket(fileno=above_streams(end.detach()))


def make_directory(path: str | Path, mode: int) -> None:
    """Make a directory with exactly this mode; one of ours may be there. Raises OSError."""
    os.makedirs(path, 0o700, exist_ok=True)
    os.chmod(path, mode)


def write_with_mode(path: str | Path, content: bytes, mode: int) -> None:
    """Write a file with exactly this mode. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
