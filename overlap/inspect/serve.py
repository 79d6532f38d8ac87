"""Serves the page of ``overlap view`` on the loopback until it is interrupted."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import webbrowser

from overlap.core.errors import ConfigError, error_reason
from overlap.inspect.run_data import open_samples
from overlap.process.interrupts import handle_interrupts
from overlap.process.scratch import run_to_end
from sandbox.core.checks import printable

HOST = "127.0.0.1"


def serve_run(run: str, *, port: int, open_browser: bool = False) -> None:
    """Serve the page of ``run`` at ``port`` (0: any free one), until a signal raises KeyboardInterrupt.

    Raises ConfigError where there is no such run, a file of it cannot be read, or the port is taken.
    """
    import uvicorn

    from overlap.inspect.routes import RunLibrary, run_app

    library = RunLibrary(open_samples(run))
    with contextlib.closing(listen(port)) as listener, handle_interrupts() as interrupts:
        library.lists()
        address = f"http://{HOST}:{listener.getsockname()[1]}/"
        print(f"{printable(run)} at {address}   (Ctrl-C ends it)", flush=True)
        if open_browser:
            _open(address)
        config = uvicorn.Config(
            run_app(library), lifespan="off", log_config=None, log_level="critical", access_log=False, ws="none",
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        run_to_end(lambda: uvicorn.Server(config).serve([listener]), interrupts)
        interrupts.check()  # a signal that the server knows has ended it in order


def listen(port: int) -> socket.socket:
    """A socket that listens on the loopback. Raises ConfigError where the port is taken or no port."""
    try:
        return socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "is taken" if taken else f"cannot be had ({error_reason(error)})"
        raise ConfigError("--port", port, f"{why}; use another one, or --port 0 for any that is free") from error


def _open(address: str) -> None:
    """Open the page in a browser with windows of its own; one of the terminal would take the terminal."""
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        print("there is no display here to open it on", flush=True)
        return
    threading.Thread(target=webbrowser.open, args=(address,), name="browser", daemon=True).start()
