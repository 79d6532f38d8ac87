"""An environment of the real OpenEnv package, served on a free port, which is printed: say the number of the seed."""

from __future__ import annotations

import socket

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    said: str


class Told(Observation):
    text: str = ""


class Numbers(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.number, self.steps = 0, 0

    def reset(self, seed=None, episode_id=None, **_):
        self.number, self.steps = seed or 0, 0
        return Told(text=f"Say {self.number}.")

    def step(self, action, timeout_s=None, **_):
        if action.said == "break":
            raise RuntimeError("the box is gone")
        self.steps += 1
        return Told(text="Again.", reward=0.5 * (action.said == str(self.number)), done=self.steps == 2)

    @property
    def state(self):
        return State(step_count=self.steps)


app = create_fastapi_app(Numbers, Say, Told, max_concurrent_envs=2)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])
