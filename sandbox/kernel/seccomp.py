"""A seccomp filter: which system calls no judged program needs, and what each answers instead.

A deny-list, for it must serve many languages: everything that reaches other processes, the kernel's configuration, the
network or memory that no limit counts. `socketpair` stays, sockets go. Loading it costs the kernel a few hundred µs
(it tries every call against the filter), so the zygote loads it once and every program inherits it.

    reported  what no honest program calls: the kernel stops the caller and notifies the holder of the listener, who
              records the name and ends the run (SEC). Where the kernel has no listener, these answer EPERM.
    refused   what runtimes probe for and live without (io_uring, clone3, sockets, NUMA): an errno, and the run goes on
    feigned   what an honest program may call and does not depend on (sync; chmod where it would reach the user's own
              files): answered as done, and not done
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct
from collections.abc import Collection
from typing import Final

from sandbox.kernel import landlock, linux

_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_KILL, _TELL, _ERRNO, _ALLOW = 0x80000000, 0x7FC00000, 0x00050000, 0x7FFF0000
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _NEW_LISTENER, _NOTIF_RECV = 1, 1 << 3, 0xC0502100
_NOTICE: Final = struct.Struct("=QIIiI7Q")  # id pid flags | nr arch instruction_pointer args[6]

_Table = dict[str, tuple[int | None, int | None]]

# name: (x86_64, aarch64); None where the machine has no such call
_REPORTED: Final[_Table] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "userfaultfd": (323, 282), "bpf": (321, 280), "perf_event_open": (298, 241),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "unshare": (272, 97), "setns": (308, 268), "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
_EPERM: Final[_Table] = {
    "kcmp": (312, 272), "process_madvise": (440, 440), "process_mrelease": (448, 448), "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "personality": (135, 92), "name_to_handle_at": (303, 264), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "syslog": (103, 116),
    "vhangup": (153, 58), "modify_ldt": (154, None), "uselib": (134, None),
    "shmget": (29, 194), "shmctl": (31, 195), "shmat": (30, 196), "shmdt": (67, 197),
    "semget": (64, 190), "semctl": (66, 191), "semop": (65, 193), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgctl": (71, 187), "msgrcv": (70, 188), "msgsnd": (69, 189),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "get_mempolicy": (239, 236),
    # The binary of a program is one file for all its cases: what is written beside its content would go from one to the
    # next.
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "file_setattr": (469, 469), "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "statmount": (457, 457), "listmount": (458, 458), "lsm_set_self_attr": (460, 460), "open_tree_attr": (467, 467),
}  # fmt: skip
# A pair of datagram sockets could be connected anew, to a socket of the machine.
_EACCES: Final[_Table] = {"socket": (41, 198), "connect": (42, 203), "bind": (49, 200)}
# ENOSYS lets a libc fall back: clone3 to clone, whose flags a filter can read; memfd to a file, which a limit counts.
_ENOSYS: Final[_Table] = {
    "clone3": (435, 435), "memfd_create": (319, 279), "memfd_secret": (447, 447), "io_setup": (206, 0),
    "vmsplice": (278, 75),  # data that it puts in a pipe is no process's, and may be two megabytes for each page of it
}  # fmt: skip
_FEIGNED: Final[_Table] = {"sync": (162, 81), "syncfs": (306, 267)}
# Landlock does not see these: they reach every file that its uid owns, and times any that it may write.
_METADATA: Final[_Table] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip
_TRUNCATE: Final[_Table] = {"truncate": (76, 45)}
# Only for the caller itself, else EPERM: the zygote may have the program's uid, and must not be slowed or limited.
# name: (x86_64, aarch64, the argument that names a process, what the one before it must be)
_OWN: Final[dict[str, tuple[int, int, int, int | None]]] = {
    "prlimit64": (302, 261, 0, None), "sched_setscheduler": (144, 119, 0, None), "sched_setparam": (142, 118, 0, None),
    "sched_setattr": (314, 274, 0, None), "sched_setaffinity": (203, 122, 0, None),
    "setpriority": (141, 140, 1, 0), "ioprio_set": (251, 30, 1, 1),
}  # fmt: skip
# The zygote's clock would reveal how many runs it has had, and a timer by it would slow it. The errno is that of a
# missing process. A thread id names a thread of the caller, or is refused by the kernel.
_CLOCKS: Final[_Table] = {
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "timer_create": (222, 107),
}  # fmt: skip
_OF_A_PROCESS, _OF_ITSELF, _OF_A_THREAD = 0x80000000, 0xFFFFFFF8, 4
_STATX, _MOUNTS_SO_FAR = (332, 291), 0x4000
_CLONE: Final = (56, 220)
_IOCTL: Final = (16, 29)
_PRCTL, _FCNTL, _SOCKETPAIR = (157, 167), (72, 25), (53, 199)
_SETRLIMIT, _FALLOCATE = (160, 164), (285, 47)
_RLIMIT_CORE, _KEEP_SIZE, _SCHED_CORE = 4, 1, 62
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# Of terminals, pipes and sockets, and our own about the listener; all else is a file system's or a device's.
_STREAM_IOCTLS: Final = (0x5400, 0x8900, _NOTIF_RECV & 0xFF00)
_F_SETLEASE, _F_NOTIFY = 1024, 1026
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET = 1, 1, 5
_AF_INET, _AF_INET6, _SOCK_DGRAM = 2, 10, 2
_PROTOCOLS: Final = (0, 6, 17)  # the usual one, TCP, UDP
NETWORK_CALLS: Final = tuple(_EACCES)
"""Calls to spare in a network namespace of the program's own: then sockets of TCP and UDP can be made, no others."""
_NAMED: Final[_Table] = {**_REPORTED, "clone into a namespace": _CLONE, "ioctl on a terminal": _IOCTL}


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def _statement(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jt, jf, k)


