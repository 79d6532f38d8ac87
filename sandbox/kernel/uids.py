"""Uids that no other living jail uses: the kernel counts processes per uid, and kill(-1) reaches a uid.

Where all uids of the machine are available, they follow from the pid. Elsewhere (a container with its own uid map) a
name in the abstract socket space reserves each, which the kernel frees with its holder.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import stat
from contextlib import suppress
from typing import Final

_FIRST: Final = 1_000_000_000
_APART: Final = 1 << 22  # no pid is larger
_TRIED: Final = 512
_NOBODY: Final = 65534  # daemons of the machine may have it
_held: Final[list[socket.socket]] = []
_turns: Final = itertools.count()


def claim_uid() -> int | None:
    """Return an unprivileged uid, a new one with each call, reserved until this process ends.

    None without root, and where other jails have them all.
    """
    if os.geteuid() != 0:
        return None
    spans = _mapped()
    wanted = _FIRST + next(_turns) * _APART + os.getpid()
    if any(first <= wanted < first + count for first, count in spans):
        return wanted
    last_first = (uid for first, count in reversed(spans) for uid in range(first + count - 1, first - 1, -1))
    return next((uid for uid in itertools.islice(last_first, _TRIED) if uid not in (0, _NOBODY) and _hold(uid)), None)


def _mapped() -> list[tuple[int, int]]:
    """First uid and number of uids of each part of this user namespace's map."""
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        return [(int(first), int(count)) for first, _, count in map(str.split, lines)]


def _hold(uid: int) -> bool:
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0overlap-sandbox-uid-{uid}")
    except OSError as error:
        name.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    _held.append(name)
    return True


def may_enter(path: str) -> bool:
    """Every user may go through the directories down to `path`, and into it, as far as they are there."""
    while path != "/":
        with suppress(FileNotFoundError):
            if not os.stat(path).st_mode & stat.S_IXOTH:
                return False
        path = os.path.dirname(path)
    return True
