"""Episodes by an agent program, a scripted policy behind them, to their end: ``python episode_driver.py COUNT [TIER]``.

Prints a line of JSON when it has begun, and for each episode that has ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from chats import Letters, Voice, prompt

from overlap.config.fields import Config, ModelConfig
from overlap.config.rollout import EpisodeConfig, RolloutConfig
from overlap.core import Prompt, Request
from overlap.process.scratch import scratch_directory
from overlap.server.episodes import episodes
from overlap.server.gateway import Gateway
from overlap.server.harness import HarnessRollout
from overlap.server.harness_jail import agent_space
from overlap.server.template import ChatTemplate
from overlap.task import Task

AGENT = f"{sys.executable} -S {Path(__file__).with_name('tiny_agent.py')}"
CFG = Config(
    model=ModelConfig(prompt_tokens=200, response_tokens=100),
    rollout=RolloutConfig(max_sequences=4),
    episode=EpisodeConfig(command=f"sleep 1000 & TURNS=4 {AGENT} leaves", tokens=2000),
)


class Slow(Voice):
    """Each answer takes a moment, so that there are moments to die in."""

    async def generate(self, request: Request):
        await asyncio.sleep(0.05)
        return await super().generate(request)


class Mine(Task):
    def prompts(self, tokenizer, split):
        return []

    def reward(self, prompt, answer, judgement):
        return 1.0


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


async def main(count: int, scratch: Path, cfg: Config) -> None:
    async def never(*_: object) -> None:
        raise AssertionError("nobody asked for the sandbox")

    def text(prompt: Prompt) -> str:
        return str(prompt.data)

    gateway, voice = Gateway(), Slow(lambda request: (f"a{request.turn}", "stop"))
    rollout = HarnessRollout(cfg.episode.command, Mine(), gateway, scratch, text, agent_space(cfg))
    engine = episodes(cfg, voice, ChatTemplate(Letters()), rollout, "episode.command", never, gateway)
    await engine.start()

    async def one(number: int) -> None:
        made = await engine.generate(Request(number, 0, prompt()))
        say(what="ended", number=number, turns=made.turns, failure=made.failure[:40])

    try:
        say(what="begun")
        await asyncio.gather(*map(one, range(count)))
    finally:
        await engine.close()


if __name__ == "__main__":
    with scratch_directory() as (folder, _):
        episode = replace(CFG.episode, jail={} if len(sys.argv) > 2 else None)
        asyncio.run(main(int(sys.argv[1]), folder, replace(CFG, episode=episode)))
