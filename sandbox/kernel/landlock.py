"""Landlock: an allow-list of files for a process, which no later call can widen.

Blocks, on its own and without root: other files, the memory and environment of processes outside, ptrace, TCP (ABI 4),
and from ABI 6 signals and abstract sockets that leave the domain. It does not block UDP: seccomp does.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from typing import Final

from sandbox.kernel import linux

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
_MAKE_SOCK, _MAKE_CHAR, _MAKE_BLOCK = 1 << 9, 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
READ: Final = EXECUTE | READ_FILE | READ_DIR
TRUNCATE_ABI, SIGNAL_SCOPE_ABI = 3, 6


def abi() -> int:
    """The kernel's Landlock ABI; 0 when it has none."""
    try:
        return linux.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1), what="landlock_create_ruleset")
    except OSError:
        return 0


def _handled(version: int) -> int:
    bits = 13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16
    return (1 << bits) - 1


def build(*, read: Iterable[str], write: Iterable[str], list_only: Iterable[str] = (), network: bool = False) -> int:
    """Build a ruleset and return its descriptor: `read` paths may be read and executed, `write` paths also changed, and
    names below `list_only` listed; with `network`, TCP is allowed. Missing paths are skipped. Raises OSError where the
    kernel has no Landlock.
    """
    version = abi()
    handled = _handled(version)
    attr = struct.pack(
        "=QQQ", handled, 3 if version >= 4 and not network else 0, 3 if version >= SIGNAL_SCOPE_ABI else 0
    )
    size = 8 if version < 4 else 16 if version < SIGNAL_SCOPE_ABI else 24
    ruleset = linux.syscall(
        _CREATE, ctypes.c_char_p(attr), ctypes.c_size_t(size), ctypes.c_uint32(0), what="landlock_create_ruleset"
    )
    everything = handled & ~(_MAKE_SOCK | _MAKE_CHAR | _MAKE_BLOCK)
    for paths, access in ((read, READ), (write, everything), (list_only, READ_DIR)):
        for path in paths:
            _allow(ruleset, path, access & handled)
    return ruleset


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return
    try:
        if not os.path.isdir(path):
            access &= EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE | _IOCTL_DEV
        rule = ctypes.c_char_p(struct.pack("=Qi", access, fd))
        linux.syscall(_ADD_RULE, ruleset, 1, rule, ctypes.c_uint32(0), what=f"landlock_add_rule({path})")
    finally:
        os.close(fd)


def restrict(ruleset: int) -> None:
    """Confine the calling thread and its children permanently. Needs no_new_privs."""
    linux.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0), what="landlock_restrict_self")


def build_signal_scope() -> int:
    """A ruleset that leaves files alone, and keeps signals and abstract sockets within the domain. Needs ABI 6."""
    attr = ctypes.c_char_p(struct.pack("=QQQ", 0, 0, 3))
    return linux.syscall(_CREATE, attr, ctypes.c_size_t(24), ctypes.c_uint32(0), what="landlock_create_ruleset")
