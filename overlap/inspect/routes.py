"""``overlap view``: serves the page, and JSON about the run and its samples, on the loopback.

What a model wrote is hostile: it leaves as JSON, the page puts it in as text, and no script runs but the page's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from overlap.core.errors import ConfigError, OverlapError, refusing
from overlap.inspect.page_data import json_text, page_html, page_policy, run_facts, run_lists
from overlap.inspect.run_data import RunData, open_samples
from overlap.inspect.sample_parts import sample_parts, token_parts
from overlap.process.interrupts import handle_interrupts
from overlap.process.scratch import run_to_end
from overlap.record.run_files import RunFile
from overlap.record.sample_file import SampleHead
from sandbox.core.checks import printable

HOST = "127.0.0.1"
HOSTS = [HOST, "localhost"]
"""Other names would be those of a page elsewhere that has its own name point here (DNS rebinding)."""
HEADERS = {
    "Content-Security-Policy": page_policy(served=True),
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Place = tuple[int, int, int]
"""Step, group, sample."""
_FILES = (RunFile.GROUPS, RunFile.METRICS, RunFile.SUMMARY)
_NUMBERS = b', "token_ids": "'
"""Bytes of a row at which its texts end, and its numbers as base64 begin."""
PLACE = "{step:int}/{group}/{sample:int}"


class RunLibrary:
    """A run for the page's requests: read once, and read on when its files have grown. Its methods may be called by
    several threads.
    """

    def __init__(self, run: RunData) -> None:
        self.run = run
        self._lock = threading.Lock()
        self._revision = ""
        self._places: dict[Place, SampleHead] = {}
        self._texts: dict[str, str] = {}

    def revision(self) -> str:
        """A text that is another one as soon as a file of the run has changed. Raises ConfigError."""
        paths = [self.run.samples.path, *(file.of(self.run.path) for file in _FILES)]
        found = f"{'-'.join(map(_stamp, paths))}-{self.run.live:d}"
        with self._lock:
            if found != self._revision:
                self.run = self.run.again()
                heads = self.run.samples.heads()
                self._places = {(h.values["step"], h.values["group"], h.values["sample"]): h for h in heads}
                self._texts, self._revision = {}, found
        return found

    def facts(self) -> str:
        """``run_facts`` with the revision, as JSON."""
        revision = self.revision()
        return self._once("facts", lambda: {**run_facts(self.run), "revision": revision})

    def lists(self) -> str:
        """``run_lists``, as JSON."""
        self.revision()
        return self._once("lists", lambda: run_lists(self.run))

    def _once(self, name: str, make: Callable[[], Any]) -> str:
        """JSON that is made once for each revision."""
        with self._lock:
            if name not in self._texts:
                self._texts[name] = json_text(make())
            return self._texts[name]

    def sample(self, place: Place) -> dict[str, Any]:
        """A whole row. Raises ConfigError where none of that place is kept."""
        self.revision()
        if (head := self._places.get(place)) is None:
            raise ConfigError("sample", "{} g{}s{}".format(*place), "is not among the kept samples")
        return self.run.samples.row(head)

    def places_with(self, text: str) -> list[Place]:
        """The samples whose id, problem, prompt, answer, program, tests or messages contain ``text``, as it is
        written: found without parsing, 200 MB in a tenth of a second.
        """
        self.revision()
        wanted = json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "backslashreplace")
        found = []
        with self.run.samples.path.open("rb") as file:
            for place, head in self._places.items():
                file.seek(head.offset)
                if _has(file.read(head.size), wanted):
                    found.append(place)
        return found


def _has(row: bytes, wanted: bytes) -> bool:
    """True when ``wanted`` is in the texts of a row, and not only as the name of a field."""
    texts = row.partition(_NUMBERS)[0]
    return texts.count(wanted) > texts.count(b'"' + wanted + b'":')


def _stamp(path: Path) -> str:
    """Bytes of a file, and when it was written last, ns: a run that went back may have written as many bytes again."""
    found = path.stat() if path.exists() else None
    return f"{found.st_size:x}.{found.st_mtime_ns:x}" if found else ""


def run_app(library: RunLibrary) -> Starlette:
    """The application that serves one run."""

    def run(request: Request) -> str:
        known = request.query_params.get("revision")
        return json_text({"revision": known}) if known == library.revision() else library.facts()

    answers: dict[str, Callable[[Request], str]] = {
        "/api/run": run,
        "/api/lists": lambda request: library.lists(),
        "/api/search": lambda request: json_text(library.places_with(request.query_params.get("q", ""))),
        f"/api/sample/{PLACE}": lambda request: json_text(sample_parts(_row(library, request))),
        f"/api/tokens/{PLACE}": lambda request: json_text(token_parts(_row(library, request), library.run)),
    }
    routes = [Route("/", _page, methods=["GET"])]
    routes += [Route(path, partial(_json, answer), methods=["GET"]) for path, answer in answers.items()]
    handlers: dict[Any, Any] = dict.fromkeys((HTTPException, OverlapError, Exception), _failed)
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)
    app = Starlette(routes=routes, middleware=[hosts], exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


def _row(library: RunLibrary, request: Request) -> dict[str, Any]:
    found = request.path_params
    try:
        return library.sample((found["step"], int(found["group"]), found["sample"]))
    except (ConfigError, ValueError) as error:
        raise HTTPException(404, str(error)) from error


async def _page(request: Request) -> Response:
    return Response(page_html("overlap view"), media_type="text/html", headers=HEADERS)


async def _json(answer: Callable[[Request], str], request: Request) -> Response:
    return _written(await run_in_threadpool(answer, request))


def _failed(request: Request, error: Exception) -> Response:
    text, status = f"{type(error).__name__}: {error}", 500
    if isinstance(error, HTTPException):
        text, status = error.detail, error.status_code
    elif isinstance(error, OverlapError):
        text, status = str(error), 400
    return _written(json_text({"error": text}), status)


def _written(body: str, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json", headers=HEADERS)


def serve_run(run: str, *, port: int, open_browser: bool = False) -> None:
    """Serve the page of ``run`` at ``port`` (0: any free one), until a signal raises KeyboardInterrupt.

    Raises ConfigError where there is no such run, a file of it cannot be read, or the port is taken.
    """
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
    way_out = "use another one, or --port 0 for any that is free"
    with refusing("--port", port, "cannot be had", way_out, (OSError, OverflowError)):
        return socket.create_server((HOST, port))


def _open(address: str) -> None:
    """Open the page in a browser with windows of its own; one of the terminal would take the terminal."""
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        print("there is no display here to open it on", flush=True)
        return
    threading.Thread(target=webbrowser.open, args=(address,), name="browser", daemon=True).start()
