"""The environment of tier A: its own user, pid, mount, ipc, uts and network namespaces, and a read-only root with
tools only.

    /usr /bin /lib*, the interpreter's prefix,
    toolchains elsewhere, /box/shared              bind mounts, read-only
    packages                                       the same; at /box/packages where their own path is one of these
    /dev                                           null zero full random urandom, links to the standard streams
    /proc                                          this pid namespace only
    /box/work                                      tmpfs, the only place to write; /tmp and /dev/shm lead to it

`enter_namespaces` runs in a process of its own and returns twice: in the waiting parent, and as pid 1 of the new
namespace.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sandbox.kernel import linux, procfs, uids
from sandbox.zygote.confine import high
from sandbox.zygote.disk import files_max

PROGRAM_ID: Final = 1000  # uid and gid that a program sees itself as
WORK: Final = "/box/work"
SHARED: Final = "/box/shared"
OLD: Final = "/old"
_PACKAGES: Final = "/box/packages"
_OURS: Final = ("/tmp", "/dev", "/proc", "/box", OLD)  # paths where the jail has its own content
_TOOLS: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")
_ETC: Final = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")
DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SPACES: Final = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWNET


def enter_namespaces() -> int:
    """Move into new namespaces. Returns the pid of pid 1 to the caller, and 0 to pid 1 itself."""
    uid, gid = os.geteuid(), os.getegid()
    pool = uids.claim_uid()
    if uid == 0 and pool is None:
        raise PermissionError("root without a uid for programs that no other jail has")
    _unshare_user(uid, gid, pool)
    linux.unshare(_SPACES)
    return os.fork()


def _unshare_user(uid: int, gid: int, pool: int | None) -> None:
    if pool is None:
        linux.unshare(linux.CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{PROGRAM_ID} {uid} 1")
        _write("/proc/self/gid_map", f"{PROGRAM_ID} {gid} 1")
        return
    # A map of two ids must be written from the parent namespace, so a helper stays behind and writes it.
    target = os.getpid()
    ready, go = os.pipe()
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            os.close(go)
            if os.read(ready, 1):
                for name in ("uid_map", "gid_map"):
                    _write(f"/proc/{target}/{name}", f"0 0 1\n{PROGRAM_ID} {pool} 1\n")
                code = 0
        finally:
            os._exit(code)
    os.close(ready)
    try:
        linux.unshare(linux.CLONE_NEWUSER)
        os.write(go, b"!")
    finally:
        os.close(go)
        status = os.waitpid(helper, 0)[1]
    if status:
        raise PermissionError(f"cannot map uid {pool} into a user namespace")
    os.setgroups([])


def build_root(
    root: str,
    *,
    work_bytes: int,
    tools: Sequence[str] = (),
    packages: Sequence[str] = (),
    shared: str | None = None,
    between: Callable[[], None] | None = None,
    root_files: str | None = None,
    links: Mapping[str, str] | None = None,
) -> None:
    """Build, as pid 1, the new root under the directory `root`, make it `/`, and detach the old one.

    `tools` appear at their own paths, `packages` at their `path_in_jail`, `shared` at SHARED. `between` is called when
    the new root is there, and the old one still visible at OLD. What `root_files` holds is shown instead of the
    machine's own tools and the interpreter. `links`: names at the top that lead into the work directory.
    """
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,nr_inodes=512,mode=755")
    before = os.umask(0o022)
    for path, target in (links or {}).items():
        os.symlink(f"{WORK}/{target}", root + path)
    if root_files is not None:
        _show_root_files(root, root_files)
        tools = [path for path in _outermost(tools) if not os.path.lexists(root + path)]
    for path in tools if root_files is not None else (*_TOOLS, *_ETC, *_outermost((*interpreter_roots(), *tools))):
        _show(root, path)
    for path in packages:
        if (shown := path_in_jail(path)) == path:
            _show(root, path)
        else:
            _bind_directory(path, root + shown)
    if shared is not None:
        _bind_directory(shared, root + SHARED)
    _make_dev(root)
    for path in ("/proc", OLD, "/box", WORK):
        os.makedirs(root + path, exist_ok=True)
    if not os.path.isdir(f"{root}/tmp"):  # something below it is shown
        os.symlink(WORK, f"{root}/tmp")
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    view = _keepers_view(f"{root}/proc", flags)
    linux.mount("proc", f"{root}/proc", "proc", flags, "subset=pid,hidepid=2")
    linux.pivot_root(root, root + OLD)
    os.chdir("/")
    if between is not None:
        between()
    linux.umount(OLD)
    os.rmdir(OLD)
    linux.mount_read_only("/", attributes=1 | 2, recursive=False)
    mount_work(work_bytes)
    os.umask(before)
    socket.sethostname("sandbox")
    procfs.look_through(*view)


def _keepers_view(target: str, flags: int) -> tuple[int, int]:
    """A /proc of all processes of the jail, without a path: for `procfs`."""
    linux.mount("proc", target, "proc", flags, "")
    place, last_pid = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), procfs.open_last_pid(target)
    linux.umount(target)
    return high(place), high(last_pid) if last_pid >= 0 else last_pid


def mount_work(work_bytes: int) -> None:
    """Mount a new, empty work directory: a tmpfs of `work_bytes` and as many inodes as `files_max`."""
    data = f"size={work_bytes},nr_inodes={files_max(work_bytes)},mode=777,gid={PROGRAM_ID}"
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_MGC_VALUE  # the filter lets this mount pass, and no other
    linux.mount("tmpfs", WORK, "tmpfs", flags, data)


def interpreter_roots() -> tuple[str, ...]:
    """Return the directories of this interpreter's own files, without its virtual environment."""
    return tuple(dict.fromkeys((sys.base_prefix, sys.base_exec_prefix)))


