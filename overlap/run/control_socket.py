"""The socket in a run directory: ``listening`` is the side of the run, ``ask`` that of ``overlap ctl``.

    ask ── {"command": "pause"} ──▶ RUN/ctl ──▶ RunControl
        ◀── {"done": "pausing"} ──

Request and answer are one line of JSON each. The run answers in a thread for each client, and therefore also during
set-up and summary. It waits for no client: one that is slow or silent is disconnected.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from typing import Any

from overlap.core.errors import ConfigError, OverlapError
from overlap.record.ownership import find_run_file, has_owner, how_it_ended
from overlap.record.run_files import RunFile
from overlap.run.control import ANSWER_S, Answer, Command, RunControl

LINE_BYTES = 4096
"""Longest request."""
REQUEST_S = 5.0
"""Time for a client to send its request, and then to read its answer, s."""
ASK_S = REQUEST_S + ANSWER_S + 5.0
"""Time for a run to answer, s."""
MOMENT_S = 2.0
"""Wait, s, for a run that holds its directory and does not listen: it has just started or is about to exit."""


@contextmanager
def listening(control: RunControl, path: Path) -> Iterator[None]:
    """Inside, the socket ``path`` takes commands from this user; afterwards the run has ended.

    Raises OSError where no socket can be made there. For the holder of the directory's lock: a socket left by an
    earlier run is removed.
    """
    if path.is_socket():
        path.unlink()
    with _directory(path.parent) as short:
        server = _Server(control, f"{short}/{path.name}")
    with server:
        threading.Thread(target=server.serve_forever, args=(0.1,), name="overlap-ctl", daemon=True).start()
        try:
            yield
        finally:
            control.end()
            server.shutdown()
            with suppress(OSError):
                path.unlink()


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, control: RunControl, path: str) -> None:
        self.control = control
        super().__init__(path, _Client)

    def server_bind(self) -> None:
        super().server_bind()
        os.chmod(str(self.server_address), 0o600)  # before anyone can connect

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Forget a client that has gone, or does not read its answer; another error is a fault and is printed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Client(StreamRequestHandler):
    timeout = REQUEST_S

    def handle(self) -> None:
        self.wfile.write(json.dumps(self._answer()).encode() + b"\n")

    def _answer(self) -> Answer:
        assert isinstance(self.server, _Server)
        try:
            asked = json.loads(self.rfile.readline(LINE_BYTES))
            return self.server.control.request(asked.get("command") if isinstance(asked, dict) else asked)
        except OverlapError as error:
            return {"error": str(error)}
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            return {"error": f'a command is a line of at most {LINE_BYTES} bytes, like {{"command": "status"}}'}


def ask(run: str, command: Command) -> dict[str, Any]:
    """Send a command to the run in directory ``run``; returns the answer.

    Raises ConfigError where no run is in progress, OverlapError where the run refuses or does not answer in time.
    """
    way_out = "name a run directory (a run makes it once its policy and data are loaded)"
    folder = find_run_file(run, RunFile.CONFIG, field="RUN", way_out=way_out).parent
    try:
        line = _line_from(run, folder, json.dumps({"command": command}).encode() + b"\n")
    except OSError as error:
        if isinstance(error, PermissionError):
            way_out = "belongs to another user: a run obeys only the user who started it"
            raise ConfigError("RUN", run, way_out) from error
        why = f"cannot be asked ({error.strerror or error})"
        if isinstance(error, TimeoutError):
            why = (
                f"did not answer within {ASK_S:g} s: its process is stopped (kill -CONT resumes it) or gets no CPU time"
            )
        raise OverlapError(f"the run in {run} {why}") from error
    answer: dict[str, Any] = json.loads(line or '{"error": "the run has ended"}')
    if "error" in answer:
        raise OverlapError(str(answer["error"]))
    return answer


def _line_from(run: str, folder: Path, request: bytes) -> bytes:
    """The answer to a request; b"" where the run ends meanwhile. Waits a moment for a run that does not listen."""
    until = time.monotonic() + MOMENT_S
    while True:
        try:
            with _directory(folder) as short, socket.socket(socket.AF_UNIX) as link:
                link.settimeout(ASK_S)
                link.connect(f"{short}/{RunFile.SOCKET}")
                with suppress(ConnectionResetError, BrokenPipeError), link.makefile("rwb") as stream:
                    stream.write(request)
                    stream.flush()
                    return stream.readline()
                return b""
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if not has_owner(folder):
                raise ConfigError("RUN", run, f"no run is in progress there: {how_it_ended(folder)}") from error
            if time.monotonic() >= until:
                why = "does not listen: it is starting or ending, or has no socket (see run.log)"
                raise OverlapError(f"the run in {run} {why}") from error
        time.sleep(MOMENT_S / 20)


@contextmanager
def _directory(folder: Path) -> Iterator[str]:
    """Yield a name of ``folder`` that fits into a socket's address (107 bytes), however long its path is."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
