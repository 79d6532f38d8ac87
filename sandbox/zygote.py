"""The process inside the jail that runs programs: warm, trusted, pid 1 in tier A. It runs no program's code itself.

consumes  run requests from the judge, with descriptors for all data; produces one Outcome per request
waits for the control socket, or for the run in hand; woken by either, and dies when the socket closes

Started by exec with a clean environment; enters its jail once; then forks a child per run, which confines itself
(`confine`) and becomes the Python harness or a native program, while we watch (`watch`).
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import gc
import json
import os
import socket
import stat
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from sandbox import _runner, landlock, linux, namespaces, proof, seccomp, watch
from sandbox.confine import HIGH, Confinement, confine

Request = dict[str, Any]

MESSAGE_MAX: Final = 128 << 10
# What contest programs import. Pure Python where possible: every shared object that is mapped costs each fork 50 µs.
_WARM: Final = (
    "__future__ bisect collections copy dataclasses enum functools heapq itertools math operator random re "
    "string time typing"
)


def main() -> None:
    """argv: control descriptor, tier, jail directory, parent pid, bytes of the work directory, what more to show."""
    fd, tier, directory, parent, work_bytes, show = sys.argv[1:]
    control = socket.socket(fileno=int(fd))
    linux.die_with_parent(int(parent))
    _warm_up()
    try:
        worker = _enter(tier, directory, int(parent), int(work_bytes), control, json.loads(show))
        worker.prove()
    except (OSError, AssertionError) as error:
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    control.send(json.dumps({"tier": tier, "mechanisms": worker.mechanisms}).encode())
    worker.serve()


def _warm_up() -> None:
    for name in _WARM.split():
        __import__(name)
    sys.path.remove(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    gc.collect()
    gc.disable()
    gc.freeze()


def _enter(
    tier: str, directory: str, parent: int, work_bytes: int, control: socket.socket, show: dict[str, Any]
) -> Worker:
    if tier == "A":
        return _enter_namespaces(directory, parent, work_bytes, control, show)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    return _enter_landlock(directory, control, show) if tier == "B" else _enter_nothing(directory, control)


def _enter_namespaces(
    directory: str, parent: int, work_bytes: int, control: socket.socket, show: dict[str, Any]
) -> Worker:
    root = os.path.join(directory, "root")
    os.mkdir(root, 0o700)
    pid = namespaces.enter()
    if pid:
        control.close()
        linux.die_with_parent(parent)  # once more: the new user namespace cleared it
        os.waitpid(pid, 0)
        os._exit(0)
    namespaces.build_root(root, work_bytes=work_bytes, tools=show["roots"], shared=show["shared"])
    mechanisms = ["user", "pid", "mount", "ipc", "uts", "net", "read-only root", "private tmpfs", "seccomp"]
    ruleset = None
    if landlock.abi():
        ruleset = _high(landlock.build(read=("/",), write=("/box", "/dev")))
        mechanisms.append(f"landlock {landlock.abi()}")
    os.umask(0o077)
    _filter_calls("mount", "umount2")  # ours, to renew the work directory; a program has no capability for them
    how = Confinement("A", namespaces.WORK, namespaces.PROGRAM_ID, ruleset)

    def renew() -> None:
        linux.umount(namespaces.WORK)
        namespaces.mount_work(work_bytes)

    return Worker(control, how, watch.namespace_tribe(), renew, mechanisms)


def _enter_landlock(directory: str, control: socket.socket, show: dict[str, Any]) -> Worker:
    version = landlock.abi()
    uid = namespaces.pool_id()
    if not version:
        raise OSError(errno.ENOSYS, "no Landlock in this kernel")
    if os.geteuid() == 0 and uid is None:
        raise PermissionError("root without a second uid to give to programs")
    if uid is None:
        _scope_signals(version)
    work = _work_directory(directory, uid)
    seen = (
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib64",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        "/etc/localtime",
    )
    devices = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
    own = namespaces.interpreter_roots()
    tools = [*show["roots"], *([show["shared"]] if show["shared"] else [])]
    ruleset = _high(landlock.build(read=(*seen, *own, *tools), write=(work, *devices)))
    past, tools_past = (uid is not None and not _readable_by_all(paths) for paths in (own, tools))
    _filter_calls()
    how = Confinement("B", work, uid, ruleset, read_past_permissions=past, tools_past_permissions=tools_past)
    tribe = watch.uid_tribe(uid) if uid is not None else watch.domain_tribe()
    mechanisms = [f"landlock {version}", "seccomp", "subreaper"] + ["own uid"] * (uid is not None)
    return Worker(control, how, tribe, lambda: _empty(work), mechanisms)


def _enter_nothing(directory: str, control: socket.socket) -> Worker:
    work = _work_directory(directory, None)
    how = Confinement("C", work, None, None)
    return Worker(control, how, watch.searched_tribe(), lambda: _empty(work), ["rlimits", "subreaper"])


def _filter_calls(*spare: str) -> None:
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(spare=spare)


def _scope_signals(version: int) -> None:
    """Enter a Landlock domain of our own, so that neither our kill(-1) nor a program's can reach beyond it."""
    if version < landlock.SIGNAL_SCOPE_ABI:
        raise OSError(errno.ENOSYS, f"Landlock ABI {version} cannot scope signals, and there is no second uid")
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(landlock.build_signal_scope())
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    raise AssertionError("a signal left the Landlock domain")


