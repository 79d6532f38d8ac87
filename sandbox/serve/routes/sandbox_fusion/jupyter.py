"""SandboxFusion's `/run_jupyter`: cells of one notebook, one after the other in a session of their own.

A cell that raises has its error, and the next one runs. A cell that does not end in time, or ends the session, is the
last; the response has those before it.
"""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

from sandbox.core.nouns import MIB
from sandbox.errors import SandboxError
from sandbox.serve.bodies import Json
from sandbox.serve.bounds import RUN_S_MAX, SESSION_LIMITS
from sandbox.serve.routes.sandbox_fusion import run_code
from sandbox.serve.routes.shared import fields, runs
from sandbox.serve.routes.shared.tracebacks import errors_of
from sandbox.serve.service import Service
from sandbox.session.output import Output
from sandbox.session.sessions import ProgramSession

_PIECE: Final = MIB
"""Bytes of a file that are written or read by one call."""
_WRITE: Final = """
import base64, os
os.makedirs(os.path.dirname({name!r}) or ".", exist_ok=True)
with open({name!r}, {mode!r}) as file:
    file.write(base64.b64decode({data!r}))
del file
"""
_READ: Final = """
import base64, os, sys
with open(os.open({name!r}, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
    file.seek({start})
    sys.stdout.write(base64.b64encode(file.read({size})).decode())
del file
"""


async def run_notebook(service: Service, body: Mapping[str, Any]) -> Json:
    """The response of `/run_jupyter`. Raises Refused, SandboxError."""
    cells = fields.texts(body, "cells")
    total_s = fields.above_zero(body, "total_timeout", 45.0, most=RUN_S_MAX)
    given = {"cell_timeout": body.get("cell_timeout") or total_s}  # 0 is no limit
    cell_s = fields.above_zero(given, "cell_timeout", total_s, most=RUN_S_MAX)
    files, asked = run_code.files_of(body), run_code.asked_files(body)
    if (kernel := fields.text(body, "kernel", "python3")) != "python3":
        raise fields.refusal("kernel", kernel, "python3")
    if run_code.limits_of(body, cell_s).memory_bytes > SESSION_LIMITS.memory_bytes:
        most = SESSION_LIMITS.memory_bytes // MIB
        raise fields.refusal("memory_limit_MB", body["memory_limit_MB"], f"at most {most}, which every notebook has")
    session = service.sessions.open()
    try:
        async with runs.answered_within(total_s + runs.PATIENCE_S):
            await _write(session, files)
            return await _run(session, cells, total_s, cell_s, asked)
    finally:
        await session.close()


async def _run(
    session: ProgramSession, cells: list[str], total_s: float, cell_s: float, asked: Mapping[str, str]
) -> Json:
    start = time.monotonic()
    outputs: list[Output] = []
    for cell in cells:
        left_s = total_s - (time.monotonic() - start)
        if left_s <= 0:
            break
        outputs.append(await session.execute(cell, timeout_s=min(cell_s, left_s)))
        if outputs[-1].ended is not None:
            break
    spent = time.monotonic() - start
    ended = outputs[-1].ended if outputs else None
    fine = ended is None and len(outputs) == len(cells)
    files = await _read(session, asked) if fine else {}
    timed_out = ended == "timed out" or (ended is None and not fine)
    driver = run_code.result(
        "TimeLimitExceeded" if timed_out else "Finished", spent, None if timed_out else int(not fine), "", ""
    )
    return {
        "status": "Success" if fine else "Failed",
        "message": "" if fine else (outputs[-1].cause if ended else "") or "total_timeout",
        "driver": driver,
        "cells": [_as_cell(output) for output in outputs],
        "executor_pod_name": None,
        "files": files,
    }


def _as_cell(output: Output) -> Json:
    display = [] if output.value is None else [{"text/plain": output.value}]
    return {"stdout": output.stdout, "stderr": output.stderr, "display": display, "error": errors_of(output.error)}


async def _write(session: ProgramSession, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        for start in range(0, max(1, len(content)), _PIECE):
            data = b64encode(content[start : start + _PIECE]).decode()
            done = await session.execute(_WRITE.format(name=name, mode="ab" if start else "wb", data=data))
            if done.error or done.ended:
                raise SandboxError(f"files[{name!r}] cannot be written: {done.error or done.cause}")


async def _read(session: ProgramSession, asked: Mapping[str, str]) -> Json:
    """What can be read of them, by the notebook's own process: it decides what they hold, as with all its output."""
    found: Json = {}
    for name, inside in asked.items():
        content = b""
        while True:
            done = await session.execute(_READ.format(name=inside, start=len(content), size=_PIECE))
            try:
                piece = b64decode(done.stdout, validate=True)
            except ValueError:
                break
            if done.error or done.ended or len(content) + len(piece) > SESSION_LIMITS.file_limit_bytes:
                break
            content += piece
            if len(piece) < _PIECE:
                found[name] = b64encode(content).decode()
                break
    return found
