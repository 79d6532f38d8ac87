"""Episodes of a task whose environment is somewhere else, by a scripted policy, to their end."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

from chats import Letters, Voice, never
from clients import installed
from pooling import family, living

from overlap.config.fields import Config, DataConfig, ModelConfig
from overlap.config.rollout import EpisodeConfig
from overlap.core import Request, Trajectory
from overlap.server.episodes import episodes
from overlap.server.gateway import Gateway
from overlap.server.template import ChatTemplate
from overlap.task import load_task

DEADLINE_S = 600.0
"""Of the episodes of a test: importing an environment's package takes half a minute of CPU, on a busy machine more."""
MODEL = ModelConfig(prompt_tokens=2000, response_tokens=200)


def interpreter(name: str) -> str:
    """The Python of a client's environment; skips where there is none."""
    return str(installed(name) / "bin" / "python")


def config(task: str, options: dict[str, Any], **episode: Any) -> Config:
    return Config(
        data=DataConfig(task=task, options=options), model=MODEL, episode=EpisodeConfig(tokens=6000, **episode)
    )


def made_task(cfg: Config) -> Any:
    return load_task(cfg.data.task, cfg)


def episodes_of(cfg: Config, voice: Voice, *, split: str = "train", count: int = 1) -> tuple[Any, list[Trajectory]]:
    """The task, and an episode of each of its first prompts; nothing of them is left."""
    task = made_task(cfg)
    prompts = task.prompts(Letters(), split)[:count]

    async def main() -> list[Trajectory]:
        before = set(family(os.getpid()))
        gateway = Gateway() if task.endpoint else None
        resources = task.resources() if task.resources else None
        name = type(task).__qualname__
        engine = episodes(cfg, voice, ChatTemplate(Letters()), task.rollout, name, never, gateway, (), resources)
        await engine.start()
        try:
            return list(await asyncio.gather(*(engine.generate(Request(n, 0, p)) for n, p in enumerate(prompts))))
        finally:
            await engine.close()
            assert not living([process for process in family(os.getpid()) if process not in before])

    return task, asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def rewards(task: Any, made: list[Trajectory]) -> list[float | None]:
    return [task.reward(one.request.prompt, one.text, None) for one in made]


__all__ = ["config", "episodes_of", "interpreter", "made_task", "replace", "rewards"]
