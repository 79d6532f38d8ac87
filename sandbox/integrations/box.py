"""A box: files that stay between commands, each of which runs in a jail of its own.

    write ──▶ files ──┐                     ┌──▶ files ──▶ read
                      ├──▶ exec: a jail ────┤
    command, stdin ───┘                     └──▶ code, stdout, stderr

Nothing else stays: no process, no file outside. There is no network. A box holds about 40 MiB.
"""

from __future__ import annotations

import asyncio
import io
import json
import posixpath
import tarfile
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import getsource
from typing import Any, Final

from sandbox.core.nouns import MIB, Limits
from sandbox.core.program_run import ProgramRun
from sandbox.errors import SandboxError
from sandbox.integrations import box_program as inside
from sandbox.integrations.process_pool import process_pool

_STREAM_BYTES: Final = 10 * MIB
_LINKS_MAX: Final = 16
_LONGEST_S: Final = 3600.0
_MARGIN_S: Final = 15.0
"""For what is done beside the command: packing and unpacking."""


@dataclass(frozen=True, slots=True)
class Executed:
    """How a command ended. ``code``: 127 where there is no such program, negative for a signal."""

    code: int
    stdout: bytes
    stderr: bytes
    cut: bool = False
    """A stream was longer than 10 MiB."""


class Box:
    """See the module. One command at a time; others wait. ``memory_bytes`` is for all processes of a command."""

    def __init__(self, *, memory_bytes: int = 2048 * MIB, processes: int = 256) -> None:
        self._memory, self._processes = memory_bytes, processes
        self._state = _empty()
        self._turn = asyncio.Lock()

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Executed:
        """Run a command in the box. Raises TimeoutError, after which the files are as the command left them, and
        SandboxError where the sandbox failed, or the command used more than it may, after which they are as before.
        """
        limit_s = min(timeout_s or _LONGEST_S, _LONGEST_S)
        call = {
            "argv": list(argv),
            "cwd": cwd,
            "env": dict(env or {}),
            "stdin": b64encode(stdin).decode(),
            "timeout_s": limit_s,
            "most": _STREAM_BYTES,
        }
        limits = Limits(
            cpu_s=8 * limit_s + _MARGIN_S, wall_s=limit_s + _MARGIN_S, memory_bytes=self._memory,
            processes=self._processes, open_files=1024,
        )  # fmt: skip
        fetch = (inside.STATE, inside.OUT, inside.ERR, inside.ENDED)
        async with self._turn:
            files: dict[str, str | bytes] = {inside.CALL: json.dumps(call), inside.STATE: self._state}
            done = await asyncio.wrap_future(
                process_pool().submit(
                    lambda pool: pool.run(getsource(inside), files=files, fetch_files=fetch, limits=limits)
                )
            )
            ended, found = _ended(done)
            self._state = found[inside.STATE]
        if ended["timed_out"]:
            raise TimeoutError(f"{argv[0]}: did not end within {limit_s:g} s")
        if ended["error"] == "PermissionError":
            raise PermissionError(found[inside.ERR].decode(errors="replace").strip())
        return Executed(int(ended["code"]), found[inside.OUT], found[inside.ERR], bool(ended["cut"]))

    async def write(self, name: str, content: bytes) -> None:
        """Write a file, and the folders above it. Raises PermissionError for a name outside, IsADirectoryError."""
        path = _inside(name)
        async with self._turn:
            members = _members(self._state)
            if path in members and members[path].isdir():
                raise IsADirectoryError(name)
            with io.BytesIO() as packed:
                packed.write(self._state)
                packed.seek(0)
                with tarfile.open(fileobj=packed, mode="a") as archive:
                    entry = tarfile.TarInfo(path)
                    entry.size, entry.mode = len(content), 0o644
                    archive.addfile(entry, io.BytesIO(content))
                self._state = packed.getvalue()

    async def read(self, name: str) -> bytes:
        """Raises FileNotFoundError, IsADirectoryError, and PermissionError for a name outside."""
        path = _inside(name)
        async with self._turn:
            state = self._state
        members = _members(state)
        entry = _followed(members, path)
        if entry is None:
            raise FileNotFoundError(name)
        if entry.isdir():
            raise IsADirectoryError(name)
        # A command can write the archive itself: one that grows when it is read must not take this process's memory.
        if not entry.isreg() or entry.issparse() or entry.size > len(state):
            raise FileNotFoundError(name)
        return state[entry.offset_data : entry.offset_data + entry.size]


def _members(state: bytes) -> dict[str, tarfile.TarInfo]:
    """What is in the box by its path, the last of a name. Raises SandboxError for what is no archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(state), mode="r:") as archive:  # a packed one could grow without bound
            return {posixpath.normpath(entry.name): entry for entry in archive}
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError) as error:
        raise SandboxError(f"the command has overwritten its box: {error}") from error


def _followed(members: Mapping[str, tarfile.TarInfo], path: str) -> tarfile.TarInfo | None:
    """What a path leads to within the box, through a few links; None for what is not there."""
    for _ in range(_LINKS_MAX):
        entry = members.get(path)
        if entry is None or not (entry.issym() or entry.islnk()):
            return entry
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path) if entry.issym() else "", entry.linkname))
    return None


def _inside(name: str) -> str:
    path = posixpath.normpath(name)
    if path.startswith(("/", "..")):
        raise PermissionError(f"{name}: only files of the box can be written and read; use a relative path")
    return path


def _empty() -> bytes:
    with io.BytesIO() as packed:
        tarfile.open(fileobj=packed, mode="w").close()
        return packed.getvalue()


def _ended(done: ProgramRun) -> tuple[dict[str, Any], dict[str, bytes]]:
    """How the command ended, and the files. Raises SandboxError where the program beside it did not come to its end."""
    found = dict(done.files)
    if done.exit_code != 0 or len(found) < 4:
        why = done.cause or done.message or "its files take too much room"
        raise SandboxError(f"the command ended its box ({why}); its files are as before")
    try:
        ended = json.loads(found[inside.ENDED])
    except ValueError:
        ended = None
    kinds = {"code": int, "timed_out": bool, "cut": bool, "error": str}
    if not isinstance(ended, dict) or any(type(ended.get(name)) is not kind for name, kind in kinds.items()):
        raise SandboxError("the command has overwritten how it ended; its files are as before")
    _members(found[inside.STATE])
    return ended, found
