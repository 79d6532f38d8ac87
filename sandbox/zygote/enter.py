"""Enter the jail once, by tier, and import what programs import, before or on the way.

A  namespaces, a root of its own          B  Landlock, a subreaper          C  a subreaper; isolates nothing
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import resource
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from sandbox.kernel import landlock, linux, procfs, seccomp, uids
from sandbox.kernel.clear import empty
from sandbox.pyharness import _runner
from sandbox.zygote import namespaces, readable_paths, watch
from sandbox.zygote.confine import Confinement, high
from sandbox.zygote.disk import Disk
from sandbox.zygote.library import Library

# What contest programs import. Pure Python where possible: every shared object that is mapped costs each fork 50 µs.
_WARM: Final = (
    "__future__ bisect collections copy dataclasses enum functools heapq itertools math operator random re "
    "string time typing"
)
_WORK_MODE: Final = 0o700
_ONLY_IN_A: Final = {
    "network": "a network of its own",
    "root_files": "a root file system of its own",
    "links": "links at its top",
}
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
_REQUEST: Final = struct.Struct("16sh14x")  # ifreq: name, flags
_BACKLOG: Final = 64
_BUFFERS: Final = ("/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/tcp_wmem")
_BUFFER_SIZES: Final = "4096 65536 65536"  # bytes: least, at first, at most; data there is no process's memory


@dataclass(frozen=True, slots=True)
class Entered:
    """The entered jail, for the process inside."""

    how: Confinement
    tribe: watch.Tribe
    renew: Callable[[], None]
    """Empties the work directory."""
    mechanisms: list[str]
    listener: int | None = None
    """Reports forbidden calls."""
    disk: Disk | None = None
    """Bounds the work directory, where nothing else does."""
    network: socket.socket | None = None
    """Socket that the owner is to serve, in a jail with a network."""


def packages_are_moved(packages: dict[str, list[str]]) -> bool:
    """Return whether tier A shows a package at another path, from which it must be imported."""
    return any(namespaces.path_in_jail(path) != path for path in _paths(packages))


def reach_library(tier: str, packages: dict[str, list[str]]) -> Library:
    """Import from now on in the way that programs do."""
    apart = tier == "B" and os.geteuid() == 0  # programs are another user's: they may not open what we may
    return Library(namespaces.interpreter_roots(), _paths(packages)) if apart else Library()


def warm_up(packages: dict[str, list[str]], library: Library, *, old: str = "") -> None:
    """Import what programs import.

    With `old`, from where the new root shows packages, and further files from the old root, which is there.
    """
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a fork takes only one thread along
    there = _paths(packages)
    found = (*map(namespaces.path_in_jail, there), *(old + path for path in there)) if old else there
    homes = list(dict.fromkeys(library.at(os.path.dirname(path)) for path in found))
    sys.path += homes
    _runner.prepare_interpreter(" ".join((_WARM, *packages)))
    for home in homes:
        sys.path.remove(home)
    sys.path.remove(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    gc.collect()
    gc.disable()
    gc.freeze()


def _paths(packages: dict[str, list[str]]) -> tuple[str, ...]:
    """Paths that a program must be able to read for these packages."""
    return tuple(path for paths in packages.values() for path in paths)


def enter_jail(
    tier: str,
    directory: str,
    parent: int,
    work_bytes: int,
    control: socket.socket,
    show: dict[str, Any],
    library: Library,
) -> Entered:
    """Move into the jail. Raises OSError, AssertionError where the machine cannot isolate so."""
    _leave_no_core()
    os.umask(0o077)
    if tier == "A":
        return _enter_namespaces(directory, parent, work_bytes, control, show, library)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    if tier == "B":
        return _enter_landlock(directory, work_bytes, show, library)
    work = _work_directory(directory, None)
    how = Confinement("C", work, None, None)
    mechanisms = ["rlimits", "subreaper"]
    return Entered(how, watch.searched_tribe(), lambda: _empty(work), mechanisms, disk=Disk(work, work_bytes))


def _leave_no_core() -> None:
    """Limit core dumps of all children: not 0 but 1, with which the kernel does not call the machine's crash handler
    either.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    least = 1 if most == resource.RLIM_INFINITY else min(1, most)
    resource.setrlimit(resource.RLIMIT_CORE, (least, least))


