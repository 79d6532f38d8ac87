"""What ``overlap view`` answers: its page, and JSON about samples, groups and problems.

What a model wrote is hostile: it leaves as JSON, the page puts it in as text, and no script runs but the page's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from overlap.analysis.sample_file import group_key
from overlap.errors import ConfigError, OverlapError
from overlap.json_types import to_json_types
from overlap.view.library import SampleLibrary, SampleOrder
from overlap.view.sample_filter import SampleFilter
from overlap.view.sample_parts import group_parts, listed_sample, problem_parts, sample_parts, token_parts
from overlap.view.source import taught
from overlap.view.tokens import TokenTexts

PAGE = Path(__file__).parent / "page"
MOST = 500
"""Rows of one answer."""
HOSTS = ["127.0.0.1", "localhost"]
"""Other names would be those of a page elsewhere that has its own name point here (DNS rebinding)."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FLAGS = ("failed", "failure", "dropped", "weak", "truncated")
_TEXTS = ("split", "problem", "verdict", "kept_as", "program")


def samples_app(library: SampleLibrary) -> Starlette:
    """The application that serves one run."""
    answers = _Answers(library)
    files = {path.name: path for path in PAGE.iterdir() if path.suffix in _TYPES}
    routes = [Route("/", partial(_file, files["index.html"]), methods=["GET"])]
    routes += [Route(f"/{name}", partial(_file, path), methods=["GET"]) for name, path in files.items()]
    named = {
        "/api/run": answers.run,
        "/api/samples": answers.samples,
        "/api/groups": answers.groups,
        "/api/problems": answers.problems,
        "/api/problem": answers.problem,
        "/api/group/{step}/{group}": answers.group,
        "/api/sample/{step}/{group}/{sample}": answers.sample,
        "/api/tokens/{step}/{group}/{sample}": answers.tokens,
    }
    routes += [Route(path, partial(_json, answer), methods=["GET"]) for path, answer in named.items()]
    handlers: dict[Any, Any] = {HTTPException: _refused, OverlapError: _failed, Exception: _broke}
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)
    app = Starlette(routes=routes, middleware=[hosts], exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


class _Answers:
    """Each method makes what one route answers, in a thread."""

    def __init__(self, library: SampleLibrary) -> None:
        self.library = library
        self.texts = TokenTexts(library.run)

    def run(self, request: Request) -> Any:
        known = request.query_params.get("revision")
        if known is not None and known == self.library.state().revision:
            return {"revision": known, "live": self.library.run.live}
        return self.library.facts()

    def samples(self, request: Request) -> Any:
        query = request.query_params
        order = SampleOrder(_filter_of(query), query.get("q", ""), query.get("sort") or "-step")
        heads, (begin, end) = self.library.ordered(order), _window(query)
        rows = [listed_sample(head.values) for head in heads[begin:end]]
        return {"revision": self.library.state().revision, "total": len(heads), "offset": begin, "rows": rows}

    def groups(self, request: Request) -> Any:
        query, only = request.query_params, _filter_of(request.query_params)
        text = query.get("q", "")
        kept = {group_key(head.values) for head in self.library.state().heads}
        rows = [
            {**row, "kept": group_key(row) in kept, "taught": taught(row)}
            for row in reversed(self.library.state().groups)
            if only.matches_group(row) and (not text or text in row["prompt_id"] or text in (row["dropped"] or ""))
        ]
        return _page(rows, query)

    def problems(self, request: Request) -> Any:
        query = request.query_params
        text, split = query.get("q", ""), query.get("split", "")
        found = [p for p in self.library.problems() if text in p["prompt_id"] and (not split or p["split"] == split)]
        return _page(found, query)

    def problem(self, request: Request) -> Any:
        name = request.query_params.get("id", "")
        rows, heads = self.library.problem(name)
        if not rows and not heads:
            raise HTTPException(404, f"problem {name!r} is none of this run's")
        return problem_parts(name, rows, heads)

    def group(self, request: Request) -> Any:
        step, group = (_number(request.path_params[name], name) for name in ("step", "group"))
        row, samples = self.library.group(step, group)
        if row is None and not samples:
            raise HTTPException(404, f"step {step} has no group {group}")
        return group_parts(row, samples)

    def sample(self, request: Request) -> Any:
        return sample_parts(self._row(request))

    def tokens(self, request: Request) -> Any:
        return token_parts(self._row(request), self.texts)

    def _row(self, request: Request) -> dict[str, Any]:
        step, group, sample = (_number(request.path_params[name], name) for name in ("step", "group", "sample"))
        try:
            return self.library.sample((step, group, sample))
        except ConfigError as error:
            raise HTTPException(404, str(error)) from error


def _filter_of(query: Mapping[str, str]) -> SampleFilter:
    """Raises HTTPException for a number that is none."""
    numbers = {name: _number(query[name], name) for name in ("step", "group") if query.get(name)}
    texts = {name: query.get(name, "") for name in _TEXTS}
    return SampleFilter(**numbers, **texts, **{name: query.get(name) == "1" for name in _FLAGS})  # type: ignore[arg-type]


def _window(query: Mapping[str, str]) -> tuple[int, int]:
    begin = max(0, _number(query.get("offset") or "0", "offset"))
    return begin, begin + min(MOST, max(0, _number(query.get("limit") or "100", "limit")))


def _page(rows: list[Any], query: Mapping[str, str]) -> dict[str, Any]:
    begin, end = _window(query)
    return {"total": len(rows), "offset": begin, "rows": rows[begin:end]}


def _number(text: str, name: str) -> int:
    try:
        return int(text) if len(text) < 20 else int("")
    except ValueError:
        raise HTTPException(400, f"{name} {text[:40]!r} is no whole number") from None


async def _file(path: Path, request: Request) -> Response:
    body = await run_in_threadpool(path.read_bytes)
    return Response(body, media_type=_TYPES[path.suffix], headers=HEADERS)


async def _json(answer: Any, request: Request) -> Response:
    found = await run_in_threadpool(answer, request)
    return await run_in_threadpool(_written, found)


def _written(found: Any, status: int = 200) -> Response:
    try:
        body = json.dumps(found, allow_nan=False, separators=(",", ":"))
    except ValueError:
        body = json.dumps(to_json_types(found), separators=(",", ":"))
    return Response(body, status, media_type="application/json", headers=HEADERS)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _written({"error": error.detail}, error.status_code)


def _failed(request: Request, error: Exception) -> Response:
    return _written({"error": str(error)}, 400)


def _broke(request: Request, error: Exception) -> Response:
    return _written({"error": f"{type(error).__name__}: {error}"}, 500)