def _load(offset: int) -> bytes:
    return _statement(0x20, offset)


def _return(action: int, error: int = 0) -> bytes:
    return _statement(0x06, action | error)


def _if_equal(value: int, then: bytes) -> bytes:
    """if A == value: then. `then` leaves A alone or returns."""
    return _statement(0x15, value, 0, len(then) // 8) + then


def _argument(index: int) -> int:
    """Offset of the low half of a call's argument."""
    return 16 + 8 * index


def install_filter(*, spare: Collection[str] = (), report: bool = False) -> int | None:
    """Filter the calling thread and its children permanently.

    `spare` names calls that the caller still needs. With `report`, returns the listener that `heard` reads: no filtered
    process may obtain it, and the caller itself must make none of the reported calls. Returns None where the kernel has
    no listener, which is no error. Needs no_new_privs. Raises OSError(ENOSYS) on a machine without a table here.
    """
    if report:
        try:
            program = _build(spare, _return(_TELL))
            number = _SECCOMP[linux.MACHINE]
            return linux.syscall(number, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program), what="seccomp")
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EBUSY):
                raise
    linux.set_seccomp(_build(spare, _return(_ERRNO, errno.EPERM)))
    return None


def heard(listener: int) -> str | None:
    """Return the name of the call in which a filtered process is stopped; None when it died meanwhile.

    The process stays stopped.
    """
    notice = bytearray(_NOTICE.size)
    try:
        fcntl.ioctl(listener, _NOTIF_RECV, notice)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    found = _NOTICE.unpack(notice)
    number, first = found[3], found[6]
    column = _column()
    if number == _CLONE[column] and first & linux.CLONE_PARENT:
        return "clone beside its parent"
    return {row[column]: name for name, row in _NAMED.items()}.get(number, f"system call {number}")


def frozen_metadata() -> ctypes.Structure:
    """Return a further filter, under which changes of mode, owner or time of a file report success and do nothing, and
    disk space is taken by writing only. For programs whose uid owns files outside the work directory, or can see files
    that anyone may write.
    """
    code = _head(_return(_ALLOW)) + _refuse(_METADATA, _return(_ERRNO))
    code += _refuse({"fallocate": _FALLOCATE}, _return(_ERRNO, errno.EOPNOTSUPP))  # what is not written is not counted
    code += _refuse({} if landlock.abi() >= landlock.TRUNCATE_ABI else _TRUNCATE, _return(_ERRNO, errno.EACCES))
    return _program(code + _return(_ALLOW))


def _column() -> int:
    if linux.MACHINE not in _ARCH:
        raise OSError(errno.ENOSYS, f"no system-call table for {linux.MACHINE}")
    return list(_ARCH).index(linux.MACHINE)


def _build(spare: Collection[str], report: bytes) -> _Program:
    code = _head(_return(_KILL)) + _refuse(_REPORTED, report, spare)
    for table, error in ((_EPERM, errno.EPERM), (_EACCES, errno.EACCES), (_ENOSYS, errno.ENOSYS), (_FEIGNED, 0)):
        code += _refuse(table, _return(_ERRNO, error), spare)
    return _program(code + _own_only() + _uncounted_runs() + _by_argument(spare, report) + _return(_ALLOW))


