"""The ASGI application: the routes of every module of `sandbox.serve.routes`, behind one Guard.

A module there has `routes(service) -> list[Route]`. It may have `FULL`, a status by path that its clients understand
where others get 503, and `OPENAPI`, the `paths` that it adds to /openapi.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox.serve import routes
from sandbox.serve.guard import Guard
from sandbox.serve.service import Service


def route_modules() -> Iterator[ModuleType]:
    """The modules of `sandbox.serve.routes`, by name."""
    for found in iter_modules(routes.__path__):
        yield import_module(f"{routes.__name__}.{found.name}")


def make_app(service: Service) -> ASGIApp:
    """The application of a service."""
    modules = list(route_modules())
    mounted = [route for module in modules for route in module.routes(service)]
    router = Router(mounted, redirect_slashes=False, default=_unknown)
    full = {path: status for module in modules for path, status in getattr(module, "FULL", {}).items()}
    return Guard(router, service, [route.path for route in mounted], full)


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404, f"there is no {scope['path'][:80]} here; GET /openapi.json lists what is")
