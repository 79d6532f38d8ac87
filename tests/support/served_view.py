"""``overlap view`` as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def served_view(run: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of the page about ``run``, and the process, which is killed at the end."""
    command = [sys.executable, "-m", "overlap.cli", "view", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = next((word for word in line.split() if word.startswith("http://127.0.0.1:")), "")
            assert address, line + process.communicate()[1]
            yield address, process
        finally:
            process.kill()
