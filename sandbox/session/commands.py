"""Commands of a shell in one working directory, in a jail of its own: what a command leaves there, the next one finds.

    lay_out(files) ──▶ run(command) ──▶ run(command) ──▶ take_back(folder)

Only the directory stays: a command's processes end with it. A jail with a network has one socket to connect to, the
`listener`, which the caller serves.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from sandbox.core.nouns import MIB, Isolation, Limits
from sandbox.errors import SandboxError
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun, RunResult
from sandbox.session import _folder
from sandbox.session.output import read_end

WORK_BYTES: Final = 256 * MIB
_NONCE_BYTES: Final = 32
_FOLDER_S: Final = 60.0
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
T = TypeVar("T")


class CommandJail:
    """One jail, for one thread at a time; `cancel` may come from any."""

    def __init__(
        self,
        isolation: Isolation,
        limits: Limits,
        *,
        work_bytes: int = WORK_BYTES,
        readable: Sequence[str] = (),
        root_files: str | None = None,
        network: bool = False,
        links: Mapping[str, str] | None = None,
    ) -> None:
        """Start it. `limits` hold for each command; `work_bytes` for the directory. The rest is as `Jail` has it.

        Raises SandboxError: IsolationUnavailable where the machine cannot isolate so.
        """
        self.limits, self.work_bytes = limits, work_bytes
        python = os.path.dirname(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
        self._path = _PATH if root_files is not None else f"{python}:{_PATH}"
        self._jail = Jail(
            isolation, work_bytes=work_bytes, readable=readable, root_files=root_files, network=network, links=links
        )
        self.listener, self.tier = self._jail.listener, self._jail.tier
        self._cancel = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def lay_out(self, files: Mapping[str, bytes], programs: Collection[str] = ()) -> None:
        """Write files, by relative name; directories are made. They belong to the commands, which may change them.
        `programs`: names of files that may be run.

        Raises OSError where they do not fit or one is there already, SandboxError.
        """
        self._in_folder(("unpack",), _folder.pack_texts(files, programs))

    def take_back(self, folder: str, *, bytes_max: int | None = None) -> None:
        """Write the content of the directory below `folder`, which is empty: files, directories and links, as they are.

        Links are hostile: they lead anywhere. Files beyond `bytes_max` in all, by default what the directory may hold,
        are left out. Raises SandboxError, OSError.
        """
        self._packed(lambda found: _folder.unpack(found, folder), bytes_max)

    def files(self) -> tuple[dict[str, bytes], set[str]]:
        """Return the directory's files, without links, and the names of files that may be run. Raises SandboxError."""
        return self._packed(_folder.read_packed, None)

    def _packed(self, use: Callable[[bytes], T], bytes_max: int | None) -> T:
        found = self._in_folder(("pack", str(self.work_bytes if bytes_max is None else bytes_max)))
        try:
            return use(found)
        except ValueError as error:
            raise SandboxError(f"a jail's work directory cannot be read: {error}") from error

    def read(self, path: str) -> bytes:
        """The content of a file, as a command sees it. Raises OSError: no such file, no file, longer than a command may
        print; SandboxError.
        """
        return self._in_folder(("read", path, str(self.limits.output_bytes)), path=path)

    def write(self, path: str, content: bytes) -> None:
        """Make a file, with its directories, or replace its content. Raises OSError, SandboxError."""
        self._in_folder(("write", path), content, path=path)

    def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        pipes: tuple[int, int, int] | None = None,
    ) -> RunResult:
        """Run a command as a shell reads it, to the end of all its processes. `pipes`: descriptors for its streams, in
        the place of `stdin` and of what the result would hold.

        Raises SandboxError: Cancelled after `cancel`.
        """
        own = {"PATH": self._path, **(environment or {})}
        argv = ("/bin/sh", "-c", command)
        run = JailedRun(limits or self.limits, stdin, argv=argv, environment=tuple(own.items()), pipes=pipes, keep=True)
        return self._jail.run(run, cancel_fd=self._cancel)

    def cancel(self) -> None:
        """End the current or the next command, which raises Cancelled."""
        os.eventfd_write(self._cancel, 1)

    def resume(self) -> None:
        """Forget a cancel, so that the directory can be read after it."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._cancel)

    def close(self) -> None:
        """End everything in it, and remove the directory. Safe to call twice."""
        self._jail.close()
        if self._cancel >= 0:
            os.close(self._cancel)
            self._cancel = -1

    def _in_folder(self, argv: tuple[str, ...], stdin: bytes = b"", path: str = "") -> bytes:
        """Run `_folder` in the jail, with the identity of a command. Raises OSError, as it names it, for `path`."""
        job = {"kind": "stdio", "fn_name": None, "args": None, "steps": (), "argv": argv, "preamble": ""}
        source = Path(_folder.__file__).read_text(encoding="utf-8")
        size = self.work_bytes * 2
        limits = Limits(
            cpu_s=_FOLDER_S, wall_s=_FOLDER_S, memory_bytes=max(self.limits.memory_bytes, 3 * len(stdin) + 64 * MIB),
            output_bytes=size, file_bytes=max(size, self.limits.file_limit_bytes),
        )  # fmt: skip
        sent = marshal.dumps({**job, "source": source}) + os.urandom(_NONCE_BYTES)
        done = self._jail.run(JailedRun(limits, stdin, job=sent, keep=True), cancel_fd=self._cancel)
        if done.cause is None and done.exit_code == _folder.FAILED and done.stderr.isdigit():
            number = int(done.stderr)
            raise OSError(number, os.strerror(number), path)
        if done.cause is not None or done.exit_code != 0:
            _, cause = read_end(done)
            told = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise SandboxError(f"files of a jail's work directory: {cause}{told and f': {told}'}")
        return done.stdout
