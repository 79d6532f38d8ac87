"""Whose program has been handed to a jail: memory that pool, supervisor and workers share, a byte for each job.

    worker ── hand ──▶ board ◀── is_handed ── the supervisor when a worker has died, the pool when the supervisor has

It is asked when whoever could have answered is dead. Who died before the program was handed over did not die of it.
"""

from __future__ import annotations

import os
from typing import Final

from sandbox.kernel import new_memfd

_HANDED: Final = b"\1"


class SharedFlags:
    """Jobs by their id. With the descriptor of another's board, that one. Closed with the last reference to it."""

    def __init__(self, fd: int | None = None) -> None:
        """Raises OSError where there is no memory or no descriptor for it."""
        self.fd = -1
        self.fd = new_memfd("board") if fd is None else fd

    def hand(self, key: int) -> None:
        """The program is handed to a jail now."""
        os.pwrite(self.fd, _HANDED, key)

    def take_back(self, key: int) -> None:
        """It is out of any jail, and may be tried in another."""
        os.pwrite(self.fd, b"\0", key)

    def is_handed(self, key: int) -> bool:
        return self.fd >= 0 and os.pread(self.fd, 1, key) == _HANDED

    def close(self) -> None:
        """Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close
