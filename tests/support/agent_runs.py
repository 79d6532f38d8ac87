"""One episode of an agent program, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from chats import Letters, Voice, never, prompt
from leftovers import working_in
from places import SUPPORT

from overlap.config.fields import Config, ModelConfig
from overlap.config.rollout import EpisodeConfig
from overlap.core import Prompt, Request, Trajectory
from overlap.process import process_tree
from overlap.server.episodes import episodes
from overlap.server.gateway import Gateway
from overlap.server.harness import HarnessRollout
from overlap.server.harness_jail import agent_space
from overlap.server.template import ChatTemplate

AGENT = f"{sys.executable} -S {SUPPORT / 'tiny_agent.py'}"
MODEL = ModelConfig(prompt_tokens=200, response_tokens=100)


class Mine:
    """What a task owes an agent program."""

    def files(self, prompt: Prompt, text: str) -> Mapping[str, str]:
        return {"prompt.txt": text, "deep/er.txt": "x"}

    def answer(self, prompt: Prompt, folder: Path, said: str) -> str:
        assert (folder / "deep" / "er.txt").read_text() == "x"
        written = folder / "answer.txt"
        return written.read_text() if written.exists() else said


class Reading(Mine):
    """Its answer is what the directory holds, read without a second thought."""

    def files(self, prompt: Prompt, text: str) -> Mapping[str, str]:
        return {"prompt.txt": text}

    def answer(self, prompt: Prompt, folder: Path, said: str) -> str:
        found = {path.name: path.read_text() for path in folder.iterdir() if path.name != "prompt.txt"}
        return " ".join(f"{name}={text.strip()}" for name, text in sorted(found.items())) or said


def rolled(folder: Path, command: str, task: Any = None, **episode: Any) -> Trajectory:
    """One episode; nothing of it may be left."""
    cfg = Config(model=MODEL, episode=EpisodeConfig(command=command, tokens=2000, **episode))
    voice = Voice(lambda request: (f"a{request.turn}", "stop"))

    async def main() -> Trajectory:
        gateway = Gateway()
        space = agent_space(cfg)
        rollout = HarnessRollout(command, task or Mine(), gateway, folder, lambda prompt: prompt.data, space)
        engine = episodes(cfg, voice, ChatTemplate(Letters()), rollout, "episode.command", never, gateway)
        await engine.start()
        try:
            made: Trajectory = await engine.generate(Request(3, 1, prompt()))
            return made
        finally:
            assert not gateway._sessions
            await engine.close()

    try:
        return asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        assert list(folder.iterdir()) == []
        assert process_tree.marked(f"TMPDIR={folder}") == []
        assert working_in(folder) == []


def jailed(folder: Path, command: str, task: Any = None, **episode: Any) -> Trajectory:
    """As ``rolled``, in a jail; none of its processes is left either."""
    before = set(psutil.Process().children(recursive=True))
    made = rolled(folder, command, task, **{"jail": {}} | episode)
    after = set(psutil.Process().children(recursive=True)) - before
    assert not [process for process in after if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    return made


either = pytest.mark.parametrize("rolled", [rolled, jailed], ids=["on the machine", "in a jail"])
"""For a test of what holds in both."""
