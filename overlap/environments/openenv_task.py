"""An OpenEnv environment that is served somewhere, as a task: ``data.task=openenv:http://HOST:PORT``.

    reset(seed) ──▶ observation ──▶ the policy ──▶ action ──▶ step ──▶ observation, reward, done ──▶ ...

The server's sessions live on its WebSocket (``/ws``); its HTTP routes make a new environment for each request, so only
a server whose routes keep one has its episodes over them (``data.options.transport=http``).
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from overlap.core import Prompt
from overlap.environments.scored import EnvironmentFault, Range, Seal, given_reward, refuse_command, scored
from overlap.errors import ConfigError, one_line
from overlap.task import Task, messages_prompt, task_options

if TYPE_CHECKING:
    import aiohttp

    from overlap.config.fields import Config
    from overlap.server.chat import Chat
    from overlap.server.episodes import EpisodeSandbox
    from sandbox.core.nouns import Judgement

ASK_S = 20.0
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_NOT_SHOWN = ("done", "reward", "metadata")


@dataclass(frozen=True)
class OpenEnvOptions:
    """``data.options`` of such a task."""

    count: int = 64
    """Prompts: seeds from 0 on that the environment is reset with."""
    heldout: int = 0
    """Further seeds, to evaluate on."""
    sessions: int = 1
    """Episodes that the server holds at a time (its ``max_concurrent_envs``); others wait."""
    transport: Literal["ws", "http"] = "ws"
    """"http" for a server whose ``/reset`` and ``/step`` keep one environment: one episode at a time."""
    system: str = ""
    """What the policy is told first; "": the environment's description, and the form of an action."""
    action: str = ""
    """Field of the action that an answer fills as text; "": the only one, or else an answer is a JSON object."""
    observation: str = ""
    """Field of an observation that the policy reads; "": the only text, or else all of it as JSON."""
    reward: Literal["sum", "last"] = "sum"
    """What an episode earns: the sum of its steps' rewards, or the last one."""
    reward_least: float | None = None
    reward_most: float | None = None
    """The range of rewards that count; any other is a fault of the environment. null: no bound."""
    step_s: float = 60.0
    """Seconds that the server has for an answer."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reset or a step gave."""

    observation: Mapping[str, Any]
    reward: float
    done: bool


class InvalidAction(Exception):
    """The environment cannot read the policy's action; the text says why."""


class OpenSession(Protocol):
    """One environment of the server."""

    async def reset(self, seed: int) -> Seen: ...

    async def step(self, action: Mapping[str, Any]) -> Seen: ...


class OpenEnvTask(Task):
    """``openenv:URL``."""

    options: ClassVar[type] = OpenEnvOptions

    def __init__(self, url: str, options: OpenEnvOptions) -> None:
        if not re.match(r"https?://[^/]", url):
            raise ConfigError(
                "data.task", f"openenv:{url}", "name the server by its URL: openenv:http://127.0.0.1:8000"
            )
        self._url, self._options, self._seal = url.rstrip("/"), options, Seal()
        self._schema: Mapping[str, Any] = {}
        self._system = options.system
        self._room: asyncio.Semaphore | None = None
        self._client: aiohttp.ClientSession | None = None

    @classmethod
    def from_config(cls, cfg: Config) -> OpenEnvTask:
        refuse_command(cfg)
        return cls(cfg.data.task.partition(":")[2], task_options(cfg, cls))

    def prompts(self, tokenizer: Any, split: str) -> Sequence[Prompt]:
        self._learn()
        first = 0 if split == "train" else self._options.count
        count = self._options.count if split == "train" else self._options.heldout
        asked = [{"role": "system", "content": self._system}, {"role": "user", "content": ""}]
        return [
            messages_prompt(tokenizer, f"{self._url}#{seed}", asked, data={"row": seed, "seal": self._seal})
            for seed in range(first, first + count)
        ]

    @asynccontextmanager
    async def resources(self) -> AsyncIterator[None]:
        import aiohttp  # comes with the engine

        self._room = asyncio.Semaphore(self._options.sessions if self._options.transport == "ws" else 1)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ASK_S, sock_read=self._options.step_s)
        async with aiohttp.ClientSession(timeout=timeout) as self._client:
            yield

    async def rollout(self, prompt: Prompt, chat: Chat, sandbox: EpisodeSandbox) -> str:
        assert self._room is not None, "episodes run inside the task's resources"
        async with self._room, self._session() as session:
            seen = await session.reset(prompt.data["row"])
            messages: list[Any] = [{"role": "system", "content": self._system}] if self._system else []
            messages.append({"role": "user", "content": self._shown(seen.observation)})
            earned, said, steps = 0.0, "", 0
            while not seen.done:
                reply = await chat.say(messages)
                said, steps = reply.text, steps + 1
                try:
                    seen = await session.step(self._action(said))
                    told = self._shown(seen.observation)
                    earned = seen.reward if self._options.reward == "last" else earned + seen.reward
                except InvalidAction as error:
                    told = f"This is no action of the environment: {error}"
                messages += [reply.message, {"role": "user", "content": told}]
        return scored(
            said, earned, prompt.data, Range(self._options.reward_least, self._options.reward_most), steps=steps
        )

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float | None:
        return given_reward(answer, prompt.data)

    def _session(self) -> AbstractAsyncContextManager[OpenSession]:
        from overlap.environments.openenv_session import over_http, over_socket

        assert self._client is not None
        opened = over_http if self._options.transport == "http" else over_socket
        return opened(self._client, self._url, self._options.step_s)

    def _learn(self) -> None:
        """Ask the server what it is. Raises ConfigError where it does not answer."""
        try:
            self._schema = self._get("/schema").get("action", {})
            described = self._get("/metadata").get("description", "")
            field = self._field()
        except (OSError, HTTPException, ValueError, AttributeError, RecursionError) as error:
            way_out = f"it does not answer as an OpenEnv server ({one_line(error, 200)}): start it, and name its URL"
            raise ConfigError("data.task", f"openenv:{self._url}", way_out) from error
        form = "Answer with the text of your action." if field else "Answer with your action as one JSON object"
        form += "" if field else f" of this schema: {json.dumps(self._schema.get('properties', {}))}"
        self._system = self._options.system or f"{described}\n{form}".strip()

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self._url + path, timeout=ASK_S) as answer:
            return json.load(answer)

    def _field(self) -> str:
        if self._options.action:
            return self._options.action
        fields = {name: part for name, part in self._schema.get("properties", {}).items() if name != "metadata"}
        (name, part), *others = fields.items() if fields else [("", {})]
        return name if not others and part.get("type") == "string" else ""

    def _action(self, said: str) -> Mapping[str, Any]:
        if field := self._field():
            return {field: said}
        try:
            found = json.loads((_OBJECT.search(said) or [said])[0])
        except (ValueError, RecursionError) as error:
            raise InvalidAction(f"no JSON object ({error})") from error
        if not isinstance(found, dict):
            raise InvalidAction("no JSON object")
        return found

    def _shown(self, observation: Mapping[str, Any]) -> str:
        if named := self._options.observation:
            if named not in observation:
                raise EnvironmentFault(f"openenv: an observation has no {named!r}, only {', '.join(observation)}")
            return str(observation[named])
        rest = {name: value for name, value in observation.items() if name not in _NOT_SHOWN}
        texts = [value for value in rest.values() if isinstance(value, str)]
        return texts[0] if len(texts) == 1 and len(rest) == 1 else json.dumps(rest)
