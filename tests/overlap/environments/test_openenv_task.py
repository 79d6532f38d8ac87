"""OpenEnv environments: a server's sessions as episodes, over its WebSocket and over routes that keep one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from chats import Letters, Voice
from clients import AGENTS
from environment_runs import DEADLINE_S, config, episodes_of, interpreter, made_task, rewards
from openenv_stub import Stub, serving_openenv

from overlap.environments.openenv_session import _seen
from overlap.environments.scored import EnvironmentFault
from overlap.errors import ConfigError

pytestmark = pytest.mark.timeout(DEADLINE_S + 100)


@pytest.fixture
def served() -> Iterator[tuple[str, Stub]]:
    with serving_openenv() as found:
        yield found


def says(*words: str) -> Voice:
    return Voice(lambda request: (words[min(request.turn - 1, len(words) - 1)], "stop"))


@pytest.mark.parametrize("transport", ["ws", "http"])
def test_an_episode_is_a_session_and_its_reward_the_sum_of_its_steps(served, transport: str) -> None:
    url, _ = served
    cfg = config(f"openenv:{url}", {"transport": transport, "count": 3})
    task, made = episodes_of(cfg, says("1", "2"), count=3)
    assert [(one.failure, one.turns) for one in made] == [("", 2)] * 3
    assert rewards(task, made) == [0.0, 0.5, 0.5]
    shown = Letters().decode(made[1].prompt_ids)
    assert "Say the number." in shown
    assert "Say 1." in shown


def test_the_reward_may_be_the_last_steps(served) -> None:
    task, made = episodes_of(config(f"openenv:{served[0]}", {"reward": "last", "count": 2}), says("1", "2"), count=2)
    assert rewards(task, made) == [0.0, 0.0]


def test_no_more_sessions_are_open_than_the_server_takes(served) -> None:
    url, stub = served
    episodes_of(config(f"openenv:{url}", {"sessions": 2, "count": 6}), says("1"), count=6)
    assert 1 <= stub.most <= 2
    assert stub.open == 0


@pytest.mark.parametrize(("what", "code"), [("reset", "SESSION_ERROR"), ("step", "EXECUTION_ERROR")])
def test_a_fault_of_the_environment_masks_the_sample(served, what: str, code: str) -> None:
    url, stub = served
    stub.fails = (what, code)
    task, made = episodes_of(config(f"openenv:{url}", {}), says("1"))
    assert made[0].failure == f"openenv: {what} failed: it broke"
    assert rewards(task, made) == [None]


def test_a_route_that_breaks_masks_the_sample_too(served) -> None:
    url, stub = served
    stub.fails = ("step", "500")
    _, made = episodes_of(config(f"openenv:{url}", {"transport": "http"}), says("1"))
    assert made[0].failure.startswith("openenv: /step answered 500")


@pytest.mark.parametrize(
    ("transport", "answer", "told"),
    [
        ("ws", "NONSENSE", "no answer to step: maximum recursion depth"),
        ("http", "NONSENSE", "/step answered no JSON"),
        ("http", "NONTEXT", "no answer to /step: 'utf-8' codec can't decode"),
    ],
)
def test_an_answer_that_is_none_is_a_fault_of_the_server(served, transport: str, answer: str, told: str) -> None:
    url, stub = served
    stub.fails = ("step", answer)
    _, made = episodes_of(config(f"openenv:{url}", {"transport": transport}), says("1"))
    assert made[0].failure.startswith(f"openenv: {told}")


def test_an_action_that_is_none_is_told_to_the_policy_and_costs_a_turn(served) -> None:
    url, stub = served
    stub.fails = ("step", "VALIDATION_ERROR")
    task, made = episodes_of(config(f"openenv:{url}", {}), says("x", "0", "0"))
    assert (made[0].failure, made[0].turns) == ("", 3)
    assert rewards(task, made) == [1.0]


def test_an_episode_that_a_budget_ends_has_no_reward_and_frees_its_session(served) -> None:
    url, stub = served
    task, made = episodes_of(config(f"openenv:{url}", {}, turns=1), says("0"))
    assert (made[0].finish, rewards(task, made)) == ("length", [None])
    assert stub.open == 0


def test_a_server_of_the_real_package_is_played_and_its_faults_mask() -> None:
    command = [interpreter("openenv"), str(AGENTS / "openenv_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            cfg = config(f"openenv:http://127.0.0.1:{int(server.stdout.readline())}", {"count": 4, "sessions": 2})
            task, made = episodes_of(cfg, says("1", "2"), count=4)
            assert [(one.failure, one.turns) for one in made] == [("", 2)] * 4
            assert rewards(task, made) == [0.0, 0.5, 0.5, 0.0]
            assert "Say 3." in Letters().decode(made[3].prompt_ids)
            _, broken = episodes_of(cfg, says("break"))
            assert "the box is gone" in broken[0].failure
        finally:
            server.kill()


def test_a_policy_that_writes_the_line_itself_earns_nothing_by_it(served) -> None:
    forged = '{"reward": 100.0, "seal": ""}'
    for turns, reward in ((1, None), (4, 0.0)):
        task, made = episodes_of(config(f"openenv:{served[0]}", {}, turns=turns), says(f"x\n{forged}"))
        assert made[0].text.splitlines()[1] == forged
        assert rewards(task, made) == [reward]


def test_seeds_for_evaluation_are_others(served) -> None:
    task = made_task(config(f"openenv:{served[0]}", {"count": 3, "heldout": 2}))
    assert [[p.data["row"] for p in task.prompts(Letters(), split)] for split in ("train", "heldout")] == [
        [0, 1, 2],
        [3, 4],
    ]


def test_a_server_that_is_none_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match=r"does not answer as an OpenEnv server"):
        made_task(config("openenv:http://127.0.0.1:9", {})).prompts(Letters(), "train")
    with pytest.raises(ConfigError, match=r"name the server by its URL"):
        made_task(config("openenv:here", {}))


@pytest.mark.parametrize("reward", ["1", float("nan"), 10**400, [1]])
def test_a_reward_that_is_no_finite_number_is_the_environments_fault(reward: Any) -> None:
    with pytest.raises(EnvironmentFault, match="as a reward"):
        _seen({"observation": {"a": 1}, "reward": reward})
