"""Code that an episode executes: one state each, and none that outlives its episode."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

import pytest
from chats import EPISODES, prompt, rolling
from pooling import family, living

from overlap.config.fields import Config, VerifyConfig
from overlap.config.rollout import EpisodeConfig
from overlap.core import Request, Trajectory
from overlap.server.chat import Chat
from overlap.server.episodes import EpisodeSandbox

CFG = replace(EPISODES, verify=VerifyConfig(cpu_s=5.0))


def rolled(rollout: Any, count: int = 1, cfg: Config = CFG) -> list[Trajectory]:
    """What so many episodes gave; nothing of them is left."""

    async def main() -> list[Trajectory]:
        before = set(family(os.getpid()))
        engine = rolling(rollout, cfg=cfg)
        try:
            made = await asyncio.gather(*(engine.generate(Request(4, n, prompt(f"p{n}"))) for n in range(count)))
            assert not living([process for process in family(os.getpid()) if process not in before])
            return list(made)
        finally:
            await engine.close()

    return asyncio.run(main())


def test_an_episode_has_a_state_of_its_own_from_its_first_call_to_its_end() -> None:
    async def rollout(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
        first = await sandbox.execute(f"'x' in globals(), (x := {prompt.id!r})")
        second = await sandbox.execute("print(x)", timeout_s=30)
        return f"{first.value} {first.fresh} {second.stdout.strip()} {second.fresh}"

    assert [made.text for made in rolled(rollout, 2)] == ["(False, 'p0') True p0 False", "(False, 'p1') True p1 False"]


def test_an_episode_whose_time_is_over_takes_its_program_along() -> None:
    async def rollout(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
        await chat.say([{"role": "user", "content": "go"}])
        await sandbox.execute("import time\ntime.sleep(900)")
        return "never"

    (made,) = rolled(rollout, cfg=replace(CFG, episode=EpisodeConfig(tokens=2000, timeout_s=1.5)))
    assert (made.finish, made.text) == ("length", "yes")


def test_an_episode_has_a_workspace_of_its_own_whose_files_stay_until_its_end() -> None:
    async def rollout(prompt: Any, chat: Chat, sandbox: EpisodeSandbox) -> str:
        await sandbox.write("notes.txt", f"{prompt.id}\n")
        await sandbox.exec("cat >> notes.txt", stdin="more")
        with pytest.raises(FileNotFoundError):
            await sandbox.read("elsewhere.txt")
        listed = await sandbox.exec("ls; exit 3", timeout_s=30)
        return f"{(await sandbox.read('notes.txt')).decode()} {listed.stdout.strip()} {listed.exit_code}"

    assert [made.text for made in rolled(rollout, 2)] == ["p0\nmore notes.txt 3", "p1\nmore notes.txt 3"]
