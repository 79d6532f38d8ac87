"""Answers of ``overlap view``: its page, and JSON about the run and its samples.

What a model wrote is hostile: it leaves as JSON, the page puts it in as text, and no script runs but the page's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from overlap.core.errors import ConfigError, OverlapError
from overlap.inspect.library import RunLibrary
from overlap.inspect.page import json_text, page_html, page_policy
from overlap.inspect.sample_parts import sample_parts, token_parts
from overlap.inspect.tokens import TokenTexts

HOSTS = ["127.0.0.1", "localhost"]
"""Other names would be those of a page elsewhere that has its own name point here (DNS rebinding)."""
HEADERS = {
    "Content-Security-Policy": page_policy(served=True),
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
PLACE = "{step:int}/{group}/{sample:int}"


def run_app(library: RunLibrary) -> Starlette:
    """The application that serves one run."""
    texts = TokenTexts(library.run)

    def run(request: Request) -> str:
        known = request.query_params.get("revision")
        return json_text({"revision": known}) if known == library.revision() else library.facts()

    answers: dict[str, Callable[[Request], str]] = {
        "/api/run": run,
        "/api/lists": lambda request: library.lists(),
        "/api/search": lambda request: json_text(library.places_with(request.query_params.get("q", ""))),
        f"/api/sample/{PLACE}": lambda request: json_text(sample_parts(_row(library, request))),
        f"/api/tokens/{PLACE}": lambda request: json_text(token_parts(_row(library, request), texts)),
    }
    routes = [Route("/", _page, methods=["GET"])]
    routes += [Route(path, partial(_json, answer), methods=["GET"]) for path, answer in answers.items()]
    handlers: dict[Any, Any] = {HTTPException: _refused, OverlapError: _failed, Exception: _failed}
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


def _written(body: str, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json", headers=HEADERS)


def _refused(request: Request, error: HTTPException) -> Response:
    return _written(json_text({"error": error.detail}), error.status_code)


def _failed(request: Request, error: Exception) -> Response:
    known = isinstance(error, OverlapError)
    return _written(
        json_text({"error": str(error) if known else f"{type(error).__name__}: {error}"}), 400 if known else 500
    )
