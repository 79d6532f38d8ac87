"""An agent program as the rollout of an episode: it talks to the gateway, and knows nothing of the run.

    prompt ──▶ working directory with the task's files ──▶ subreaper ──▶ the program ⇄ gateway
                                                                             │ ends
                                               Task.answer ◀─────────────────┘

waits for: the program's end        woken by: that; the end of its budget, some seconds later; cancellation

However an episode ends, its key is invalid and all of its processes have ended when this returns.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from overlap.core import Prompt
from overlap.core.aio import shielded_thread, threaded
from overlap.core.errors import RolloutError
from overlap.process.run_environment import RUN, child_environment, run_name
from overlap.server.chat import Chat
from overlap.server.episodes import EpisodeSandbox, HarnessCrashed
from overlap.server.gateway import Gateway
from overlap.server.harness_jail import BACK_BYTES, JailMaker, run_jailed
from overlap.server.harness_process import run_agent
from sandbox.kernel.clear import remove_tree
from sandbox.session.commands import CommandJail

GRACE_S = 2.0
"""Seconds that a program has to end by itself once its budget is used up."""
FILE_BYTES = 256 << 20
"""A longer file, which may be sparse, is not fit to be read into memory."""


class HarnessRollout:
    """The rollout that runs ``command`` in a shell, by ``files`` and ``answer`` of the task. ``scratch`` is the run's
    directory; ``decode`` returns a prompt's text; with ``jail`` the program runs in a jail of its own.
    """

    def __init__(
        self,
        command: str,
        task: Any,
        gateway: Gateway,
        scratch: Path,
        decode: Any,
        jail: JailMaker | None = None,
    ) -> None:
        self._command, self._task, self._gateway = command, task, gateway
        self._scratch, self._decode, self._jail = scratch, decode, jail

    async def __call__(self, prompt: Prompt, chat: Chat, sandbox: EpisodeSandbox) -> str:
        """Run the program to its end. Raises HarnessCrashed with its stderr."""
        folder = Path(tempfile.mkdtemp(prefix="episode-", dir=self._scratch))
        try:
            files = await asyncio.to_thread(self._files, prompt)
            if self._jail is None:
                await asyncio.to_thread(_lay_out, files, folder)
                with self._gateway.session(chat) as key:
                    own = _variables(self._gateway.url, key) | {RUN: run_name(self._scratch), "TMPDIR": str(folder)}
                    code, tail = await run_agent(["/bin/sh", "-c", self._command], folder, own, chat.ended, GRACE_S)
            else:
                code, tail = await self._run_jailed(self._jail, files, folder, chat)
            if self._gateway.fault is not None:
                raise self._gateway.fault
            if code:
                raise HarnessCrashed(f"episode.command ended with {code}: {tail or 'it wrote nothing to stderr'}")
            last = chat.last
            said = last.dialog[-1].text if last is not None else ""
            await asyncio.to_thread(_clean_workdir, folder)
            answer: str = await asyncio.to_thread(self._task.answer, prompt, folder, said)
            return answer
        finally:
            await shielded_thread(remove_tree, str(folder))

    def _files(self, prompt: Prompt) -> dict[str, str]:
        """The task's files, by names inside a directory. Raises RolloutError for another name."""
        found = {}
        for name, text in self._task.files(prompt, self._decode(prompt)).items():
            inside = os.path.normpath(name)
            if os.path.isabs(inside) or inside.split("/")[0] in ("..", ".") or "\0" in inside:
                kind = type(self._task).__qualname__
                raise RolloutError(f"{kind}.files names {name!r}, outside the working directory")
            found[inside] = text
        return found

    async def _run_jailed(
        self, start: JailMaker, files: Mapping[str, str], folder: Path, chat: Chat
    ) -> tuple[int, str]:
        """As ``run_agent``, in a jail; what the program left is in ``folder`` then."""
        async with threaded(_opened(start)) as jail:
            try:
                await shielded_thread(jail.lay_out, {name: text.encode() for name, text in files.items()})
            except OSError as error:
                way_out = f"the task's files cannot be laid out ({error.strerror}): raise episode.jail.work_bytes"
                raise RolloutError(way_out) from error
            assert jail.listener is not None
            async with self._gateway.serve(jail.listener) as url:
                with self._gateway.session(chat) as key:
                    own = _variables(url, key) | {"PATH": child_environment()["PATH"]}
                    code, tail = await run_jailed(jail, self._command, own, chat.ended, GRACE_S)
            await shielded_thread(jail.take_back, str(folder), bytes_max=BACK_BYTES)
        return code, tail


def _variables(url: str, key: str) -> dict[str, str]:
    """Variables by which a program finds the gateway."""
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": key,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "TYPER_STANDARD_TRACEBACK": "1",  # one that is drawn can take longer than GRACE_S
    }


@contextmanager
def _opened(start: JailMaker) -> Iterator[CommandJail]:
    with closing(start()) as jail:
        yield jail


def _lay_out(files: Mapping[str, str], folder: Path) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _clean_workdir(folder: Path) -> None:
    """Make what a program left in its working directory safe to read: remove pipes, sockets, devices, links that lead
    out or nowhere, and files beyond FILE_BYTES; make the rest readable. The folder exists afterwards, even if the
    program removed or replaced it. Raises OSError.
    """
    if folder.is_symlink() or not folder.is_dir():
        remove_tree(str(folder))
        folder.mkdir(0o700)
    home, waiting, links = os.path.realpath(folder), [str(folder)], list[str]()
    while waiting:
        place = waiting.pop()
        with suppress(OSError):  # too deep for a path: no process reads it by one
            os.chmod(place, 0o700)
            with os.scandir(place) as found:
                entries = list(found)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_symlink():
                    links.append(entry.path)
                elif not _readable(entry.path):
                    os.unlink(entry.path)
    for link in links:  # what they lead to has gone by now, or stays
        if not os.path.exists(link) or not os.path.realpath(link).startswith(home + os.sep):
            os.unlink(link)


def _readable(path: str) -> bool:
    """Return whether this is a file that fits into memory; makes it readable."""
    kind = os.lstat(path)
    if not stat.S_ISREG(kind.st_mode) or kind.st_size > FILE_BYTES:
        return False
    os.chmod(path, kind.st_mode | 0o600)
    return True
