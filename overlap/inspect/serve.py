"""Serves the page of ``overlap view`` on the loopback until it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Iterator

from overlap.core.aio import unwrapped
from overlap.core.errors import ConfigError, error_reason
from overlap.inspect.library import RunLibrary
from overlap.inspect.source import open_samples
from overlap.process.interrupts import handle_interrupts
from overlap.process.scratch import run_to_end
from sandbox.core.checks import printable

HOST = "127.0.0.1"
CLOSE_S = 5.0


def serve_run(run: str, *, port: int, open_browser: bool = False) -> None:
    """Serve the page of ``run`` at ``port`` (0: any free one), until a signal raises KeyboardInterrupt.

    Raises ConfigError where there is no such run, a file of it cannot be read, or the port is taken.
    """
    library = RunLibrary(open_samples(run))
    with contextlib.closing(listen(port)) as listener, handle_interrupts() as interrupts:
        address = f"http://{HOST}:{listener.getsockname()[1]}/"
        print(f"{printable(run)} at {address}   (Ctrl-C ends it)", flush=True)

        async def work() -> None:
            with unwrapped():
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(asyncio.to_thread(library.lists), name="read samples")
                    if open_browser:
                        _open(address)
                    await _serve(library, listener)

        run_to_end(work, interrupts)


def listen(port: int) -> socket.socket:
    """A socket that listens on the loopback. Raises ConfigError where the port is taken or no port."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, port))
        made.listen()
    except (OSError, OverflowError) as error:
        made.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "is taken" if taken else f"cannot be had ({error_reason(error)})"
        raise ConfigError("--port", port, f"{why}; use another one, or --port 0 for any that is free") from error
    return made


async def _serve(library: RunLibrary, listener: socket.socket) -> None:
    import uvicorn

    from overlap.inspect.routes import run_app

    class Server(uvicorn.Server):
        """Leaves signals to the command."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    server = Server(
        uvicorn.Config(
            run_app(library), lifespan="off", log_config=None, log_level="critical", access_log=False, ws="none",
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=1,
        )
    )  # fmt: skip
    serving = asyncio.create_task(server.serve([listener]), name="page")
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await asyncio.wait([serving], timeout=CLOSE_S)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def _open(address: str) -> None:
    """Open the page in a browser with windows of its own; one of the terminal would take the terminal."""
    import webbrowser

    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        print("there is no display here to open it on", flush=True)
        return
    threading.Thread(target=webbrowser.open, args=(address,), name="browser", daemon=True).start()
