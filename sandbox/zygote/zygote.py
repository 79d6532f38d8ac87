"""The process inside the jail that runs programs: warm, trusted, pid 1 in tier A. It runs no program's code itself.

consumes  run requests from the judge, with descriptors for all data; produces one RunOutcome per request
waits for the control socket, or for the current run; woken by either, and dies when the socket closes

Started by exec with a clean environment; enters its jail once (`enter`); then forks a child per run, which confines
itself and becomes the program (`become_program`), while this process watches (`watch`). A program with many cases gets
a process that forks for it (`template`).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import time
from typing import Any, Final

from sandbox.errors import way_out
from sandbox.kernel import cgroup, linux
from sandbox.pyharness import _runner
from sandbox.zygote import files, guard, template, watch
from sandbox.zygote.become_program import ChildSetup, Forked, live
from sandbox.zygote.confine import HIGH, STREAMS, high
from sandbox.zygote.enter import Entered, enter_jail, packages_are_moved, reach_library, warm_up
from sandbox.zygote.inbox import AHEAD, Inbox, OwnerGone, Request
from sandbox.zygote.source import PlacedSource
from sandbox.zygote.watch import SHORTAGE

_OWN_BYTES: Final = 192 << 20  # of the zygote, of templates and spares, and of the outputs that are being read
_OWN_PROCESSES: Final = 10


def main() -> None:
    """argv: as `_keep` reads it."""
    live(_keep)


def _keep(_: list[Any]) -> None:
    """argv: control descriptor, tier, jail directory, parent pid, bytes of the work directory, what to show (JSON),
    owner. A directory that is "own", not "given", is removed by the guard if this process cannot.
    """
    fd, tier, directory, parent, work_bytes, more, whose = sys.argv[1:]
    show = json.loads(more)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # with a handler, it would be the one signal that reaches a pid 1
    control = socket.socket(fileno=int(fd))
    try:
        if whose == "own":
            parent = str(guard.stand_guard(directory, int(parent)))
        control = _move_up(control)
        _reserve()
        linux.die_with_parent(int(parent))
        group = None if tier == "C" else cgroup.join_new_cgroup(show["group"])
        library = reach_library(tier, show["packages"])
        if not (tier == "A" and packages_are_moved(show["packages"])):
            warm_up(show["packages"], library)
        entered = enter_jail(tier, directory, int(parent), int(work_bytes), control, show, library)
        loop = RequestLoop(control, entered, group, int(work_bytes))
        loop.prove()
    except TimeoutError as error:
        control.send(json.dumps([{"starved": str(error)}]).encode())
        return
    except (OSError, AssertionError, ImportError) as error:
        control.send(json.dumps([{"error": f"{type(error).__name__}: {error}{way_out(error)}"}]).encode())
        return
    ready = json.dumps([{"tier": tier, "mechanisms": loop.mechanisms, "ahead": loop.ahead}]).encode()
    if entered.network is None:
        control.send(ready)
    else:
        with entered.network as listening:  # the owner's alone from here on
            socket.send_fds(control, [ready], [listening.fileno()])
    loop.serve()


def _move_up(control: socket.socket) -> socket.socket:
    moved = socket.socket(fileno=fcntl.fcntl(control.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH))
    control.close()
    return moved


def _reserve() -> None:
    """Occupy the descriptors that a program gets, so that no received descriptor has one of their numbers."""
    fd = 0
    while fd < STREAMS:
        fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.close(fd)


class RequestLoop:
    """Runs requests one after the other in the jail that it has entered."""

    def __init__(self, control: socket.socket, entered: Entered, group: cgroup.Cgroup | None, work_bytes: int) -> None:
        """All runs are limited by `group`, whose memory includes the work directory, the outputs, and this process."""
        how = entered.how
        self.inbox = Inbox(control)
        self.watcher = watch.Watcher(self.inbox, entered.listener, entered.disk)
        self.mechanisms = entered.mechanisms + ["reported calls"] * (entered.listener is not None)
        self.group, self.spare_bytes = group, work_bytes + _OWN_BYTES
        if group is not None:
            self.mechanisms.append(f"cgroup v{group.version}")
            self.watcher.shared = group.usage
        if how.uid is not None and os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(how.uid, how.uid, how.uid)
        linux.die_with_parent()  # again, for every change of identity clears it
        environment = {"PATH": "/usr/bin:/bin", "HOME": how.work, "TMPDIR": how.work, "LANG": "C.UTF-8"}
        environment["OMP_NUM_THREADS"] = "1"
        os.environ.clear()
        os.environ.update(environment)
        self.complaint, error_fd = map(high, os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        self.setting = ChildSetup(how, environment, error_fd)
        self.starter = template.Starter(self.setting, entered.tribe)
        self.source = PlacedSource(how.work, entered.renew, keeps=how.uid is not None and os.geteuid() == 0)

    @property
    def ahead(self) -> int:
        """Runs that may wait here. A fork of ours would know whether any do, and so a program whether it is the last:
        without templates none may.
        """
        return AHEAD if self.starter.possible else 0

    def prove(self) -> None:
        """Run one child that tries to break out. Raises AssertionError that names what was possible, TimeoutError where
        the machine is too slow to tell.
        """
        if self.setting.how.tier == "C":
            return
        sizes = {"memory": 512, "stack": 8, "output": 1, "file": 1}
        limits = {"cpu_s": 5, "wall_s": 10, "processes": 16, "open_files": 64}
        limits |= {f"{name}_bytes": size << 20 for name, size in sizes.items()}
        request: Request = {"mode": "probe", "limits": limits, "outputs": [], "files": [], "series": (0, 0)}
        request |= {"collect": None, "gather": None, "fetch": (), "source": None, "keep": False}
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        reply, fds = self.run(request, [null] * STREAMS)
        os.close(null)
        assert not fds
        assert not reply["error"], reply["error"]
        if reply["cause"] in ("wall", "starved", SHORTAGE):
            raise TimeoutError(f"the proof of confinement came to no end: {reply['cause']}, {reply['wall_s']:.0f} s")
        if self.watcher.listener is not None:  # its last act is a forbidden call, which must be reported and be its end
            assert reply["cause"] == "security: unshare", f"a forbidden call was not reported: {reply}"
        else:
            assert reply["exit_code"] == 0, f"the proof of confinement ended with {reply}"

    def serve(self) -> None:
        """Answer requests until the control socket closes."""
        while True:
            try:
                request, fds = self.inbox.next()
                if request["mode"] == "forget":
                    self.starter.forget()
                    continue
                reply, out = self.run(request, fds)
            except OwnerGone:
                return
            except OSError as error:  # who runs here next would pay for it: say why, and end
                self.inbox.answer(_reply(watch.RunOutcome(), f"{type(error).__name__}: {error}"), [], hold=False)
                return
            self.inbox.answer(reply, out, hold=request["hold"] and reply["cause"] is None)
            for fd in (*fds, *out):
                os.close(fd)

    def run(self, request: Request, fds: list[int]) -> tuple[dict[str, Any], list[int]]:
        """Do one run, from writing its files to the removal of everything it left.

        The reply's `error` is a failure of the sandbox.
        """
        if "cancelled" in request:
            return _reply(watch.RunOutcome("cancelled")) | {"gathered": []}, []
        outcome = self._attempt(request, fds, self.starter.begin)
        if not outcome.ended or self._may_be_repeated(request, outcome):
            # Another process ended the template, or the run: that process also caused the complaint.
            self._complaint()
            if not request["keep"]:
                self.source.tidy()
            _rewind(fds[0], *(fds[index] for index in request["outputs"]))
            outcome = self._attempt(request, fds, self.starter.fork)
        work, gather = self.setting.how.work, request["gather"]
        out = files.collect(work, request["collect"]) if outcome.exit_code == 0 else []
        found = [] if gather is None else files.gather(work, gather, fds[request["gathered"]])
        if request["fetch"]:
            found = files.fetch(work, request["fetch"], fds[request["gathered"]])
        if request["keep"] and self.watcher.disk is not None and self.watcher.disk.is_full():
            outcome.cause, request = outcome.cause or "disk", {**request, "keep": False}  # or it would grow run by run
        if not request["keep"]:
            self.source.tidy()
        complaint = "" if outcome.exit_code == 0 else self._complaint()  # who complains does not end well
        return _reply(outcome, complaint) | {"gathered": found}, out

    def _may_be_repeated(self, request: Request, outcome: watch.RunOutcome) -> bool:
        """Return whether it was killed, and nothing that we know of was the cause: a program that kills itself does it
        again.
        """
        killed = outcome.cause is None and outcome.signal == signal.SIGKILL
        return killed and not (request.get("pipes") or request["keep"])

    def _attempt(self, request: Request, fds: list[int], begin: template.Begin) -> watch.RunOutcome:
        self.source.place(request["series"][0], fds[_runner.JOB_FD] if request["source"] else -1, request["source"])
        for name, offset, size in request["files"]:
            files.write_file(self.setting.how.work, name, fds[request["packed"]], offset, size)
        if request["gather"] is not None:
            files.open_to_all(self.setting.how.work, request["gather"])
        outputs = [fds[index] for index in request["outputs"]]
        before = self._limit_group(request["limits"])
        if self.watcher.disk is not None and not request["keep"]:
            self.watcher.disk.begin()
        spent = self._spending()
        try:
            run = begin(request, fds)
        except Forked:
            self.inbox.sock.close()  # no part of a fork's
            raise
        if request.get("pipes"):
            _let_go(fds[: request["pipes"]])
        outcome = self.watcher.watch(run, request["limits"], outputs, spent)
        if outcome.cause is None and self.group is not None:
            after = self.group.oom_count()
            if after.killed > before.killed:
                outcome.cause = "memory" if after.reached > before.reached else SHORTAGE
        return outcome

    def _spending(self) -> watch.Spent | None:
        """Return what a run that begins now spends, as its group counts it: without what we spend ourselves."""
        group = self.group
        if group is None or (spent := group.cpu_s()) is None:
            return None
        before = spent - time.process_time()
        return lambda: (group.cpu_s() or 0.0) - time.process_time() - before

    def _limit_group(self, limits: dict[str, Any]) -> cgroup.OomCount:
        """Returns how often the group ran out of memory so far."""
        if self.group is None:
            return cgroup.OomCount(0, 0)
        files = 4 * max(limits["file_bytes"], limits["output_bytes"]) + AHEAD * 3 * limits["output_bytes"]
        memory = limits["memory_bytes"] + limits["stack_bytes"] + files
        self.group.limit(memory + self.spare_bytes, limits["processes"] + _OWN_PROCESSES)
        return self.group.oom_count()

    def _complaint(self) -> str:
        """Return what the child could not do before it became the program."""
        try:
            return os.read(self.complaint, 4096).decode(errors="replace")
        except BlockingIOError:
            return ""


def _let_go(pipes: list[int]) -> None:
    """The program alone has them from here on: their numbers are closed by the process that received them."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in pipes:
        os.dup2(null, fd, inheritable=False)
    os.close(null)


def _rewind(stdin: int, *outputs: int) -> None:
    os.lseek(stdin, 0, os.SEEK_SET)
    for fd in outputs:
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)


def _reply(outcome: watch.RunOutcome, error: str = "") -> dict[str, Any]:
    return {**{name: getattr(outcome, name) for name in watch.RunOutcome.__slots__}, "error": error}
