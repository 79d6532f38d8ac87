"""What the stages of ``check.py`` have in common: where they work, and rows {"check", "ok", figures...}.

``ok`` is None for a check that was left out; then, and where it is False, ``why`` says why.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from overlap.process.process_tree import bind_to_parent

Row = dict[str, Any]
GIB, MIB = 2**30, 2**20
OVER = 0.10
"""By so much a device may have more in use than is planned."""
_SAID = 1500  # characters of a traceback, from its end


@dataclass(frozen=True)
class Place:
    """Where a stage works: a directory of its own, "cuda" or "cpu", and the policy of those that want a real one."""

    scratch: Path
    device: str
    policy: str = ""
    long: bool = False
    """Whether rows are wanted for which there is not always time."""

    @property
    def gpus(self) -> int:
        """How many there are."""
        import torch

        return int(torch.cuda.device_count()) if self.device == "cuda" else 0

    @property
    def rehearses(self) -> bool:
        """On a CPU everything is small."""
        return self.device == "cpu"


def attempt(check: str, make: Callable[[], Row]) -> Row:
    """The row that ``make`` makes, or a failed one that says what it raised: the next check is made all the same."""
    began = time.monotonic()
    try:
        row = make()
    except Exception as error:
        row = {"ok": False, "why": said(error)}
    return {"check": check, **row, "took_s": round(time.monotonic() - began, 2)}


def said(error: BaseException) -> str:
    """The end of an error's traceback, in one line."""
    lines = [line.strip() for line in "".join(traceback.format_exception(error)).splitlines()]
    return " | ".join(line for line in lines if line.strip("~^ "))[-_SAID:]


def apart(work: Callable[..., Iterator[Row]], *args: Any) -> Iterator[Row]:
    """The rows of ``work``, called in a process of its own: what it leaves on a device goes with it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs, work, args), daemon=True)
    child.start()
    theirs.close()
    ended = False
    try:
        while True:
            try:
                row = ours.recv()
            except EOFError:
                break
            if row is None:
                ended = True
                break
            yield row
        child.join(30)
        if not ended:
            yield {"check": f"{work.__name__} {args[-1]}", "ok": False, "why": f"exit code {child.exitcode}"}
    finally:
        child.kill()
        child.join(10)
        ours.close()


def _serve(out: Connection, work: Callable[..., Iterator[Row]], args: tuple[Any, ...]) -> None:
    bind_to_parent(os.getppid())
    try:
        for row in work(*args):
            out.send(row)
    except Exception as error:
        out.send({"check": f"{work.__name__} {args[-1]}", "ok": False, "why": said(error)})
    out.send(None)
