"""The sandbox as an HTTP server over one pool. Needs the extra ``serve`` (starlette, uvicorn); nothing else here does.

    request ──▶ Guard: token, place, body within bounds ──▶ a route ──▶ Pool ──▶ JSON
                   └─▶ every error as one JSON object with its status

consumes: requests of clients          produces: judgements
waits for: bodies, the pool            woken by: either, a client that leaves, SIGTERM

Names are imported on first use: the command says which extra is missing before anything imports it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.serve import cli
    from sandbox.serve.app import make_app
    from sandbox.serve.bodies import Refused
    from sandbox.serve.bounds import Bounds
    from sandbox.serve.listening import Server, bind
    from sandbox.serve.parsed_texts import count_values
    from sandbox.serve.service import Busy, Service
else:
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = ["Bounds", "Busy", "Refused", "Server", "Service", "bind", "cli", "count_values", "make_app"]
