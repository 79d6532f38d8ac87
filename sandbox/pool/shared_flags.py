"""Memory shared by pool, supervisor and workers: a byte per job that says whether its program was handed to a jail.

    worker ── hand ──▶ flags ◀── is_handed ── the supervisor when a worker has died, the pool when the supervisor has

It is read after a death, to know whether the program can have caused it.
"""

from __future__ import annotations

import os
from typing import Final

from sandbox.kernel import inherited
from sandbox.kernel.memfd import new_memfd

_HANDED: Final = b"\1"


class SharedFlags:
    """Flags by job id; with a descriptor, those of another process. Closed with the last reference."""

    def __init__(self, fd: int | None = None) -> None:
        """Raises OSError where there is no memory or no descriptor for it."""
        self.fd = -1
        self.fd = inherited.above_streams(new_memfd("flags")) if fd is None else fd

    def hand(self, key: int) -> None:
        """Mark the program as handed to a jail."""
        os.pwrite(self.fd, _HANDED, key)

    def take_back(self, key: int) -> None:
        """Mark the program as in no jail; it may be tried in another."""
        os.pwrite(self.fd, b"\0", key)

    def is_handed(self, key: int) -> bool:
        return self.fd >= 0 and os.pread(self.fd, 1, key) == _HANDED

    def close(self) -> None:
        """Safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close
