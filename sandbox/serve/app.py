"""The ASGI application: the routes of every module of `sandbox.serve.routes`, behind one Guard."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from sandbox.serve.guard import Guard
from sandbox.serve.routes import route_modules
from sandbox.serve.service import Service


def make_app(service: Service) -> ASGIApp:
    """The application of a service."""
    modules = list(route_modules())
    mounted = [route for module in modules for route in module.routes(service)]
    router = Router(mounted, redirect_slashes=False, default=_unknown)
    full = {path: status for module in modules for path, status in getattr(module, "FULL", {}).items()}
    return Guard(router, service, [route.path for route in mounted], full)


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    raise HTTPException(404, f"there is no {scope['path'][:80]} here; GET /openapi.json lists what is")