def _readable_by_all(paths: Iterable[str]) -> bool:
    for path in paths:
        while path != "/":
            if not os.stat(path).st_mode & stat.S_IXOTH:
                return False
            path = os.path.dirname(path)
    return True


def _work_directory(directory: str, uid: int | None) -> str:
    work = os.path.join(directory, "work")
    os.mkdir(work, 0o700)
    if uid is not None:
        os.chmod(directory, 0o711)
        os.chown(work, uid, uid)
    return work


def _empty(work: str) -> None:
    """Remove all that a program left in `work`, however deep or locked."""
    for entry in os.scandir(work):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
            continue
        for argv in (["/bin/chmod", "-R", "u+rwX", entry.path], ["/bin/rm", "-rf", entry.path]):
            status = os.waitpid(os.posix_spawn(argv[0], argv, {}), 0)[1]
        if status:
            raise OSError(errno.ENOTEMPTY, f"cannot empty {work}")


def _high(fd: int) -> int:
    """The same descriptor out of the range that a child's own descriptors take."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(fd)
    return high


class Worker:
    """Runs requests one after the other in the jail it was made for."""

    def __init__(
        self,
        control: socket.socket,
        how: Confinement,
        tribe: watch.Tribe,
        renew: Callable[[], None],
        mechanisms: list[str],
    ) -> None:
        self.control = control
        self.how = how
        self.tribe = tribe
        self.renew = renew
        self.mechanisms = mechanisms
        if how.uid is not None and os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(how.uid, how.uid, how.uid)
        linux.die_with_parent()  # again, for every change of identity clears it
        os.environ.clear()
        os.environ.update(_environment(how.work))

    def prove(self) -> None:
        """Run one child that tries to break out. Raises AssertionError naming what was open."""
        if self.how.tier == "C":
            return
        limits = {
            "cpu_s": 5,
            "wall_s": 10,
            "memory_bytes": 512 << 20,
            "stack_bytes": 8 << 20,
            "output_bytes": 1 << 20,
        }
        limits |= {"headroom_bytes": 64 << 20, "address_space": True}
        limits |= {"file_bytes": 1 << 20, "processes": 16, "open_files": 64}
        request: Request = {"mode": "probe", "limits": limits, "outputs": [], "files": [], "collect": None}
        reply, fds = self.run(request, [os.open("/dev/null", os.O_RDWR)] * 5)
        assert not fds
        assert not reply["error"], reply["error"]
        assert reply["exit_code"] == 0, f"the proof of confinement ended with {reply}"

    def serve(self) -> None:
        """Answer requests until the control socket closes."""
        while True:
            data, fds, _, _ = socket.recv_fds(self.control, MESSAGE_MAX, 32, socket.MSG_CMSG_CLOEXEC)
            if not data:
                return
            request = json.loads(data)
            if request["mode"] == "cancel":
                continue  # the run it was meant for has ended
            try:
                reply, out = self.run(request, fds)
            except watch.OwnerGone:
                return
            finally:
                for fd in fds:
                    os.close(fd)
            socket.send_fds(self.control, [json.dumps(reply).encode()], out)
            for fd in out:
                os.close(fd)

    def run(self, request: Request, fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        """One run, from files placed to nothing left. The reply's `error` is our fault, never the program's."""
        for name, index in request["files"]:
            self._place(name, fds[index])
        complaint, voice = os.pipe()
        child = os.fork()
        if child == 0:
            _become(request, fds, self.how, voice)
        os.close(voice)
        try:
            outputs = [fds[index] for index in request["outputs"]]
            outcome = watch.watch(child, request["limits"], outputs, self.control, self.tribe)
            error = os.read(complaint, 4096).decode(errors="replace")
        finally:
            os.close(complaint)
        out = self._collect(request["collect"]) if outcome.exit_code == 0 else []
        if any(os.scandir(self.how.work)):
            self.renew()
        return {**dataclasses.asdict(outcome), "error": error}, out

    def _place(self, name: str, source: int) -> None:
        target = os.open(f"{self.how.work}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.fchmod(target, 0o644)
            offset, size = 0, os.fstat(source).st_size
            while offset < size:
                offset += os.sendfile(target, source, offset, size - offset)
        finally:
            os.close(target)

    def _collect(self, name: str | None) -> list[int]:
        """A regular file that the run made, as a descriptor; no link, no device, no pipe."""
        if name is None:
            return []
        try:
            fd = os.open(f"{self.how.work}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return []
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return [fd]
        os.close(fd)
        return []


def _environment(work: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": work, "TMPDIR": work, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}


def _become(request: Request, fds: list[int], how: Confinement, voice: int) -> NoReturn:
    """In the child: confine, then turn into the program. Whatever fails before that is told to `voice`."""
    try:
        voice = _high(voice)
        native = request["mode"] == "exec"
        program = _high(fds[5]) if native and request["program"] is not None else -1
        confine(how, request["limits"], fds[:5], native=native, with_tools=native and request["with_tools"])
        if request["mode"] == "probe":
            proof.try_to_escape(how.tier)
            os._exit(0)
        if native:
            os.closerange(5 if request["harness"] else 3, HIGH)
            environment = {**os.environ, **dict(request["environment"])}
            os.execve(program if program >= 0 else request["argv"][0], request["argv"], environment)
        os.closerange(5, 1 << 20)
        gc.enable()
    except BaseException as error:
        os.write(voice, f"{type(error).__name__}: {error}".encode()[:4000])
        os._exit(126)
    _runner.run()
