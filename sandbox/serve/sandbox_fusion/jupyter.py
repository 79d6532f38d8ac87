"""SandboxFusion's `/run_jupyter`: cells of one notebook, one after the other in a session of their own.

A cell that raises has its error, and the next one runs. A cell that does not end in time, or ends the session, is the
last; the response has those before it.
"""

from __future__ import annotations

import re
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final, Literal

from sandbox.core.nouns import MIB
from sandbox.errors import SandboxError
from sandbox.serve.answers import Refused
from sandbox.serve.bounds import SESSION_LIMITS
from sandbox.serve.sandbox_fusion import run_code
from sandbox.serve.sandbox_fusion.models import CellRunResult, RunJupyterRequest, RunJupyterResponse
from sandbox.serve.service import Service
from sandbox.session.output import Output
from sandbox.session.sessions import ProgramSession

_LAST: Final = re.compile(r"(?P<ename>[\w.]+)(?:: (?P<evalue>.*))?\Z", re.DOTALL)
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


async def run_notebook(service: Service, asked: RunJupyterRequest) -> RunJupyterResponse:
    """The response of `/run_jupyter`. Raises Refused, SandboxError."""
    files = run_code.contents(asked.files)
    fetched = {name: run_code.name_inside("fetch_files", name) for name in asked.fetch_files}
    if run_code.limits_of(asked.total_timeout, asked.memory_limit_MB).memory_bytes > SESSION_LIMITS.memory_bytes:
        most = SESSION_LIMITS.memory_bytes // MIB
        raise Refused(422, f"memory_limit_MB={asked.memory_limit_MB}: must be at most {most}, which every notebook has")
    session = service.sessions.open()
    try:
        async with run_code.answered_within(asked.total_timeout + run_code.PATIENCE_S):
            await _write(session, files)
            return await _run(session, asked, fetched)
    finally:
        await session.close()


async def _run(session: ProgramSession, asked: RunJupyterRequest, fetched: Mapping[str, str]) -> RunJupyterResponse:
    start = time.monotonic()
    outputs: list[Output] = []
    for cell in asked.cells:
        left_s = asked.total_timeout - (time.monotonic() - start)
        if left_s <= 0:
            break
        outputs.append(await session.execute(cell, timeout_s=min(asked.cell_timeout or left_s, left_s)))
        if outputs[-1].ended is not None:
            break
    spent = time.monotonic() - start
    ended = outputs[-1].ended if outputs else None
    fine = ended is None and len(outputs) == len(asked.cells)
    timed_out = ended == "timed out" or (ended is None and not fine)
    status: Literal["Finished", "TimeLimitExceeded"] = "TimeLimitExceeded" if timed_out else "Finished"
    return RunJupyterResponse(
        status="Success" if fine else "Failed",
        message="" if fine else (outputs[-1].cause if ended else "") or "total_timeout",
        driver=run_code.result(status, spent, None if timed_out else int(not fine), "", ""),
        cells=[_as_cell(output) for output in outputs],
        files=await _read(session, fetched) if fine else {},
    )


def _as_cell(output: Output) -> CellRunResult:
    display = [] if output.value is None else [{"text/plain": output.value}]
    return CellRunResult(stdout=output.stdout, stderr=output.stderr, display=display, error=_errors_of(output.error))


def _errors_of(traceback: str | None) -> list[dict[str, Any]]:
    """A traceback as a notebook has it: its last line in parts, and all lines."""
    if traceback is None:
        return []
    lines = traceback.split("\n")
    last = next((n for n in range(len(lines) - 1, -1, -1) if lines[n] and not lines[n].startswith((" ", "^"))), 0)
    found = _LAST.match("\n".join(lines[last:]))
    ename, evalue = (found["ename"], found["evalue"] or "") if found else ("Error", lines[-1])
    return [{"ename": ename, "evalue": evalue, "traceback": lines}]


async def _write(session: ProgramSession, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        for start in range(0, max(1, len(content)), _PIECE):
            data = b64encode(content[start : start + _PIECE]).decode()
            done = await session.execute(_WRITE.format(name=name, mode="ab" if start else "wb", data=data))
            if done.error or done.ended:
                raise SandboxError(f"files[{name!r}] cannot be written: {done.error or done.cause}")


async def _read(session: ProgramSession, asked: Mapping[str, str]) -> dict[str, str]:
    """Return the readable files, read by the notebook's own process: it decides what they hold, as with all output."""
    found: dict[str, str] = {}
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
