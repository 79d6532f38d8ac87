"""Provide what `multiprocessing` needs and a jail lacks: sockets, and in tier B /dev/shm for named semaphores.

    forkserver    listens on a socket: its processes are started as by `spawn`
    semaphores    are in memory that processes share by fork, where they can have no name; then `spawn` forks as well,
                  and so where a program cannot execute the interpreter

Standard: what `multiprocessing` asks of `_multiprocessing.SemLock`.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import importlib
import os
import sys
import time
from typing import Any, Final

_RECURSIVE: Final = 0
_SEMAPHORE_BYTES: Final = 64
_libc: Final = ctypes.CDLL(None, use_errno=True)


class _Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]


def support_processes() -> None:
    """Replace what is not available."""
    from multiprocessing import context, heap

    named = importlib.import_module("_multiprocessing")
    start = context.SpawnProcess if os.access(sys.executable, os.X_OK) else context.ForkProcess
    try:
        named.SemLock(1, 1, 1, f"/{os.getpid()}-{time.monotonic_ns()}", True)
    except OSError:
        named.SemLock = SharedLock  # type: ignore[attr-defined]
        heap.Arena._dir_candidates = []  # type: ignore[attr-defined]
        start = context.ForkProcess
    for process in (context.SpawnProcess, context.ForkServerProcess):
        process._Popen = staticmethod(start._Popen)  # type: ignore[assignment, method-assign]


class SharedLock:
    """A lock, recursive lock or semaphore in shared memory."""

    SEM_VALUE_MAX = (1 << 31) - 1
    handle, name = 0, None

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        self.kind, self.maxvalue = kind, maxvalue
        self._memory = importlib.import_module("mmap").mmap(-1, _SEMAPHORE_BYTES)
        self._cell = ctypes.c_char.from_buffer(self._memory)
        self._at = ctypes.c_void_p(ctypes.addressof(self._cell))
        self._depth = self._owner = 0
        if _libc.sem_init(self._at, 1, ctypes.c_uint(value)) != 0:
            raise OSError(ctypes.get_errno(), "sem_init")

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        if self.kind == _RECURSIVE and self._is_mine():
            self._depth += 1
            return True
        if not self._wait(block, timeout):
            return False
        self._depth += 1
        self._owner = _thread.get_ident()
        return True

    def _wait(self, block: bool, timeout: float | None) -> bool:
        until = _Time()
        if timeout is not None:
            s, part = divmod(time.time() + max(0.0, timeout), 1)
            until = _Time(int(s), int(part * 1e9))
        while True:
            if not block:
                failed = _libc.sem_trywait(self._at)
            elif timeout is None:
                failed = _libc.sem_wait(self._at)
            else:
                failed = _libc.sem_timedwait(self._at, ctypes.byref(until))
            if not failed:
                return True
            if ctypes.get_errno() in (errno.EAGAIN, errno.ETIMEDOUT):
                return False
            if ctypes.get_errno() != errno.EINTR:
                raise OSError(ctypes.get_errno(), "sem_wait")

    def release(self) -> None:
        if self.kind == _RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._depth > 1:
                self._depth -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        self._depth -= 1
        _libc.sem_post(self._at)

    __enter__ = acquire

    def __exit__(self, *_: Any) -> None:
        self.release()

    def _count(self) -> int:
        return self._depth

    def _is_mine(self) -> bool:
        return self._depth > 0 and self._owner == _thread.get_ident()

    def _get_value(self) -> int:
        value = ctypes.c_int()
        _libc.sem_getvalue(self._at, ctypes.byref(value))
        return value.value

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._depth = 0
