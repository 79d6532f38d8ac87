"""The process of a tracker: reads calls from its input, one JSON line each, and answers each by a line.

    python -m overlap.trackers.child overlap.trackers.services:WandbRun

What packages print goes to the log of the run. When the input ends, the tracker is told that the run was lost, if
nobody has told it otherwise, and the process ends within a bound.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from importlib import import_module
from typing import Any, BinaryIO

from overlap.errors import one_line
from overlap.record.run_exit import RunExit
from overlap.trackers.tracker import TrackedRun, Tracker, TrackerRefused

END_S = 10.0
"""Time for the tracker after the run has been lost, s."""


def main(path: str) -> None:
    """Serve the tracker ``path`` ("module:Class") until the input ends."""
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(calls, inbox), daemon=True).start()
    module, _, name = path.partition(":")
    tracker: Tracker = getattr(import_module(module), name)()
    started, ended = False, False
    while line := inbox.get():
        call = json.loads(line)
        answer = _answer(tracker, call["call"], call["args"])
        started, ended = started or not answer, ended or call["call"] == "end"
        with contextlib.suppress(OSError):  # nobody listens any more: the input will end
            answers.write(json.dumps(answer).encode() + b"\n")
    if started and not ended:
        _answer(tracker, "end", [f"{RunExit.ERROR}: the process of the run was lost", {}])
    sys.stderr.flush()
    os._exit(0)  # whatever threads the package has left


def _read(calls: BinaryIO, inbox: queue.SimpleQueue[bytes]) -> None:
    """Hand on the lines; after the last one the process has ``END_S`` left."""
    for line in calls:
        inbox.put(line)
    last = threading.Timer(END_S, os._exit, (1,))
    last.daemon = True
    last.start()
    inbox.put(b"")


def _answer(tracker: Tracker, method: str, args: list[Any]) -> dict[str, str]:
    try:
        getattr(tracker, method)(*([TrackedRun(**args[0])] if method == "start" else args))
    except TrackerRefused as error:
        return {"refused": one_line(error, 300)}
    except (Exception, SystemExit) as error:  # whatever the package raises: it costs this call alone
        broken = method == "start" and isinstance(error, ImportError)
        return {"refused" if broken else "error": one_line(f"{type(error).__name__}: {error}", 300)}
    return {}


if __name__ == "__main__":
    main(sys.argv[1])