def _program(code: bytes) -> _Program:
    return _Program(len(code) // 8, code)


def _head(foreign: bytes) -> bytes:
    """Leaves the call's number in A; `foreign` answers the calls of another machine's tables."""
    code = _load(4) + _statement(0x15, _ARCH[linux.MACHINE], len(foreign) // 8, 0) + foreign + _load(0)
    if linux.MACHINE == "x86_64":  # the x32 table would walk around every number below
        code += _statement(0x35, 0x40000000, 0, len(foreign) // 8) + foreign
    return code


def _refuse(table: _Table, answer: bytes, spare: Collection[str] = ()) -> bytes:
    numbers = {name: row[_column()] for name, row in table.items() if name not in spare}
    return b"".join(_if_equal(number, answer) for number in numbers.values() if number is not None)


def _own_only() -> bytes:
    code, no, yes = b"", _return(_ERRNO, errno.EPERM), _return(_ALLOW)
    for name, (x86_64, aarch64, who, kind) in _OWN.items():
        own = _load(_argument(who)) + _if_equal(0, yes) + no
        if name == "prlimit64":
            core = _if_equal(_RLIMIT_CORE, _unless_null(2, _return(_ERRNO)))
            own = _load(_argument(who)) + _if_equal(0, _load(_argument(1)) + core + yes) + no
        if kind is not None:
            own = _load(_argument(who - 1)) + _if_equal(kind, own) + no
        code += _if_equal((x86_64, aarch64)[_column()], own)
    return code


def _uncounted_runs() -> bytes:
    """Block what would count earlier runs: clocks of other processes, and the running number of a mount."""
    yes, no = _return(_ALLOW), _return(_ERRNO, errno.EINVAL)
    own = _load(_argument(0)) + _statement(0x35, _OF_A_PROCESS, 1, 0) + yes + _statement(0x35, _OF_ITSELF, 0, 1) + yes
    own += _statement(0x45, _OF_A_THREAD, 0, 1) + yes + no
    code = _refuse(_CLOCKS, own)
    mask = _load(_argument(3)) + _statement(0x45, _MOUNTS_SO_FAR, 0, 1) + no + yes
    return code + _if_equal(_STATX[_column()], mask)


def _uncounted() -> bytes:
    """Block what would take memory out of the count, or start a crash handler of the machine."""
    column, yes, feigned = _column(), _return(_ALLOW), _return(_ERRNO)
    code = _if_equal(_SETRLIMIT[column], _load(_argument(0)) + _if_equal(_RLIMIT_CORE, feigned) + yes)
    size = _load(_argument(1)) + _statement(0x54, _KEEP_SIZE) + _if_equal(0, yes) + _return(_ERRNO, errno.EOPNOTSUPP)
    return code + _if_equal(_FALLOCATE[column], size)  # with it, memory beyond an output's end


def _unless_null(argument: int, then: bytes) -> bytes:
    """if the pointer is not null: then; else the call is allowed. `then` returns."""
    low, high = _load(_argument(argument)), _load(_argument(argument) + 4)
    yes = _return(_ALLOW)
    return low + _if_equal(0, high + _if_equal(0, yes)) + then


def _by_argument(spare: Collection[str], report: bytes) -> bytes:
    """Filter calls that are forbidden for some arguments only."""
    column, code = _column(), b""
    yes, no = _return(_ALLOW), _return(_ERRNO, errno.EPERM)
    if "mount" in spare:
        ours = _load(_argument(3)) + _statement(0x54, linux.MS_MGC_MASK) + _if_equal(linux.MS_MGC_VALUE, yes)
        code += _if_equal(_REPORTED["mount"][column] or 0, ours + report)
    flags = linux.NAMESPACE_FLAGS | linux.CLONE_PARENT  # a child of its parent's would end, and be counted, as the run
    code += _if_equal(_CLONE[column], _load(_argument(0)) + _statement(0x45, flags, 0, 1) + report + yes)
    command = _load(_argument(1))
    ioctl = command + _if_equal(_TIOCSTI, report) + _if_equal(_TIOCLINUX, report) + _statement(0x54, 0xFF00)
    ioctl += b"".join(_if_equal(kind, yes) for kind in _STREAM_IOCTLS)
    code += _if_equal(_IOCTL[column], ioctl + _return(_ERRNO, errno.ENOTTY))
    code += _if_equal(_FCNTL[column], command + _if_equal(_F_SETLEASE, no) + _if_equal(_F_NOTIFY, no) + yes)
    hidden = _load(_argument(1)) + _if_equal(1, yes) + no  # from the watcher, who reads what it maps
    prctl = _if_equal(linux.PR_SET_DUMPABLE, hidden) + _if_equal(_SCHED_CORE, no)  # which idles a neighbour's core
    code += _if_equal(_PRCTL[column], _load(_argument(0)) + prctl + yes)
    kinds = command + _statement(0x54, 0xF) + _if_equal(_SOCK_STREAM, yes) + _if_equal(_SOCK_SEQPACKET, yes)
    refused = _return(_ERRNO, errno.EACCES)
    code += _uncounted()
    if "socket" in spare:  # a path or a netlink address could lead out of the namespace, a protocol load a module
        protocols = _load(_argument(2)) + b"".join(_if_equal(known, yes) for known in _PROTOCOLS) + refused
        types = command + _statement(0x54, 0xF) + _if_equal(_SOCK_STREAM, protocols)
        types += _if_equal(_SOCK_DGRAM, protocols) + refused
        inet = _if_equal(_AF_INET, types) + _if_equal(_AF_INET6, types) + refused
        code += _if_equal(_EACCES["socket"][column] or 0, _load(_argument(0)) + inet)
    return code + _if_equal(_SOCKETPAIR[column], _load(_argument(0)) + _if_equal(_AF_UNIX, kinds + refused) + refused)
