"""Tasksets of the package verifiers, by the real package in an interpreter of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chats import Letters, Voice
from clients import Speaker, calls
from environment_runs import DEADLINE_S, config, episodes_of, interpreter, made_task, rewards

from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from recipes.environments.scored import score_of

pytestmark = pytest.mark.timeout(DEADLINE_S + 100)

TASKSET = """
import verifiers.v1 as vf

class Row(vf.TaskData):
    answer: str

class Say(vf.Task[Row]):
    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        if self.data.answer == "2":
            raise vf.SandboxError("the box is gone")
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def words(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))

class Says(vf.Taskset[Say, vf.TasksetConfig]):
    def load(self):
        return [Say(Row(idx=n, prompt=f"Say {n}.", system_prompt="Play.", answer=str(n)), self.config.task)
                for n in range(4)]

__all__ = ["Says"]
"""
TOOLS = """
import verifiers.v1 as vf

class Numbers(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def word(self, number: int) -> str:
        return ["nought", "one"][number]

class Spell(vf.Task[vf.TaskData]):
    @classmethod
    def toolsets(cls, config):
        return [Numbers(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == "It is one.")

class Spells(vf.Taskset[Spell, vf.TasksetConfig]):
    def load(self):
        return [Spell(vf.TaskData(idx=0, prompt="Spell 1."), self.config.task)]

__all__ = ["Spells"]

if __name__ == "__main__":
    Numbers.run()
"""
SEVERAL = f"""{TASKSET}
class Two(vf.Env[vf.EnvConfig]):
    async def run(self, task, agents):
        pass

__all__ = ["Says", "Two"]
"""
EARLIER = "def load_environment():\n    return None\n"
ENDLESS = TASKSET.replace(
    "class Says(vf.Taskset[Say, vf.TasksetConfig]):",
    "class Says(vf.Taskset[Say, vf.TasksetConfig]):\n    INFINITE = True",
)


def of(taskset: str, **more: Any) -> Config:
    episode = {name: more.pop(name) for name in ("timeout_s", "command", "tool_parser") if name in more}
    return config("recipes.environments.verifiers:VerifiersTask", {"taskset": taskset, **more}, **episode)


@pytest.fixture(params=["verifiers", "verifiers-earlier"])
def python(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The interpreter of each version that is supported, where modules of the working directory are tasksets."""
    for name, text in {
        "says_v1": TASKSET,
        "two_v1": SEVERAL,
        "earlier_v0": EARLIER,
        "spells_v1": TOOLS,
        "endless_v1": ENDLESS,
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return interpreter(request.param)


def says_0() -> Voice:
    return Voice(lambda request: ("0", "stop"))


@pytest.mark.promise("environments")
def test_a_taskset_is_played_by_its_harness_and_its_reward_is_the_samples(python: str) -> None:
    cfg = of("says-v1", python=python, count=3, timeout_s=DEADLINE_S)
    task, made = episodes_of(cfg, says_0(), count=3)
    assert [one.failure[:60] for one in made[:2]] == ["", ""]
    assert rewards(task, made) == [1.0, 0.0, None]
    assert "SandboxError: the box is gone" in made[2].failure
    assert score_of(made[0].text, made[0].request.prompt.data)["metrics"]["words"] == 1.0
    assert "Play." in Letters().decode(made[0].request.prompt.token_ids)


def test_a_taskset_has_its_tools(python: str) -> None:
    cfg = of("spells-v1", python=python, timeout_s=DEADLINE_S, tool_parser="hermes")
    task, made = episodes_of(cfg, Speaker(calls(("word", {"number": 1})), "It is one."))
    assert (made[0].failure, made[0].turns, rewards(task, made)) == ("", 2, [1.0])
    assert "one" in Letters().decode(made[0].token_ids).removesuffix("It is one.")


def test_the_last_rows_are_held_out_and_one_is_left_to_train_on(python: str) -> None:
    task = made_task(of("says-v1", python=python, count=2, heldout=1))
    asked = [[Letters().decode(p.token_ids) for p in task.prompts(Letters(), split)] for split in ("train", "heldout")]
    assert [len(texts) for texts in asked] == [2, 1]
    assert "Say 2." in asked[1][0]
    with pytest.raises(ConfigError, match=r"data.options.heldout=4: the taskset has 4 tasks: hold fewer out"):
        made_task(of("says-v1", python=python, heldout=4)).prompts(Letters(), "train")


@pytest.mark.parametrize(
    ("taskset", "told"),
    [
        ("no-such-env", "no_such_env.*data.options.python"),
        ("earlier-v0", "earlier-v0 is an environment of verifiers' earlier API"),
        ("two-v1", "two-v1 is played by Two: only tasksets of one agent"),
        ("endless-v1", r"this taskset has no end: say how many tasks to take \(data.options.count\)"),
    ],
)
def test_what_cannot_be_played_is_said_before_the_run(python: str, taskset: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"data.options.taskset='{taskset}': .*{told}"):
        made_task(of(taskset, python=python)).prompts(Letters(), "train")


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.2.9", "verifiers 0.2.9 is not supported: install one of 0.3, 0.4"),
        ("0.40.0", "verifiers 0.40.0 is not supported"),
        ("", "has no package verifiers; install verifiers and the taskset"),
    ],
)
def test_another_version_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, told: str
) -> None:
    if version:
        info = tmp_path / f"verifiers-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: verifiers\nVersion: {version}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"data.options.taskset='x': .*{told}.*data.options.python"):
        made_task(of("x")).prompts(Letters(), "train")


def test_a_name_is_needed_and_options_are_known() -> None:
    with pytest.raises(ConfigError, match=r"data.options.taskset='': name a taskset"):
        made_task(of(""))
    with pytest.raises(
        ConfigError, match=r"episode.command='agent': recipes.environments.verifiers:VerifiersTask rolls"
    ):
        made_task(of("x", command="agent"))
    with pytest.raises(ConfigError, match=r"data.options.pyton.*did you mean python?"):
        made_task(of("x", pyton="x"))
    with pytest.raises(ConfigError, match=r"data.options.count=-1: use a whole number, 0 or more"):
        made_task(of("x", count=-1))
