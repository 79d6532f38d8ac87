"""The scratch directory of a run, which a reaper removes with it, and the event loop in which the run works."""

from __future__ import annotations

import asyncio
import contextvars
import os
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path

from overlap.core.errors import ConfigError, OverlapError
from overlap.process.interrupts import Interrupts
from overlap.process.reaper import Reaper
from overlap.process.run_environment import run_name
from sandbox.kernel.clear import remove_tree

_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
LOOK_S = 0.5
"""Seconds after which a thread that waits for another one looks for signals again."""


@contextmanager
def scratch_directory(*, detached: bool = False) -> Iterator[tuple[Path, Reaper]]:
    """Make a private directory for a run; yields it and the reaper (``detached``: see ``Reaper``) that removes it
    however the run ends. What torch compiles is in there, too, unless TORCHINDUCTOR_CACHE_DIR is set. Raises
    ConfigError where the directory cannot be made, OverlapError where no process can be started.
    """
    path = temporary_directory() / f"ovl-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        try:
            reaper = stack.enter_context(Reaper(run_name(path), detached=detached))
        except OSError as error:
            way_out = "end other programs, or allow more processes (ulimit -u)"
            raise OverlapError(f"no process can be started ({error.strerror or error}): {way_out}") from error
        reaper.watch_path(path)  # before it is there: a signal may come at any time
        stack.callback(remove_tree, str(path))
        with _usable("TMPDIR", str(path.parent), "free space, or set TMPDIR elsewhere"):
            path.mkdir(0o700)
        if not detached and _COMPILED not in os.environ:  # torch makes a folder at its import, by default in TMPDIR
            os.environ[_COMPILED] = str(path / "compiled")
            stack.callback(os.environ.pop, _COMPILED, None)
        yield path, reaper


def temporary_directory() -> Path:
    """Directory of temporary files. Raises ConfigError."""
    with _usable("working directory", ".", "change to another"):
        os.getcwd()
    with _usable("TMPDIR", os.environ.get("TMPDIR", ""), "free space, or set TMPDIR to a directory to write in"):
        return Path(tempfile.gettempdir()).absolute()


@contextmanager
def _usable(field: str, value: str, way_out: str) -> Iterator[None]:
    """Turn an OSError about a directory into a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(field, value, f"cannot be used ({error.strerror or error}): {way_out}") from error


def run_to_end(
    work: Callable[[], Awaitable[None]], interrupts: Interrupts, again: Callable[[], bool] | None = None
) -> None:
    """Run a coroutine function to its end, from a plain program, from a thread, or inside a running event loop.
    ``again``: see ``Interrupts.run``.
    """
    if asyncio._get_running_loop() is None:  # a plain program, or a thread
        asyncio.run(interrupts.run(work, again))
        return
    with interrupts.held(), ThreadPoolExecutor(1, "overlap-run") as threads:
        ended = threads.submit(contextvars.copy_context().run, lambda: asyncio.run(interrupts.run(work, again)))
        while not ended.done():  # a signal in the moment in which a wait begins is noticed only behind that
            wait([ended], LOOK_S)
    ended.result()
    interrupts.check()
