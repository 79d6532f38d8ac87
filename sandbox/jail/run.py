"""One run of a jail: request, transport and result. All bulk data is in memfds."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from typing import Any, Final

from sandbox.core.nouns import MIB, Limits
from sandbox.kernel.linux import make_memfd, read_all
from sandbox.languages.language import Runtime

_NUMBERS: Final = ("cause", "exit_code", "signal", "cpu_s", "wall_s", "memory_bytes", "left_behind")
_EXCERPT_BYTES: Final = 64 << 10
_FRAME_WEIGHT_MAX: Final = 150 * MIB
_PLAIN: Final = Runtime()


@dataclass(frozen=True, slots=True)
class JailedRun:
    """One run of one program in a jail."""

    limits: Limits
    stdin: bytes = b""
    job: bytes | None = None
    """Python harness: the job, ending in its nonce."""
    argv: tuple[str, ...] = ()
    """Native: the command line; argv[0] is a path in the jail unless `program` is given."""
    program: bytes | None = None
    """Native: an executable."""
    files: tuple[tuple[str, bytes], ...] = ()
    """Files to put into the work directory first, by names relative to it."""
    pipes: tuple[int, ...] | None = None
    """Descriptors for stdin, stdout and, where there is a third, stderr, which are then not collected: `stdin` is not
    used, `stdout` and `stderr` stay empty.

    The jail closes its copies once the program has them, so a caller that closes its own sees when the program closes
    its.
    """
    code: int | None = None
    """Python harness: where the first run of a program leaves it compiled, and later ones find it (`new_memfd`)."""
    source: tuple[int, int] | None = None
    """Python harness: offset and size, in the job, of the text that is the main file of the work directory."""
    collect: str | None = None
    """A file of the work directory to bring back if the run ends with exit code 0."""
    gather: str | None = None
    """A directory to make in the work directory, and to bring its files back, however the run ends."""
    fetch: tuple[str, ...] = ()
    """Instead of `gather`: names of files to bring back, however the run ends."""
    shown_bytes: int = _EXCERPT_BYTES
    """Bytes that are kept of streams that are not compared: stderr, and the output of a run that a limit ended."""
    environment: tuple[tuple[str, str], ...] = ()
    """Native: variables added to the jail's."""
    runtime: Runtime = _PLAIN
    """Resources that the runtime needs above the limits."""
    series: tuple[int, int] = (0, 0)
    """Number of the program, and how many of its runs are expected from here on: with more than one they start faster.
    The owner calls `Jail.forget` after the last.
    """
    hold: bool = False
    """Further runs are queued before this result is read, so results may be sent together."""
    with_tools: bool = False
    """Native: argv[0] is a compiler or a runtime of ours, so it may read its files under a closed directory."""
    keep: bool = False
    """The work directory's content stays for the next run, unless it is more than may be there: then the run ends with
    the cause "disk", and nothing stays. For runs without a series and without `source`.
    """

    def __post_init__(self) -> None:
        names = [name for name, _ in self.files]
        if self.gather is not None and ("/" in self.gather or not is_inside(self.gather)):
            raise ValueError(f"name={self.gather!r}: must be a plain file name of the work directory")
        if self.gather is not None and self.fetch:
            raise ValueError(f"fetch={self.fetch}: is given together with gather={self.gather!r}")
        for name in [*names, *self.fetch, *([] if self.collect is None else [self.collect])]:
            if not is_inside(name):
                raise ValueError(f"name={name!r}: must be a name inside the work directory")
        if len(set(names)) < len(names):
            raise ValueError(f"files={names}: a name is there twice")


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run.

    `cause`: the limit that was enforced (cpu, wall, memory, output, disk, processes), "security: <call>", or None.
    """

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
    gathered: tuple[tuple[str, bytes], ...] | None = ()
    """Files that were asked for; None when there were more than can be brought back."""
    cut: bool = False
    """More was written to stdout or stderr than is kept here."""


def is_inside(name: str) -> bool:
    """Return whether a relative name stays below its directory."""
    parts = name.split("/")
    return "\0" not in name and not any(part in ("", ".", "..") for part in parts)


class Sent:
    """A queued run: its descriptors, and their content when it has ended."""

    def __init__(self, run: JailedRun) -> None:
        self.run = run
        self.opened: list[int] = []

    def pack(self) -> tuple[bytes, list[int]]:
        """The request and its descriptors."""
        run = self.run
        native = bool(run.argv)
        harness = not native or run.job is not None
        if run.pipes is None:
            fds = [self._memfd("stdin", run.stdin, seal=True), self._memfd("stdout"), self._memfd("stderr")]
        else:
            fds = [*run.pipes]
            fds += [self._memfd("stderr")] * (len(fds) < 3)
        if harness:
            fds += [self._memfd("job", run.job or b"", seal=True), self._memfd("result")]
        if not native:
            fds.append(self._memfd("code") if run.code is None else run.code)
        given = len(run.pipes or ())
        outputs = (1,) * (given == 0) + (2,) * (given < 3) + (4,) * harness
        self.stdout, self.stderr = None if given else fds[1], None if given > 2 else fds[2]
        self.frame = fds[4] if harness else None
        program = None
        if run.program is not None:
            program = len(fds)
            # Made for each run: times, mode and inode of one that stays would show a run how many were before it.
            fds.append(self._memfd("program", run.program, seal=True))
        files, packed = [], None
        if run.files:
            packed, offset = len(fds), 0
            for name, content in run.files:
                files.append((name, offset, len(content)))
                offset += len(content)
            fds.append(self._memfd("files", b"".join(content for _, content in run.files), seal=True))
        self.gathered = self._memfd("gathered") if run.gather is not None or run.fetch else None
        if self.gathered is not None:
            fds.append(self.gathered)
        body = _encode(
            run.limits,
            run.runtime,
            mode="exec" if native else "python",
            program=program,
            files=tuple(files),
            packed=packed,
            gathered=len(fds) - 1,
            outputs=outputs,
            harness=harness,
            pipes=given,
            **{
                name: getattr(run, name)
                for name in ("argv", "collect", "gather", "fetch", "environment", "with_tools", "source", "keep")
            },
        )
        return b"%d %d %d\n%b" % (*run.series, run.hold, body), fds

    def _memfd(self, name: str, content: bytes = b"", *, seal: bool = False) -> int:
        self.opened.append(make_memfd(name, content, seal=seal))
        return self.opened[-1]

    def result(self, reply: dict[str, Any], got: list[int]) -> RunResult:
        numbers = {name: reply[name] for name in _NUMBERS}
        result = b""
        if self.frame is not None and numbers["cause"] is None:
            size = os.fstat(self.frame).st_size
            if 3 * size < _FRAME_WEIGHT_MAX:
                result = read_all(self.frame, size)
            if size and (not result or _weight(result) > _FRAME_WEIGHT_MAX):
                numbers["cause"], result = "output", b""
        cap = self.run.shown_bytes
        shown = self.run.limits.output_bytes if numbers["cause"] is None else cap
        return RunResult(
            **numbers,
            stdout=b"" if self.stdout is None else read_all(self.stdout, shown),
            stderr=b"" if self.stderr is None else _read_ends(self.stderr, cap),
            result=result,
            collected=read_all(got[0], self.run.limits.file_limit_bytes) if got else None,
            gathered=None if reply["gathered"] is None else _unpack(reply["gathered"], self.gathered),
            cut=_is_longer(self.stderr, cap) or _is_longer(self.stdout, shown),
        )


def _unpack(sizes: list[list[Any]], fd: int | None) -> tuple[tuple[str, bytes], ...]:
    offset, found = 0, []
    for name, size in sizes:
        assert fd is not None
        found.append((name, os.pread(fd, size, offset)))
        offset += size
    return tuple(found)


def _is_longer(fd: int | None, cap: int) -> bool:
    return fd is not None and os.fstat(fd).st_size > cap


def _read_ends(fd: int, cap: int) -> bytes:
    """Return all of it, or its beginning and its end, where a runtime says why it ends."""
    size = os.fstat(fd).st_size
    if size <= cap:
        return read_all(fd, cap)
    return os.pread(fd, cap // 2, 0) + b"\n[...]\n" + os.pread(fd, cap // 2, size - cap // 2)


@functools.lru_cache(8)
def _encode(limits: Limits, runtime: Runtime, **how: Any) -> bytes:
    """The part of a request that is the same for most runs of a program."""
    numbers = {
        **{name: getattr(limits, name) for name in ("cpu_s", "memory_bytes", "output_bytes")},
        "file_bytes": limits.file_limit_bytes,
        "wall_s": limits.wall_limit_s,
        "stack_bytes": min(limits.stack_bytes, runtime.stack_bytes_max),
        "processes": limits.processes + runtime.threads,
        "open_files": limits.open_files + runtime.open_files,
    }
    return json.dumps({**how, "limits": numbers}).encode()


def _weight(frame: bytes) -> int:
    """Estimate the memory, at least, that reading a frame and building its values takes: 5 MB of `[]` take 700 MB."""
    marks = ((b",", 48), (b"[", 144), (b"{", 300), (b'"', 28))
    return 3 * len(frame) + sum(cost * frame.count(mark) for mark, cost in marks)
