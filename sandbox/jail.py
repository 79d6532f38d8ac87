"""The judge's hold on one jail: start it, give it runs, take what came out, end it.

    judge process ── control socket + descriptors ──▶ zygote (in the jail) ── fork ──▶ the program

All bulk data is in memfds: stdin is sealed, outputs are capped by RLIMIT_FSIZE and by the watcher, and nobody reads a
pipe that a program writes, so nothing can block. The zygote is started by exec, also from a threaded caller, and ends
when the control socket closes or its parent dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from sandbox import namespaces, toolchain
from sandbox.core import MIB, Isolation, Limits
from sandbox.errors import Cancelled, IsolationUnavailable, WorkerDied
from sandbox.languages import Runtime
from sandbox.spawn import start_process
from sandbox.sweep import run_directory
from sandbox.watch import WALL_STRETCH

_MESSAGE_MAX: Final = 128 << 10
_START_S: Final = 30.0
_GRACE_S: Final = 15.0  # a zygote answers this long after the last possible end of a run, or counts as dead
_CLOSE_S: Final = 3.0
TIERS: Final[tuple[Isolation, ...]] = ("A", "B")
_PLAIN: Final = Runtime()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one program in a jail."""

    limits: Limits
    stdin: bytes = b""
    job: bytes | None = None
    """Python harness: the job, ending in its nonce."""
    argv: tuple[str, ...] = ()
    """Native: the command line; argv[0] is a path in the jail unless `program` is given."""
    program: int | None = None
    """Native: an executable as a descriptor."""
    files: tuple[tuple[str, bytes], ...] = ()
    """Files to put into the work directory first."""
    collect: str | None = None
    """A file of the work directory to bring back if the run ends with exit code 0."""
    environment: tuple[tuple[str, str], ...] = ()
    """Native: variables added to the jail's."""
    runtime: Runtime = _PLAIN
    """What the runtime needs above the limits."""
    with_tools: bool = False
    """Native: argv[0] is a compiler or a runtime of ours, so it may read its files under a closed directory."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run did. `cause` names the limit that was enforced (cpu, wall, memory, output), or is None."""

    cause: str | None
    exit_code: int | None
    signal: int | None
    cpu_s: float
    wall_s: float
    memory_bytes: int
    left_behind: int
    stdout: bytes
    stderr: bytes
    result: bytes
    collected: bytes | None


