"""Environments of the package verifiers, both kinds, by the real package in an interpreter of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from chats import Letters, Voice
from environment_runs import DEADLINE_S, config, episodes_of, interpreter, made_task, rewards

from overlap.environments.scored import score_of
from overlap.errors import ConfigError

pytestmark = pytest.mark.timeout(DEADLINE_S + 100)

CLASSIC = """
import verifiers as vf
from datasets import Dataset

def load_environment(fails="", turns=1):
    rows = Dataset.from_list([{"question": f"Say {n}.", "answer": str(n)} for n in range(4)])
    def exact(completion, answer, **_):
        return float(completion[-1]["content"] == answer)
    class Mine(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **_):
            if fails:
                raise getattr(vf, fails)("the box is gone")
            return [{"role": "user", "content": "Again."}]
    return Mine(dataset=rows, rubric=vf.Rubric(funcs=[exact]), max_turns=turns)
"""
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

class Says(vf.Taskset[Say, vf.TasksetConfig]):
    def load(self):
        return [Say(Row(idx=n, prompt=f"Say {n}.", answer=str(n)), self.config.task) for n in range(4)]

__all__ = ["Says"]
"""


STAND_IN = """
class Env:
    eval_dataset = None

    def get_dataset(self, n):
        return [{"prompt": "Say 0."}]

    async def run_rollout(self, *_):
        return {"reward": 1.0, "metrics": {"seen": object()}}

def load_environment(name):
    return Env()

def ClientConfig(**_):
    return None
"""


def test_a_result_that_no_line_can_hold_is_a_fault_and_no_wait_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "verifiers.py").write_text(STAND_IN)
    monkeypatch.chdir(tmp_path)
    _, made = episodes_of(config("verifiers:mine", {}), Voice(lambda request: ("0", "stop")))
    assert made[0].failure.startswith("verifiers:mine: TypeError: float() argument must be")


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "classic_env.py").write_text(CLASSIC)
    (tmp_path / "says_v1.py").write_text(TASKSET)
    monkeypatch.chdir(tmp_path)
    return interpreter("verifiers")


def test_a_classic_environment_asks_the_policy_and_its_reward_is_the_samples(python: str) -> None:
    cfg = config("verifiers:classic_env", {"python": python, "args": {"turns": 2}, "count": 2})
    voice = Voice(lambda request: ("0", "stop"))
    task, made = episodes_of(cfg, voice, count=4)
    assert [(one.failure, one.turns) for one in made] == [("", 2), ("", 2)]
    assert rewards(task, made) == [1.0, 0.0]
    assert score_of(made[0].text, made[0].request.prompt.data)["metrics"]["exact"] == 1.0
    assert made[0].text.startswith("0\n")


def test_its_last_rows_are_held_out_where_it_has_none_for_that(python: str) -> None:
    task = made_task(config("verifiers:classic_env", {"python": python, "count": 2, "heldout": 1}))
    asked = [[Letters().decode(p.token_ids) for p in task.prompts(Letters(), split)] for split in ("train", "heldout")]
    assert [len(texts) for texts in asked] == [2, 1]
    assert "Say 0." in asked[0][0]
    assert "Say 2." in asked[1][0]


@pytest.mark.promise("environments")
def test_a_fault_of_the_environment_masks_the_sample(python: str) -> None:
    cfg = config("verifiers:classic_env", {"python": python, "args": {"turns": 2, "fails": "SandboxError"}})
    task, made = episodes_of(cfg, Voice(lambda request: ("0", "stop")))
    assert "SandboxError" in made[0].failure
    assert made[0].finish == "abort"
    assert rewards(task, made) == [None]


def test_a_budget_truncates_an_episode_and_is_no_fault(python: str) -> None:
    cfg = config("verifiers:classic_env", {"python": python, "args": {"turns": 9}}, turns=2)
    _, made = episodes_of(cfg, Voice(lambda request: ("0", "stop")))
    assert (made[0].finish, made[0].failure, made[0].turns) == ("length", "", 2)


@pytest.mark.promise("environments")
def test_a_taskset_is_played_by_its_harness_and_its_reward_is_the_samples(python: str) -> None:
    cfg = config("verifiers:says-v1", {"python": python, "count": 3}, timeout_s=DEADLINE_S)
    task, made = episodes_of(cfg, Voice(lambda request: ("0", "stop")), count=3)
    assert [one.failure[:60] for one in made[:2]] == ["", ""]
    assert rewards(task, made) == [1.0, 0.0, None]
    assert "SandboxError: the box is gone" in made[2].failure


def test_what_is_not_installed_is_said_before_the_run(python: str) -> None:
    with pytest.raises(ConfigError, match=r"data.task='verifiers:no-such-env': .*no_such_env.*data.options.python"):
        made_task(config("verifiers:no-such-env", {"python": python})).prompts(Letters(), "train")


def test_a_name_is_needed_and_options_are_known() -> None:
    with pytest.raises(ConfigError, match="name a taskset or an environment"):
        made_task(config("verifiers:", {}))
    with pytest.raises(ConfigError, match=r"episode.command='agent': verifiers:x rolls its episodes out itself"):
        made_task(config("verifiers:x", {}, command="agent"))
    with pytest.raises(ConfigError, match=r"data.options.pyton.*did you mean python?"):
        made_task(config("verifiers:x", {"pyton": "x"}))