def path_in_jail(path: str) -> str:
    """Return the path of a package's directory in the jail: its own, unless the jail has something else there."""
    hidden = any(path.startswith(f"{ours}/") for ours in _OURS)
    return f"{_PACKAGES}/{os.path.basename(path)}" if hidden else path


def _outermost(paths: Sequence[str]) -> list[str]:
    """Return the paths that are in no other one's directory."""
    return [path for path in dict.fromkeys(paths) if not any(path.startswith(f"{outer}/") for outer in paths)]


def _show(root: str, path: str) -> None:
    """Mount `path` read-only at the same path under `root`."""
    if any(path == tool or path.startswith(tool + "/") for tool in _TOOLS) and os.path.exists(root + path):
        return
    if os.path.islink(path):
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(os.readlink(path), root + path)
    elif os.path.isdir(path):
        _bind_directory(path, root + path)
    elif os.path.exists(path):
        _bind_file(path, root + path, attributes=1 | 2 | 4)


def _show_root_files(root: str, source: str) -> None:
    """Mount the content of `source` read-only at the top of `root`, but for what the jail has itself."""
    for name in sorted(os.listdir(source)):
        path = f"/{name}"
        if path in (*_OURS, "/sys") or os.path.lexists(root + path):
            continue
        if os.path.islink(source + path):
            os.symlink(os.readlink(source + path), root + path)
        elif os.path.isdir(source + path):
            _bind_directory(source + path, root + path)
        elif os.path.isfile(source + path):
            _bind_file(source + path, root + path, attributes=1 | 2 | 4)


def _bind_directory(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    linux.mount(source, target, flags=linux.MS_BIND | linux.MS_REC)
    linux.mount_read_only(target, attributes=1 | 2 | 4)


def _bind_file(source: str, target: str, *, attributes: int) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    linux.mount(source, target, flags=linux.MS_BIND)
    linux.mount_read_only(target, attributes=attributes)


def _make_dev(root: str) -> None:
    for path in DEVICES:
        _bind_file(path, root + path, attributes=1 | 2 | 8)  # their times are notes too
    for name, target in (("fd", "/proc/self/fd"), ("shm", WORK)):
        os.symlink(target, f"{root}/dev/{name}")
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{fd}", f"{root}/dev/{name}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
