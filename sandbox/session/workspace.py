"""A working directory that stays between the commands of a shell, for asynchronous callers: jailed, without a network.

    exec("pytest -q") ──▶ a slot, a thread ──▶ CommandJail ──▶ Finished
    read(path), write(path, content)             the same, for files

waits for a slot, held until `close`, then for the call; woken by its end. A call that is cancelled ends its command
first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final, TypeVar

from sandbox.core.nouns import Limits
from sandbox.errors import PoolClosed, SandboxError
from sandbox.session.commands import WORK_BYTES, CommandJail
from sandbox.session.output import Finished
from sandbox.session.session_host import SessionHost, call_seconds

COMMAND_MAX: Final = 64 << 10
"""Characters of a command: more are for a file."""
_T = TypeVar("_T")


class Workspace:
    """One working directory and its jail, from the first call on. Calls are answered one after the other."""

    def __init__(
        self,
        owner: SessionHost,
        *,
        root: str | None = None,
        readable: Sequence[str] = (),
        work_bytes: int = WORK_BYTES,
        links: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`root`: a directory whose content the commands see in the place of the machine's tools (tier A). `readable`:
        further paths that they see. Both read-only. `links`: names at the top, as "/app", that lead to names in the
        directory (tier A). `limits`: of each command, in the place of the owner's. Nothing is started.
        """
        self._limits = limits or owner.limits
        self._owner, self._turn, self._held = owner, asyncio.Lock(), AsyncExitStack()
        self._how: dict[str, Any] = {"root_files": root, "readable": tuple(readable), "work_bytes": work_bytes}
        self._how["links"] = links
        self._jail: CommandJail | None = None
        self.closed = False

    async def exec(
        self,
        command: str,
        *,
        stdin: str | bytes = "",
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Finished:
        """Run a command as a shell reads it, in the directory that earlier calls left; its processes end with it.

        `timeout_s`: wall seconds, at most those of the limits; waiting for a slot or a core does not count. Raises
        ValueError for invalid arguments, PoolClosed, and SandboxError where the sandbox fails: the directory is lost.
        """
        if len(command) > COMMAND_MAX or "\0" in command:
            raise ValueError(f"command: {len(command)} characters; at most {COMMAND_MAX} can be run, and no NUL")
        limits = replace(self._limits, wall_s=call_seconds(self._limits, timeout_s))
        given = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else stdin
        typed = command.encode("utf-8", "replace").decode()
        done = await self._do(lambda jail: jail.run(typed, stdin=given, limits=limits, environment=environment))
        return Finished.of(done, self._owner.shown_bytes)

    async def read(self, path: str) -> bytes:
        """The content of a file, relative to the directory. Raises OSError (FileNotFoundError, IsADirectoryError, EFBIG
        for one that is longer than what a command may print), and as `exec` does.
        """
        _check_path(path)
        return await self._do(lambda jail: jail.read(path))

    async def write(self, path: str, content: str | bytes) -> None:
        """Make a file, with its directories, or replace its content. Raises OSError, and as `exec` does."""
        _check_path(path)
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        await self._do(lambda jail: jail.write(path, data))

    async def lay_out(self, files: Mapping[str, bytes], programs: Collection[str] = ()) -> None:
        """Make many files at once, by names inside the directory; none of them may exist. `programs`: names of files
        that may be run. Raises OSError where they do not fit, and as `exec` does.
        """
        await self._do(lambda jail: jail.lay_out(files, programs))

    async def files(self) -> tuple[dict[str, bytes], set[str]]:
        """Return the files, without links, and the names of files that may be run. Raises as `exec` does."""
        return await self._do(lambda jail: jail.files())

    async def close(self) -> None:
        """End the current call, which raises, and remove the directory. Safe to call twice."""
        self.closed = True
        if self._jail is not None and self._turn.locked():
            self._jail.cancel()
        async with self._turn:
            await self._let_go()

    async def _do(self, work: Callable[[CommandJail], _T]) -> _T:
        async with self._turn:
            try:
                if self._jail is None and not self.closed:
                    await self._held.enter_async_context(self._owner.workspaces.place())
                    await self._owner.do(self._start)
                if self.closed or self._jail is None:
                    raise PoolClosed("the workspace is closed")
                async with self._owner.turns.place():
                    return await self._owner.do(work, self._jail, cancel=self._jail.cancel)
            except (SandboxError, asyncio.CancelledError):
                await self._let_go()
                raise

    def _start(self) -> None:
        self._jail = CommandJail(self._owner.isolation, self._limits, **self._how)

    async def _let_go(self) -> None:
        jail, self._jail = self._jail, None
        try:
            if jail is not None:
                await self._owner.do(jail.close)
        finally:
            await self._held.aclose()


def _check_path(path: str) -> None:
    if not path or "\0" in path:
        raise ValueError(f"path={path!r}: must be the name of a file")
