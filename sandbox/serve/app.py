"""The application: our own routes and SandboxFusion's, behind one Guard."""

from __future__ import annotations

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from sandbox.serve import own
from sandbox.serve.answers import answer_error
from sandbox.serve.guard import Guard
from sandbox.serve.sandbox_fusion import routes
from sandbox.serve.service import Service


def make_app(service: Service) -> FastAPI:
    """The application of a service."""
    app = FastAPI(
        title="sandbox serve",
        version=own.own_version(),
        license_info={"name": "Apache-2.0"},
        docs_url=None,  # both pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    token = [Depends(HTTPBearer(auto_error=False))]  # for the document: the guard asks for it
    app.include_router(own.router, dependencies=token)
    app.include_router(routes.router, dependencies=token)
    app.add_exception_handler(RequestValidationError, answer_error)
    app.add_exception_handler(HTTPException, answer_error)
    app.add_middleware(Guard, service=service, full=dict.fromkeys(routes.ASKED_AGAIN, 504))
    return app
