"""The socket in a run directory: ``listening`` is the side of the run, ``ask`` that of ``overlap ctl``.

    ask ── {"command": "pause"} ──▶ RUN/ctl ──▶ RunControl
        ◀── {"done": "pausing"} ──

Request and answer are one line of JSON each. The run answers from a thread of its own, and therefore also during set-up
and summary. It waits for no client: one that is slow, silent or sends too much gets an error and is disconnected.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from overlap.core.errors import ConfigError, OverlapError
from overlap.record.ownership import has_owner, how_it_ended, near_runs
from overlap.record.run_files import RunFile
from overlap.run.control import ANSWER_S, Answer, Command, RunControl, busy

LINE_BYTES = 4096
"""Longest request."""
CLIENTS = 32
"""Clients served at the same time."""
CLIENT_S = ANSWER_S + 5.0
"""Time for a client to send its request and read its answer, s."""
ASK_S = CLIENT_S + 5.0
"""Time for a run to answer, s."""
MOMENT_S = 2.0
"""Wait, s, for a run that holds its directory and does not listen: it has just started or is about to exit."""
_ANSWER_BYTES = 1 << 20
_ENDED: Answer = {"error": "the run has ended"}


@contextmanager
def listening(control: RunControl, path: Path) -> Iterator[None]:
    """Inside, the socket ``path`` takes commands from this user; afterwards the run has ended.

    Raises OSError where no socket can be made there. For the holder of the directory's lock: a socket left by an
    earlier run is removed.
    """
    ours = _bound(path)
    server = _Server(control, ours)
    try:
        server.start()
        try:
            yield
        finally:
            control.end()
    finally:
        server.close()
        ours.close()
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _bound(path: Path) -> socket.socket:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "something else is in its place", str(path))
        path.unlink()
    ours = socket.socket(socket.AF_UNIX)
    try:
        with _directory(path.parent) as short:
            ours.bind(f"{short}/{path.name}")
        path.chmod(0o600)
    except BaseException:
        ours.close()
        raise
    return ours


class _Server:
    """Answers requests on a socket, in a thread with an event loop of its own."""

    def __init__(self, control: RunControl, ours: socket.socket) -> None:
        self._steering, self._ours = control, ours
        self._clients: set[asyncio.Task[None]] = set()
        self._up, self._over = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="overlap-ctl", daemon=True)

    def start(self) -> None:
        """Raises OSError."""
        try:
            self._thread.start()
        except RuntimeError as error:  # the machine has no room for a thread
            raise OSError(errno.EAGAIN, str(error)) from error
        self._up.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Tell the clients that still wait that the run has ended."""
        with suppress(RuntimeError):  # it is not there, or has ended by itself
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._failure = error
        finally:
            self._up.set()

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._connected, sock=self._ours, limit=LINE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._up.set()
        await self._over.wait()
        server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def let_go(task: asyncio.Task[None]) -> None:
            self._clients.discard(task)
            writer.transport.abort()

        client = asyncio.create_task(self._client(reader, writer))
        self._clients.add(client)
        client.add_done_callback(let_go)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):  # it has gone, or does not read
            try:
                answer = await self._answer(reader)
            except asyncio.CancelledError:
                answer = _ENDED
            writer.write(json.dumps(answer).encode() + b"\n")
            writer.close()
            async with asyncio.timeout(CLIENT_S):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        if len(self._clients) > CLIENTS:
            return {"error": f"{CLIENTS} other clients are being served: try again"}
        try:
            async with asyncio.timeout(CLIENT_S - ANSWER_S):
                asked = await _request(reader)
        except TimeoutError:
            return {"error": f"no command came within {CLIENT_S - ANSWER_S:g} s"}
        except (ValueError, RecursionError):
            return {"error": f'a command is a line of at most {LINE_BYTES} bytes, like {{"command": "status"}}'}
        answer = asyncio.wrap_future(self._steering.ask(asked))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except TimeoutError:
            return {"error": busy(asked)}


async def _request(reader: asyncio.StreamReader) -> object:
    """Read a client's command. Raises ValueError or RecursionError for no JSON, OSError where the client has gone."""
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise ConnectionAbortedError("the client closed before the end of its line")
    asked = json.loads(line)
    return asked.get("command") if isinstance(asked, dict) else asked


def ask(run: str, command: Command) -> dict[str, Any]:
    """Send a command to the run in directory ``run``; returns the answer.

    Raises ConfigError where no run is in progress, OverlapError where the run refuses or does not answer in time.
    """
    folder, request = _folder(run), json.dumps({"command": command}).encode() + b"\n"
    until = time.monotonic() + MOMENT_S
    with _naming_faults(run):
        while True:
            try:
                return _read(run, _exchange(folder, request))
            except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
                if not has_owner(folder) or time.monotonic() >= until:
                    raise _silence(run, folder) from error
            time.sleep(MOMENT_S / 20)


@contextmanager
def _naming_faults(run: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise ConfigError("RUN", run, "belongs to another user: a run obeys only the user who started it") from error
    except TimeoutError as error:
        way_out = "its process is stopped (kill -CONT resumes it) or gets no CPU time"
        raise OverlapError(f"the run in {run} did not answer within {ASK_S:g} s: {way_out}") from error
    except OSError as error:
        raise OverlapError(f"the run in {run} cannot be asked ({error.strerror or error})") from error


def _read(run: str, line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line) if line.endswith(b"\n") else _ENDED
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise OverlapError(f"the process that listens in {run} is not a run: it answers {line[:80]!r}")
    if "error" in answer:
        raise OverlapError(str(answer["error"]))
    return answer


def _exchange(folder: Path, request: bytes) -> bytes:
    with _directory(folder) as short, socket.socket(socket.AF_UNIX) as link:
        link.settimeout(ASK_S)
        link.connect(f"{short}/{RunFile.SOCKET}")
        with suppress(ConnectionError):  # it may have said why
            link.sendall(request)
        with link.makefile("rb") as answers, suppress(ConnectionError):
            return answers.readline(_ANSWER_BYTES)
    return b""


def _folder(run: str) -> Path:
    try:
        folder = Path(run).expanduser().absolute()
        if folder.is_dir():
            return folder
        why = "is not a directory" if os.path.lexists(folder) else "does not exist"
    except (OSError, RuntimeError, ValueError) as error:
        why = f"is not a usable path ({error})"
    near = near_runs(Path(run).expanduser()) if why == "does not exist" else []
    way_out = "name a run directory (a run makes it once its policy and data are loaded)"
    raise ConfigError("RUN", run, f"{why}: {f'did you mean {near[0]}?' if near else way_out}")


def _silence(run: str, folder: Path) -> OverlapError:
    """The error that says why nothing listens in a directory."""
    if has_owner(folder):
        return OverlapError(
            f"the run in {run} does not listen: it is starting or ending, or has no socket (see run.log)"
        )
    if not RunFile.CONFIG.of(folder).is_file():
        return ConfigError("RUN", run, "contains no run: name a run directory (run.dir)")
    return ConfigError("RUN", run, f"no run is in progress there: {how_it_ended(folder)}")


@contextmanager
def _directory(folder: Path) -> Iterator[str]:
    """Yield a name of ``folder`` that fits into a socket's address (107 bytes), however long its path is."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
