"""An agent program in a jail of the sandbox: a working directory, the gateway's endpoint, and nothing else.

    the task's files ──▶ jail ── the program ⇄ its loopback ── the jail's listening socket ⇄ gateway
                           │ ends, with all of its processes
                           ▼
                  what it left, in a directory of the run

The socket was made inside the jail's network namespace, and the gateway accepts from outside: nothing forwards, and
nothing else is there to be reached. The jail ends with this process, however that ends.

Of the machine's files it reads the tools, ``episode.jail.readable``, and what the words of its command name:
``python /my/agent.py --task x``  ─▶  the interpreter's directories, /my/agent.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

from pydantic import Field

from overlap.config.fields import Config
from overlap.config.hints import section_from
from overlap.config.rules import Number, Whole
from overlap.core.aio import race, shielded
from overlap.core.errors import ConfigError
from overlap.process.run_environment import child_environment, command_words
from overlap.server.episodes import HarnessCrashed
from overlap.server.harness_process import StderrTail
from sandbox.core.nouns import MIB, Limits
from sandbox.errors import Cancelled, SandboxError
from sandbox.session.commands import CommandJail

JailMaker = Callable[[], CommandJail]
"""Starts a jail of a run's programs. Raises SandboxError where the machine cannot isolate so."""
BACK_BYTES = 64 * MIB
"""Bytes of the files left by a program that are brought back, at most."""
_KILLED = 137
_WALL_S = 1_000_000.0
"""The owner ends the program; its clock is paused while the engine sleeps."""
_PYTHON_S = 20.0
_SYSTEM = ("/", "/usr", "/usr/local")
_SHEBANG = re.compile(rb"#!\s*(/\S+)(?:\s+(\S+))?")
_ASK = """
import glob, json, sys
homes = sys.prefix, sys.base_prefix
own = [path for path in homes if path not in ("/", "/usr", "/usr/local")]
found = [path for path in sys.path if path.startswith(tuple(home + "/lib" for home in homes))]  # no .pth leads out
print(json.dumps([*own, *found, *glob.glob(sys.base_prefix + "/lib/libpython*")]))
"""


@dataclass(frozen=True, slots=True)
class JailOptions:
    """``episode.jail``: paths that a program may read, and limits of all its processes together."""

    readable: tuple[str, ...] = ()
    cpu_s: Annotated[Number, Field(ge=0)] = 0.0
    """0: ``episode.timeout_s``."""
    memory_bytes: Annotated[Whole, Field(gt=0)] = 2048 * MIB
    processes: Annotated[Whole, Field(gt=0)] = 256
    open_files: Annotated[Whole, Field(gt=0)] = 1024
    work_bytes: Annotated[Whole, Field(gt=0)] = 256 * MIB
    """Size of the working directory."""


def agent_space(cfg: Config) -> JailMaker | None:
    """Maker of the jails that the configuration asks for; None where agents are not isolated. Raises ConfigError, and
    SandboxError for limits that no jail can have.
    """
    episode = cfg.episode
    if episode.jail is None:
        return None
    asked = asdict(section_from(JailOptions, episode.jail, "episode.jail"))
    readable = readable_paths(episode.command, asked.pop("readable"))
    check_open_to_others(readable)
    work_bytes = asked.pop("work_bytes")
    asked |= {"cpu_s": asked["cpu_s"] or episode.timeout_s, "output_bytes": min(work_bytes, Limits().output_bytes)}
    limits = Limits(wall_s=_WALL_S, file_bytes=work_bytes, **asked)
    return partial(CommandJail, "A", limits, work_bytes=work_bytes, readable=readable, network=True)


def check_space(cfg: Config) -> None:
    """Raise ConfigError where agents cannot be isolated as ``cfg`` asks. Starts a jail where it asks for one."""
    try:
        if start := agent_space(cfg):
            start().close()
    except SandboxError as error:
        raise ConfigError("episode.jail", cfg.episode.jail, str(error)) from error


