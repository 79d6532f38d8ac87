"""The process around a command: signals, its environment, and standard streams that are closed, full, or not read.

Exit codes: 130 Ctrl-C, 143 SIGTERM, 129 the terminal was closed, 141 the reader of the output has gone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, TextIO

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a person or a supervisor ends a command."""
ONE_WISH_S: Final = 0.3
"""`timeout` and a shell that ends send their signal twice: within these seconds that is one request."""

_COLOURS: Final = {"- ": 31, "+ ": 32, "@ ": 36}  # red, green, cyan


def attend(command: Callable[[], int]) -> int:
    """Run a command as this process's own and return its exit code.

    Its resources are released when a signal ends it.
    """
    _open_closed_streams()
    try:
        with _signals_raise():
            code = command()
            sys.stdout.flush()
            return code
    except KeyboardInterrupt as interrupt:
        exec("")  # clears an exception of an exec (a dataclass's): `python -m` would end by SIGINT
        _tell("interrupted")
        return 128 + int(interrupt.args[0] if interrupt.args else signal.SIGINT)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 128 + signal.SIGPIPE
        _tell(f"error: {error}")
        return 2
    finally:
        _drop_unwritten()


def wants_colour(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that shows colours; NO_COLOR with any value says no (no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return not stream.closed and stream.isatty()


def print_coloured(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Print what `sandbox.differences` returns: on a terminal what was expected in red, what was got in green."""
    stream = stream or sys.stdout
    encoding = stream.encoding or "ascii"
    colours = _COLOURS if wants_colour(stream) else {}
    for line in lines:
        shown = line.encode(encoding, "backslashreplace").decode(encoding)
        colour = colours.get(line[:2])
        print(f"\x1b[{colour}m{shown}\x1b[0m" if colour else shown, file=stream)


def _open_closed_streams() -> None:
    """A stream that was closed when the program was started is None: it gets /dev/null, on the lowest free number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process lives


@contextmanager
def _signals_raise() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt with its number, a later one ends at once. One ignored stays so."""
    owner, received = os.getpid(), 0.0

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if os.getpid() != owner or (received and time.monotonic() - received > ONE_WISH_S):
            os._exit(128 + number)
        if not received:
            received = time.monotonic()
            raise KeyboardInterrupt(number)

    before = {}
    if threading.current_thread() is threading.main_thread():  # in other threads Python calls no handler
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _nobody_reads() -> bool:
    """Return whether stdout broke, and not a pipe between the sandbox's processes."""
    poller = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # it is no file, as where a test captures it
            poller.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poller.poll(0))


def _tell(line: str) -> None:
    with suppress(OSError):  # the terminal has gone
        print(f"sandbox: {line}", file=sys.stderr)


def _drop_unwritten() -> None:
    """The interpreter would complain of what cannot be written, and change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def current_environment() -> dict[str, str]:
    """A copy of this process's environment, made while another thread may change it: `dict(os.environ)` raises KeyError
    where a variable goes between its name and its value.
    """
    # Each of the two steps is one operation of the interpreter.
    return {name: value for name in list(os.environ) if (value := os.environ.get(name)) is not None}