class Jail:
    """One entered jail. Use as a context manager, or call `close`."""

    def __init__(
        self,
        isolation: Isolation = "auto",
        *,
        run_dir: str | None = None,
        work_bytes: int = 96 * MIB,
        shared: str | None = None,
    ) -> None:
        """Start it. Raises IsolationUnavailable when the machine cannot isolate as asked; `auto` never means C.

        `shared` is a directory of ours that every run sees, read-only: at `self.shared`.
        """
        if isolation not in ("auto", *TIERS, "C"):
            raise IsolationUnavailable(f"isolation={isolation!r} is unknown; use auto, A, B or C")
        self.work_bytes = work_bytes
        self.run_dir = run_dir
        self.shared_from = shared
        self.runs = 0
        self.broken = False
        refused = []
        for tier in TIERS if isolation == "auto" else (isolation,):
            try:
                self._start(tier, run_dir)
                return
            except IsolationUnavailable as error:
                refused.append(str(error))
        way_out = "" if isolation == "C" else "; see `sandbox doctor`, or ask for isolation='C' (rlimits only)"
        raise IsolationUnavailable("; ".join(refused) + way_out)

    def _start(self, tier: str, run_dir: str | None) -> None:
        self.directory = tempfile.mkdtemp(dir=run_dir) if run_dir else run_directory()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tail = [str(theirs.fileno()), tier, self.directory, str(os.getpid()), str(self.work_bytes)]
        tail.append(json.dumps({"shared": self.shared_from, "roots": toolchain.roots()}))
        self.control = mine
        try:
            with theirs:
                self.process = start_process("zygote", tail, [theirs.fileno()], seed_hashes=True)
            ready, _ = self._receive(time.monotonic() + _START_S, None)
        except BaseException:
            self.close()
            raise
        if "error" in ready:
            self.close()
            raise IsolationUnavailable(f"tier {tier}: {ready['error']}")
        self.tier: Isolation = ready["tier"]
        self.mechanisms: tuple[str, ...] = tuple(ready["mechanisms"])
        self.shared = namespaces.SHARED if tier == "A" and self.shared_from else self.shared_from

    def run(self, run: Run, *, cancel_fd: int | None = None) -> RunResult:
        """Run it to its end. Raises WorkerDied when the jail fails, Cancelled when `cancel_fd` becomes readable."""
        if self.broken:
            raise WorkerDied("the jail failed before; start another")
        self.runs += 1
        self.broken = True
        opened: list[int] = []
        try:
            return self._run(run, cancel_fd, opened)
        except Cancelled:
            self.broken = False
            raise
        except (OSError, ValueError) as error:
            raise WorkerDied(f"the jail failed: {error}") from error
        finally:
            for fd in opened:
                os.close(fd)

    def _run(self, run: Run, cancel_fd: int | None, opened: list[int]) -> RunResult:
        def memfd(name: str, content: bytes = b"", *, seal: bool = False) -> int:
            opened.append(make_memfd(name, content, seal=seal))
            return opened[-1]

        stdin = memfd("stdin", run.stdin, seal=True)
        stdout, stderr, result = memfd("stdout"), memfd("stderr"), memfd("result")
        streams = [stdin, stdout, stderr, memfd("job", run.job or b"", seal=True), result]
        fds = streams + ([] if run.program is None else [run.program])
        files = [[name, len(fds) + k] for k, (name, _) in enumerate(run.files)]
        fds += [memfd("file", content, seal=True) for _, content in run.files]
        request = {
            "mode": "exec" if run.argv else "python",
            "argv": run.argv,
            "program": None if run.program is None else 5,
            "files": files,
            "collect": run.collect,
            "outputs": [1, 2, 4],
            "limits": _wire_limits(run),
            "environment": run.environment,
            "harness": run.job is not None,
            "with_tools": run.with_tools,
        }
        socket.send_fds(self.control, [json.dumps(request).encode()], fds)
        reply, got = self._receive(time.monotonic() + run.limits.wall_limit_s * WALL_STRETCH + _GRACE_S, cancel_fd)
        opened += got
        if reply["error"]:
            raise WorkerDied(f"the jail failed: {reply['error']}")
        self.broken = False
        if reply["cause"] == "cancelled":
            raise Cancelled("the run was cancelled")
        cap = run.limits.output_bytes
        numbers = {key: reply[key] for key in ("cause", "exit_code", "signal", "cpu_s", "wall_s", "memory_bytes")}
        return RunResult(
            **numbers,
            left_behind=reply["left_behind"],
            stdout=_content(stdout, cap),
            stderr=_content(stderr, 64 << 10),
            result=_content(result, cap),
            collected=_content(got[0], run.limits.file_bytes) if got else None,
        )

    def _receive(self, deadline: float, cancel_fd: int | None) -> tuple[dict[str, Any], list[int]]:
        """The zygote's next message. A zygote that is dead or silent past the deadline raises WorkerDied."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        if cancel_fd is not None:
            poller.register(cancel_fd, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            ready = {fd for fd, _ in poller.poll(max(0.0, left) * 1000)} if left > 0 else set()
            if self.control.fileno() in ready:
                data, fds, _, _ = socket.recv_fds(self.control, _MESSAGE_MAX, 8, socket.MSG_CMSG_CLOEXEC)
                if not data:
                    raise WorkerDied("the jail's zygote died")
                return json.loads(data), fds
            if not ready:
                raise WorkerDied("the jail's zygote does not answer")
            assert cancel_fd is not None
            poller.unregister(cancel_fd)
            self.control.send(b'{"mode": "cancel"}')

    def close(self) -> None:
        """End the jail and all that is in it; at most a few seconds. Safe to call twice."""
        self.control.close()
        process = getattr(self, "process", None)
        if process is not None:
            try:
                process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()  # its pid 1 dies with it
                process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Jail:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def make_memfd(name: str, content: bytes = b"", *, seal: bool = False) -> int:
    """Anonymous memory as a file; sealed means that nobody can change it any more."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_SEAL
        if seal:
            seals |= fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _wire_limits(run: Run) -> dict[str, Any]:
    limits, runtime = run.limits, run.runtime
    names = ("cpu_s", "memory_bytes", "output_bytes", "file_bytes")
    return {
        **{name: getattr(limits, name) for name in names},
        "wall_s": limits.wall_limit_s,
        "stack_bytes": min(limits.stack_bytes, runtime.stack_bytes_max),
        "processes": limits.processes + runtime.threads,
        "open_files": limits.open_files + runtime.open_files,
        "headroom_bytes": runtime.headroom_bytes,
        "address_space": runtime.address_space,
    }


def _content(fd: int, cap: int) -> bytes:
    """Up to `cap` bytes; a longer stream was an output violation already, and is not worth its memory."""
    size = min(os.fstat(fd).st_size, cap)
    chunks = []
    offset = 0
    while offset < size:
        chunk = os.pread(fd, size - offset, offset)
        if not chunk:
            break
        chunks.append(chunk)
        offset += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