async def run_jailed(
    jail: CommandJail, command: str, environment: Mapping[str, str], over: asyncio.Event, grace_s: float
) -> tuple[int, str]:
    """Run the program to its end, in a thread of its own; it is killed ``grace_s`` after ``over``. Returns the exit
    status and the end of stderr. Raises HarnessCrashed where a limit ended it, SandboxError.
    """
    stderr, null = StderrTail(), os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    threads = ThreadPoolExecutor(1, "agent")
    try:
        work = partial(jail.run, command, environment=environment, pipes=(null, null, stderr.target))
        running = asyncio.get_running_loop().run_in_executor(threads, work)
        try:
            await race(running, over.wait())
            await race(running, asyncio.sleep(grace_s))
        finally:
            if not running.done():
                jail.cancel()
            with suppress(Cancelled):
                await shielded(running)
            jail.resume()
        stderr.listen()
        if isinstance(running.exception(), Cancelled):
            return _KILLED, stderr.text
        done = running.result()
    finally:
        stderr.close_target()
        stderr.close()
        os.close(null)
        threads.shutdown(wait=False)
    if done.cause is not None:
        raise HarnessCrashed(f"episode.command was ended, by its limit or rule: {done.cause} (episode.jail)")
    return done.exit_code if done.exit_code is not None else 128 + (done.signal or 0), stderr.text


def readable_paths(command: str, readable: Iterable[str]) -> tuple[str, ...]:
    """Paths that exist, each with what it leads to. Raises ConfigError for one of ``readable`` that cannot be shown."""
    found: dict[str, None] = {}
    for path in readable:
        _check(path)
        found |= dict.fromkeys((os.path.normpath(path), os.path.realpath(path)))
    for path in _named(command):
        for one in (path, *_interpreters(path)):
            found |= dict.fromkeys((os.path.normpath(one), os.path.realpath(one)))
            found |= dict.fromkeys(_directories_of_python(one))
    return tuple(found)


def _check(path: str) -> None:
    if not os.path.isabs(path) or os.path.realpath(path) in _SYSTEM:
        way_out = "name files and directories by their whole paths, and no more than the program needs"
        raise ConfigError("episode.jail.readable", path, way_out)
    if not os.path.exists(path):
        raise ConfigError("episode.jail.readable", path, "there is no such file or directory")


def check_open_to_others(paths: Iterable[str]) -> None:
    """Raise ConfigError where root's isolated programs, which are another user's, may not read one of these."""
    if os.geteuid() != 0:
        return
    for path in paths:
        needed = 0o005 if os.path.isdir(path) else 0o004
        if os.path.exists(path) and os.stat(path).st_mode & needed != needed:
            way_out = f"an isolated program of root is another user, who may not read it: chmod -R o+rX {path}"
            raise ConfigError("episode.jail.readable", path, way_out)


def _named(command: str) -> Iterator[str]:
    """Files that the words of a command name: by their whole path, or the program on the PATH."""
    path = child_environment()["PATH"]
    for word in command_words(command):
        if os.path.isabs(word) and os.path.isfile(word):
            yield word
        elif "/" not in word and (program := shutil.which(word, path=path)):
            yield program


def _interpreters(path: str) -> Iterator[str]:
    """Yield the programs that read a script, as its first line names them."""
    if not os.access(path, os.R_OK):
        return
    with open(path, "rb") as file:
        line = file.readline(256)
    if found := _SHEBANG.match(line):
        first, second = (os.fsdecode(part or b"") for part in found.groups())
        program = shutil.which(second, path=child_environment()["PATH"]) if first.endswith("/env") else first
        if program:
            yield program


def _directories_of_python(path: str) -> list[str]:
    """Return the directories that a Python imports from by default; none for another program. An editable install is
    elsewhere, and is readable only where ``episode.jail`` names it.
    """
    if not re.fullmatch(r"python[\d.]*", os.path.basename(path)) or not os.access(path, os.X_OK):
        return []
    try:
        asked = [path, "-I", "-c", _ASK]
        done = subprocess.run(
            asked, env=child_environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=_PYTHON_S, check=True
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [one for one in found if os.path.exists(one) and one not in _SYSTEM]
