"""The process `sandbox`, or `python -m sandbox`: it hears signals before it imports `sandbox.cli`, which takes time."""

import os
import signal
from contextlib import suppress
from types import FrameType


def command() -> int:
    """The exit code. Before and after the command itself there is nothing to end in order."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_at_once)
    from sandbox.cli import main

    return main()


def _end_at_once(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"sandbox: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    raise SystemExit(command())