def _enter_namespaces(
    directory: str, parent: int, work_bytes: int, control: socket.socket, show: dict[str, Any], library: Library
) -> Entered:
    root = os.path.join(directory, "root")
    os.mkdir(root, 0o700)
    pid = namespaces.enter_namespaces()
    if pid:
        control.close()
        linux.die_with_parent(parent)  # once more: the new user namespace cleared it
        os.waitpid(pid, 0)
        os._exit(0)
    packages, root_files = show["packages"], show["root_files"]
    listening = listen_on_loopback() if show["network"] else None
    late = (lambda: warm_up(packages, library, old=namespaces.OLD)) if packages_are_moved(packages) else None
    namespaces.build_root(
        root,
        work_bytes=work_bytes,
        tools=show["roots"],
        packages=_paths(packages),
        shared=show["shared"],
        between=late,
        root_files=root_files,
        links=show["links"],
    )
    mechanisms = ["user", "pid", "mount", "ipc", "uts", "net", "read-only root", "private tmpfs", "seccomp"]
    mechanisms += ["scattered pids"] * procfs.scattered()
    mechanisms += ["own loopback"] * (listening is not None)
    ruleset = None
    if landlock.abi():
        further = ("/proc", *show["roots"], *map(namespaces.path_in_jail, _paths(packages)))
        write = ("/box", "/dev")
        ruleset = _allow_files(further, write=write, network=show["network"], everything=root_files is not None)
        mechanisms.append(f"landlock {landlock.abi()}")
    spare = ("mount", "umount2")  # ours, to renew the work directory; a program lacks the capability
    listener = _filter_calls(*spare, *(seccomp.NETWORK_CALLS if show["network"] else ()))
    how = Confinement("A", namespaces.WORK, namespaces.PROGRAM_ID, ruleset, network=show["network"])

    def renew() -> None:
        linux.umount(namespaces.WORK)
        namespaces.mount_work(work_bytes)

    return Entered(how, watch.namespace_tribe(), renew, mechanisms, listener, network=listening)


def _enter_landlock(directory: str, work_bytes: int, show: dict[str, Any], library: Library) -> Entered:
    version = landlock.abi()
    if not version:
        raise OSError(errno.ENOSYS, "no Landlock in this kernel")
    for name in _ONLY_IN_A:
        if show[name]:
            raise OSError(errno.EOPNOTSUPP, f"a jail with {_ONLY_IN_A[name]} needs namespaces, which tier A has")
    uid = uids.claim_uid()
    if os.geteuid() == 0 and uid is None:
        raise PermissionError("root without a uid for programs that no other jail has")
    if uid is None:
        _scope_signals(version)
    work = _work_directory(directory, uid)
    tools = [*show["roots"], *([show["shared"]] if show["shared"] else [])]
    ruleset = _allow_files((*_paths(show["packages"]), *tools), write=(work, *namespaces.DEVICES))
    closed = () if uid is None else tuple(path for path in tools if not uids.may_enter(path))
    listener = _filter_calls()
    frozen = seccomp.frozen_metadata()  # in tier A the work directory is the one place where a file can be changed
    how = Confinement("B", work, uid, ruleset, closed=closed, library=library.lowest, frozen=frozen)
    tribe = watch.uid_tribe(uid, uids.claim_uid()) if uid is not None else watch.domain_tribe()
    mechanisms = [f"landlock {version}", "seccomp", "subreaper"] + ["own uid"] * (uid is not None)
    return Entered(how, tribe, lambda: _empty(work), mechanisms, listener, Disk(work, work_bytes))


def _allow_files(
    further: Sequence[str], *, write: Sequence[str], network: bool = False, everything: bool = False
) -> int:
    """Build the Landlock ruleset of a program, which reads the system, the interpreter, and `further` paths; or
    `everything` that its root shows.
    """
    read = ("/",) if everything else (*readable_paths.system(), *readable_paths.interpreter(), *further)
    listed = readable_paths.listable_directories()
    return high(landlock.build(read=read, write=write, list_only=listed, network=network))


def _filter_calls(*spare: str) -> int | None:
    """Load the filter; returns the descriptor that reports forbidden calls, if there is one."""
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    listener = seccomp.install_filter(spare=spare, report=True)
    return None if listener is None else high(listener)


def _scope_signals(version: int) -> None:
    """Enter a Landlock domain, beyond which neither kill(-1) of this process nor of a program can reach."""
    if version < landlock.SIGNAL_SCOPE_ABI:
        raise OSError(errno.ENOSYS, f"Landlock ABI {version} cannot scope signals, and there is no second uid")
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(landlock.build_signal_scope())
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    raise AssertionError("a signal left the Landlock domain")


def _work_directory(directory: str, uid: int | None) -> str:
    work = os.path.join(directory, "work")
    os.mkdir(work, _WORK_MODE)
    if uid is not None:
        os.chmod(directory, 0o711)
        os.chown(work, uid, uid)
    return work


def _empty(work: str) -> None:
    empty(work)
    os.chmod(work, _WORK_MODE)
    os.utime(work, (0, 0))


def listen_on_loopback() -> socket.socket:
    """Bring the loopback interface of this network namespace up, and listen there. Raises OSError.

    The socket is for the jail's owner, who serves it from outside: a process that connects from inside reaches the
    owner, and there is nothing else to reach. No packet leaves the namespace, so nothing has to forward any.
    """
    for path in _BUFFERS:
        with suppress(OSError), open(path, "w", encoding="ascii") as file:  # a container may show it read-only
            file.write(_BUFFER_SIZES)
    with ExitStack() as undo:
        listener = undo.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        _, flags = _REQUEST.unpack(fcntl.ioctl(listener, _GET_FLAGS, _REQUEST.pack(b"lo", 0)))
        fcntl.ioctl(listener, _SET_FLAGS, _REQUEST.pack(b"lo", flags | _UP))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(_BACKLOG)
        undo.pop_all()
    return listener
