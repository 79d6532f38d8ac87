"""Start, supervise and end the processes of a jail, on the side of its owner.

    owner ── control socket ──▶ zygote (in the jail) ── fork ──▶ ...

The zygote is started by exec, also from a threaded caller, and ends when the control socket closes or its parent dies.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from sandbox.core.nouns import Isolation
from sandbox.errors import IsolationUnavailable, SandboxError, Starved, WorkerDied, not_started
from sandbox.jail.spawn import start_process
from sandbox.kernel import cgroup, inherited, linux, uids
from sandbox.kernel.clear import remove_tree
from sandbox.kernel.orphan_cleanup import group_name, reserve_directory
from sandbox.zygote.inbox import CANCEL
from sandbox.zygote.run_clock import look_at
from sandbox.zygote.watch import descendant_pids, is_ending

_MESSAGE_MAX: Final = 128 << 10
_FDS_MAX: Final = 8
_START_S: Final = 30.0
_CLOSE_S: Final = 3.0
_POLL_S_MAX: Final = 1e6  # poll counts milliseconds in an int; the longest limits, stretched, are more


class Tree:
    """The processes of one jail, its directory and its cgroup."""

    def __init__(
        self, tier: str, run_dir: str | None, work_bytes: int, show: dict[str, Any], *, fixed_hashes: bool
    ) -> None:
        """Start the processes.

        Raises IsolationUnavailable, WorkerDied, Starved, SandboxError when the machine has no resources left.
        """
        self._buffer = bytearray(_MESSAGE_MAX)
        self._unread: deque[dict[str, Any]] = deque()
        self._fixed_hashes = fixed_hashes
        try:
            ready = self._start(tier, run_dir, work_bytes, show)
        except OSError as error:
            raise SandboxError(not_started("a jail", error)) from error
        self.tier: Isolation = ready["tier"]
        self.mechanisms: tuple[str, ...] = tuple(ready["mechanisms"])
        self.ahead: int = ready["ahead"]
        self._grouped = any(name.startswith("cgroup") for name in self.mechanisms)
        self._oom_kills = 0
        self.ran_short()

    def _start(self, tier: str, run_dir: str | None, work_bytes: int, show: dict[str, Any]) -> dict[str, Any]:
        """Return the zygote's first message. A start that fails leaves nothing behind."""
        if run_dir and tier == "B" and os.geteuid() == 0 and not uids.may_enter(run_dir):
            run_dir = None  # its programs have another uid
        with ExitStack() as undo:
            self.control, theirs = inherited.connected_sockets(socket.SOCK_SEQPACKET)
            with theirs:
                undo.callback(self.control.close)
                self.directory = tempfile.mkdtemp(dir=run_dir) if run_dir else reserve_directory()
                undo.callback(remove_tree, self.directory)
                self.group = group_name(self.directory)
                undo.callback(cgroup.remove_cgroups, self.group)
                tail = [str(theirs.fileno()), tier, self.directory, str(os.getpid()), str(work_bytes)]
                tail += [json.dumps({**show, "group": self.group}), "given" if run_dir else "own"]
                self.guarded = tail[-1] == "own"
                self.process = start_process("zygote.zygote", tail, [theirs.fileno()], fixed_hashes=self._fixed_hashes)
                undo.callback(self._end)
            ready, fds = self.receive(time.monotonic() + _START_S)
            self.listener = socket.socket(fileno=fds[0]) if fds else None
            if "starved" in ready:
                raise Starved(ready["starved"])
            if "error" in ready:
                raise IsolationUnavailable(f"tier {tier}: {ready['error']}")
            self._undo = undo.pop_all()
        return ready

    def close(self) -> None:
        """End all processes, within a few seconds, and remove what they leave. Safe to call twice."""
        self._undo.close()

    def _end(self) -> None:
        self.control.close()
        try:
            self.process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the jail's pid 1 dies with it
            self.process.wait()

    def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Raises OSError when the zygote is dead."""
        socket.send_fds(self.control, [message], fds)

    def receive(self, deadline: float, cancel_fd: int | None = None) -> tuple[dict[str, Any], list[int]]:
        """Return the zygote's next message; cancels the current run when `cancel_fd` becomes readable.

        Raises WorkerDied for a zygote that is dead, or silent past the deadline.
        """
        if self._unread:
            return self._unread.popleft(), []
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        if cancel_fd is not None:
            poller.register(cancel_fd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            ready = {fd for fd, _ in poller.poll(min(left, _POLL_S_MAX) * 1000)} if left > 0 else set()
            if self.control.fileno() in ready:
                data, fds = linux.recv_fds_into(self.control, self._buffer, _FDS_MAX)
                if not data:
                    raise WorkerDied("the jail's zygote died")
                self._unread.extend(json.loads(data))
                return self._unread.popleft(), fds
            if not ready and left > _POLL_S_MAX:
                continue
            if not ready:
                raise WorkerDied("the jail's zygote does not answer")
            assert cancel_fd is not None
            poller.unregister(cancel_fd)
            self.control.send(CANCEL)

    def ran_short(self) -> bool:
        """Return whether the kernel has killed for memory anywhere since this was asked last. Never where the zygote
        knows it of each run, by a group of the jail's own.
        """
        before, self._oom_kills = self._oom_kills, 0 if self._grouped else cgroup.machine_oom_kills()
        return self._oom_kills > before

    def is_running(self) -> bool:
        """Return whether a program's process is alive and not yet exiting."""
        return not all(map(is_ending, self._below()))

    def activity(self) -> tuple[bool, float]:
        """Return whether a program's thread is awake, or none has begun, and its processes' CPU seconds so far."""
        awake, cpu_s = look_at(below := self._below())
        return awake or not below, cpu_s

    def _below(self) -> list[int]:
        ours = self.guarded + (self.tier == "A")  # below the first process: a guard has a child, and so has a waiter
        return descendant_pids(self.process.pid)[ours:]
