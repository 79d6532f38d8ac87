"""The process `sandbox` (`python -m sandbox`). Handles signals before it imports `sandbox.cli`, which takes time."""

import os
import signal
from contextlib import suppress
from types import FrameType


def command() -> int:
    """Run the command and return its exit code. Outside the command itself no cleanup is needed."""
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
