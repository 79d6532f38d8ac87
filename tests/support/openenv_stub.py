"""A server that speaks as OpenEnv's does: say the number that the seed gave, twice. In a thread, on a free port."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

TEXT = "text/plain; charset=utf-8"


class Echo:
    """``number`` is asked for; each right answer earns 0.5, and the second answer ends it."""

    def __init__(self) -> None:
        self.number, self.steps = 0, 0

    def reset(self, seed: int) -> dict[str, Any]:
        self.number, self.steps = seed, 0
        return {"observation": {"text": f"Say {seed}."}, "reward": None, "done": False}

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        self.steps += 1
        reward = 0.5 * (action["said"] == str(self.number))
        return {"observation": {"text": "Again."}, "reward": reward, "done": self.steps == 2}


class Stub:
    """``fails``: the name of the message that fails, and its error code."""

    def __init__(self) -> None:
        self.kept, self.open, self.most = Echo(), 0, 0
        self.fails: tuple[str, str] | None = None

    async def ws(self, socket: WebSocket) -> None:
        await socket.accept()
        self.open += 1
        self.most = max(self.most, self.open)
        env = Echo()
        try:
            while (asked := await socket.receive_json())["type"] != "close":
                if self.fails is not None and self.fails == (asked["type"], "NONSENSE"):
                    await socket.send_text("[" * 100_000)
                    continue
                if self.fails is not None and self.fails[0] == asked["type"]:
                    error = {"message": "it broke", "code": self.fails[1]}
                    self.fails = None if self.fails[1] == "VALIDATION_ERROR" else self.fails
                    await socket.send_json({"type": "error", "data": error})
                    continue
                found = env.reset(asked["data"]["seed"]) if asked["type"] == "reset" else env.step(asked["data"])
                await socket.send_json({"type": "observation", "data": found})
        except WebSocketDisconnect:
            pass
        finally:
            self.open -= 1

    async def reset(self, request: Request) -> Response:
        return JSONResponse(self.kept.reset(json.loads(await request.body())["seed"]))

    async def step(self, request: Request) -> Response:
        if self.fails is not None and self.fails[1].startswith("NON"):
            return Response(b"[" * 100_000 if self.fails[1] == "NONSENSE" else b"\xff", media_type=TEXT)
        if self.fails is not None:
            return JSONResponse({"detail": "it broke"}, int(self.fails[1]))
        return JSONResponse(self.kept.step(json.loads(await request.body())["action"]))

    async def schema(self, request: Request) -> Response:
        return JSONResponse({"action": {"properties": {"said": {"type": "string"}, "metadata": {"type": "object"}}}})

    async def metadata(self, request: Request) -> Response:
        return JSONResponse({"name": "echo", "description": "Say the number."})


@contextmanager
def serving_openenv() -> Iterator[tuple[str, Stub]]:
    """Its URL, and what it did."""
    stub = Stub()
    routes: list[Any] = [Route(f"/{name}", getattr(stub, name), methods=["POST"]) for name in ("reset", "step")]
    routes += [Route(f"/{name}", getattr(stub, name)) for name in ("schema", "metadata")]
    app = Starlette(routes=[*routes, WebSocketRoute("/ws", stub.ws)])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:  # who connects before it is up waits in the queue of the socket
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", stub
        finally:
            server.should_exit = True
            thread.join(10)
