"""Linux calls that the standard library of Python 3.11 lacks, through ctypes; each raises OSError with its own name.
And anonymous memory as files: data crosses the jail's boundary without a pipe that one side could block.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
from contextlib import ExitStack
from typing import Final

MACHINE: Final = os.uname().machine
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_prctl = _libc["prctl"]  # a function of its own: given its types, it converts whole numbers fast
_prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
_bare_prctl = ctypes.PyDLL(None)["prctl"]  # keeps no errno, lock or types, for which every fork would pay

CLONE_PARENT = 0x00008000
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP = 0x02000000
NAMESPACE_FLAGS: Final = (
    CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
)

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
MS_MGC_VALUE, MS_MGC_MASK = 0xC0ED0000, 0xFFFF0000  # the kernel ignores it: our own mounts are recognised by it

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER = 8, 22, 38, 36
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2

_NUMBERS: Final = {"x86_64": {"pivot_root": 155, "capset": 126}, "aarch64": {"pivot_root": 41, "capset": 91}}
_MOUNT_SETATTR: Final = 442
_RIGHTS: Final = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SEALED: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


def number(name: str) -> int:
    """A syscall's number on this machine; OSError(ENOSYS) on one that has no table here."""
    try:
        return _NUMBERS[MACHINE][name]
    except KeyError:
        raise OSError(38, f"no system-call table for {MACHINE}") from None


def checked_call(result: int, what: str) -> int:
    if result == -1:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")
    return result


def syscall(nr: int, *args: object, what: str) -> int:
    return checked_call(_libc.syscall(ctypes.c_long(nr), *args), what)


def prctl(option: int, arg: int = 0, second: int = 0) -> None:
    checked_call(_prctl(option, arg, second, 0, 0), f"prctl({option})")


def set_seccomp(program: ctypes.Structure) -> None:
    """Install a BPF filter (SECCOMP_MODE_FILTER) on the calling thread."""
    checked_call(_libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(program), 0, 0), "prctl(PR_SET_SECCOMP)")


def unshare(flags: int) -> None:
    checked_call(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def mount(source: str, target: str, fstype: str | None = None, flags: int = 0, data: str | None = None) -> None:
    raw = [None if text is None else text.encode() for text in (source, target, fstype)]
    tail = None if data is None else data.encode()
    checked_call(_libc.mount(*raw, ctypes.c_ulong(flags), tail), f"mount({source} on {target})")


def umount(target: str) -> None:
    checked_call(_libc.umount2(target.encode(), MNT_DETACH), f"umount({target})")


def mount_read_only(target: str, *, attributes: int, recursive: bool = True) -> None:
    """mount_setattr(2): MOUNT_ATTR_* (RDONLY 1, NOSUID 2, NODEV 4, NOEXEC 8) added to a mount and those below it."""
    attr = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    raw = ctypes.c_char_p(target.encode())
    size = ctypes.c_size_t(32)
    syscall(_MOUNT_SETATTR, _AT_FDCWD, raw, flags, attr, size, what=f"mount_setattr({target})")


def pivot_root(new: str, old: str) -> None:
    args = (ctypes.c_char_p(new.encode()), ctypes.c_char_p(old.encode()))
    syscall(number("pivot_root"), *args, what="pivot_root")


def set_capabilities(mask: int, *, through_exec: bool = False) -> None:
    """Set the permitted and effective capabilities to `mask`; programs inherit them only with `through_exec`."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    kept = (low, high) if through_exec else (0, 0)
    data = (ctypes.c_uint32 * 6)(low, low, kept[0], high, high, kept[1])
    syscall(number("capset"), header, data, what="capset")
    if through_exec:
        for bit in range(mask.bit_length()):
            if mask >> bit & 1:
                prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, bit)


def recv_fds(sock: socket.SocketType, size: int, fds_max: int) -> tuple[bytes, list[int]]:
    """One message with its descriptors, which close themselves on exec: `socket.recv_fds` of 3.11 drops its flags."""
    return recv_fds_into(sock, bytearray(size), fds_max)


def recv_fds_into(sock: socket.SocketType, buffer: bytearray, fds_max: int) -> tuple[bytes, list[int]]:
    """Receive by way of `buffer`, whose size is the largest message: for frequent, mostly small messages."""
    size, ancillary, _, _ = sock.recvmsg_into((buffer,), socket.CMSG_SPACE(fds_max * 4), socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, content in ancillary:
        if (level, kind) == _RIGHTS:
            fds += memoryview(content[: len(content) & -4]).cast("i")
    return bytes(memoryview(buffer)[:size]), fds


def let_watch() -> None:
    """Stay readable for a watcher after a change of uid."""
    if _bare_prctl(PR_SET_DUMPABLE, 1):
        raise OSError(22, "prctl(PR_SET_DUMPABLE)")


def die_with_parent(parent: int | None = None) -> None:
    """SIGKILL for this process when its parent dies. With `parent`, exit at once if it is dead already."""
    if _bare_prctl(PR_SET_PDEATHSIG, 9):
        raise OSError(22, "prctl(PR_SET_PDEATHSIG)")
    if parent is not None and os.getppid() != parent:
        os._exit(125)


def make_memfd(name: str, content: bytes = b"", *, seal: bool = False) -> int:
    """Create anonymous memory as a file. Sealed, no process can change its content, and only its owner its times."""
    with ExitStack() as undo:
        undo.callback(os.close, fd := new_memfd(name))
        written = 0
        while written < len(content):  # without moving the place where a program begins to read
            written += os.pwrite(fd, memoryview(content)[written:], written)
        if seal:
            os.fchmod(fd, 0o555)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALED if seal else fcntl.F_SEAL_SEAL)
        undo.pop_all()
    return fd


def new_memfd(name: str) -> int:
    """Create an empty one, to be written and then sealed."""
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal_memfd(fd: int) -> None:
    """Seal the content against changes. Does nothing when it is sealed already."""
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) != _SEALED:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALED)


def read_all(fd: int, cap: int) -> bytes:
    """Read up to `cap` bytes; a longer stream was an output violation already."""
    size = min(os.fstat(fd).st_size, cap)
    chunks, offset = [], 0
    while offset < size and (chunk := os.pread(fd, size - offset, offset)):
        chunks.append(chunk)
        offset += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
