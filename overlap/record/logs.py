"""The terminal is for the run's own lines; output of the engine and of libraries goes to the log file.

:func:`quiet` is for a command, whose process is the run's own: it points the file descriptors 1 and 2 at the log, so
that Python's logging, warnings, prints, C++ code and child processes all land there, and gives a :class:`Console` that
still writes to the real terminal. :func:`guest` is for a run in the caller's own process, a script or a notebook:
descriptors, streams and handlers stay as they are, and only what libraries log on behalf of the run goes to the log.
Child processes of a run have its log as their output in both cases.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

import rich.progress
from rich.text import Text

from overlap.process.atomic import guarded

LIBRARIES = frozenset(
    {"absl", "accelerate", "asyncio", "datasets", "DeepSpeed", "dill", "filelock", "fsspec", "httpcore", "httpx"}
    | {"huggingface_hub", "matplotlib", "overlap", "peft", "PIL", "ray", "sandbox", "tensorboard", "torch"}
    | {"transformers", "urllib3", "uvicorn", "vllm"}
)
"""First parts of the names of the loggers that a run's process uses; those of a task are the caller's."""
_FORMAT = logging.Formatter("%(levelname)s %(asctime)s [%(name)s] %(message)s", "%m-%d %H:%M:%S")
_SILENCED = -1
"""A level below that of every handler, the last resort's too."""
_LIBRARY_LOG: ContextVar[TextIO | None] = ContextVar("_LIBRARY_LOG", default=None)
"""Stream to which libraries log in the threads and tasks of a run."""


class Console:
    """Prints lines for a person. A terminal that has gone (closed pipe, lost session) is ignored: the run goes on.
    Without a stream they go to the log only.
    """

    def __init__(self, stream: TextIO | None, log: TextIO | None = None) -> None:
        self.stream, self.log = stream, log
        self.live: rich.progress.Progress | None = None
        """A progress bar on the terminal, above which lines are printed."""

    @property
    def tty(self) -> bool:
        """True when the stream is a terminal that understands a progress bar."""
        if self.stream is None or self.stream.closed:
            return False
        return self.stream.isatty() and os.environ.get("TERM") != "dumb"

    def print(self, text: str = "") -> None:
        """Write a line, above the progress bar if there is one, and into the log."""
        self.note(text)
        with suppress(OSError, ValueError):  # ValueError: the stream has been closed
            if self.live is not None:
                self.live.console.print(Text(text), soft_wrap=True)
            elif self.stream is not None:
                self.stream.write(text + "\n")
                self.stream.flush()

    def note(self, text: str) -> None:
        """Write a line into the log only."""
        if self.log is not None:
            self.log.write(text + "\n")


class _Chatter(io.TextIOWrapper):
    """Text to a file descriptor, unbuffered. On a full disk, output is lost without an error: libraries print here."""

    def __init__(self, fd: int, *, owned: bool = False) -> None:
        # TextIOWrapper drops what a failed write left behind; a BufferedWriter would try it again at exit.
        raw = io.FileIO(fd, "w", closefd=owned)
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", write_through=True)

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


OpenConsole = Callable[[Path], AbstractContextManager[Console]]
"""``quiet``, or ``guest`` with a stream."""


@contextmanager
def guest(log_path: Path, stream: TextIO | None) -> Iterator[Console]:
    """Leave the output of this process as it is, and yield a console that writes to ``stream`` (None: nowhere) and to
    ``log_path`` (appended).

    What libraries log in this thread, its tasks and ``asyncio.to_thread``, goes to the log instead of to the handlers
    of their loggers, whenever those are set up. Raises RunDirError.
    """
    with _opened(log_path) as log, _library_records():
        set_before = _LIBRARY_LOG.set(log)
        console = Console(stream, log)
        try:
            yield console
        finally:
            _LIBRARY_LOG.reset(set_before)
            console.log = console.live = None


@contextmanager
def _library_records() -> Iterator[None]:
    """Inside, each record that a library logs with a ``_LIBRARY_LOG`` set is written there, and given to no handler."""
    before = logging.getLogRecordFactory()

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = before(*args, **kwargs)
        log = _LIBRARY_LOG.get()
        if log is not None and record.name.partition(".")[0] in LIBRARIES:
            with suppress(Exception):  # a message that does not fit its arguments; logging prints such a one itself
                log.write(_FORMAT.format(record) + "\n")
                record.levelno = _SILENCED
        return record

    logging.setLogRecordFactory(factory)
    try:
        yield
    finally:
        if logging.getLogRecordFactory() is factory:  # else a later factory calls this one, which now does nothing
            logging.setLogRecordFactory(before)


@contextmanager
def quiet(log_path: Path) -> Iterator[Console]:
    """Send the output of this process and its future children to ``log_path`` (appended); yield the console.

    Undoes everything at the end, also after an exception or Ctrl-C. The console may be used afterwards.
    Raises RunDirError.
    """
    stderr = sys.stderr
    with _opened(log_path) as log, ExitStack() as undo:
        console = Console(stderr, log)
        # A stream without the descriptor is an object of the caller, which no redirection touches.
        with suppress(OSError, ValueError):
            if stderr is not None and stderr.fileno() == 2:
                console.stream = undo.enter_context(_Chatter(_dup(2), owned=True))
        _flush()
        for fd in (1, 2):
            _redirect(fd, log.fileno(), undo)
        # Not to the log itself: a library that keeps one of the streams goes on with the descriptor's later file.
        undo.enter_context(redirect_stdout(_Chatter(1)))
        undo.enter_context(redirect_stderr(_Chatter(2)))
        undo.callback(_flush)
        try:
            yield console
        finally:
            console.log = console.live = None
            console.stream = stderr


@contextmanager
def _opened(log_path: Path) -> Iterator[_Chatter]:
    """The log, to be appended to. Raises RunDirError."""
    with guarded(log_path), log_path.open("ab", buffering=0) as file:
        log = _Chatter(_dup(file.fileno()), owned=True)
    with log:  # a thread that logs later must not write to whatever has its descriptor then
        yield log


def _dup(fd: int) -> int:
    """A duplicate that children do not inherit, above 2: a program may be started with 0, 1 or 2 closed."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _redirect(fd: int, log_fd: int, undo: ExitStack) -> None:
    try:
        saved = _dup(fd)
    except OSError:  # the process was started with this descriptor closed
        undo.callback(os.close, fd)
    else:
        undo.callback(os.close, saved)
        undo.callback(os.dup2, saved, fd)
    os.dup2(log_fd, fd)


def _flush() -> None:
    """Write out what Python and C code have printed."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):  # full, or closed
                stream.flush()
    ctypes.CDLL(None).fflush(None)
