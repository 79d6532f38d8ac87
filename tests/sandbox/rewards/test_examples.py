"""Trainers without a style of their own: the lines of the documentation that take their functions, or give ours."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from places import ROOT

from sandbox.rewards import code_reward
from sandbox.rewards.code_reward import Unjudged
from sandbox.rewards.styles import Answered, find_style
from sandbox.zoo import exhibits

PAGE = (ROOT / "docs" / "rewards.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n# (OpenRLHF|AReaL|slime)(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
TAKEN, GIVEN = dict(EXAMPLES[:3]), dict(EXAMPLES[3:])
TRAINERS = ("OpenRLHF", "AReaL", "slime")
RIGHT, WRONG = f"```python\n{exhibits.HONEST_SUM}```", "```python\nprint(0)\n```"
TRUTH = {"inputs": ["3 4\n"], "outputs": ["7"]}


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    scores = [
        float(label in query.removeprefix(prompt))
        for query, prompt, label in zip(queries, prompts, labels, strict=True)
    ]
    return {"rewards": scores, "scores": scores, "extra_logs": {}}


def areal(prompt: str, completions: str, prompt_ids: Any, completion_ids: list[int], answer: str, **row: Any) -> float:
    assert completion_ids == [5]
    return float(answer in completions)


async def slime(args: Any, sample: Any, **kwargs: Any) -> float:
    return float(sample.label in sample.response)


@pytest.mark.parametrize(("trainer", "theirs"), [("OpenRLHF", reward_func), ("AReaL", areal), ("slime", slime)])
def test_a_function_of_another_trainer_pays_here_what_it_pays_there(trainer: str, theirs: Any) -> None:
    names: dict[str, Any] = {"theirs": theirs, "SimpleNamespace": SimpleNamespace}
    exec(f"#{TAKEN[trainer]}", names)
    style = find_style(names["reward"])
    row = {"answer": "blue", "label": "blue"}
    paid = [style.call(names["reward"], Answered(row, "blue?", said, [5])) for said in ("it is blue", "it is red")]
    assert (style.name, paid) == ("trl", [1.0, 0.0])


def openrlhf_calls(function: Any, answer: str, tests: Any) -> Any:
    asked = f"add {RIGHT}"  # code of the prompt is not paid
    return function([f"<s>{asked}{answer}"], [asked], [tests])["rewards"]


CALLS = {
    "OpenRLHF": openrlhf_calls,
    "AReaL": lambda function, answer, tests: function("add", answer, [1], [2], tests=tests, level=3),
    "slime": lambda function, answer, tests: function(None, SimpleNamespace(response=answer, label=tests)),
}


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SANDBOX_WORKERS", "1")
    monkeypatch.delenv("SANDBOX_URL", raising=False)
    yield
    code_reward.close_process_pool()


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("trainer", TRAINERS)
def test_our_reward_is_that_of_another_trainer(trainer: str) -> None:
    names: dict[str, Any] = {}
    exec(f"#{GIVEN[trainer]}", names)
    function = names["reward_func" if trainer == "OpenRLHF" else "reward"]

    def paid(answer: str, tests: Any) -> Any:
        returned = CALLS[trainer](function, answer, tests)
        return asyncio.run(returned) if inspect.iscoroutine(returned) else returned

    assert [paid(answer, TRUTH) for answer in (RIGHT, WRONG, "no program")] == [1.0, 0.0, 0.0]
    if trainer != "slime":
        with pytest.raises(Unjudged, match="the data: problem 'problem': it has no tests"):
            paid(RIGHT, "42")
        return
    sample = SimpleNamespace(response=RIGHT, label="42", remove_sample=False)
    assert (asyncio.run(function(None, sample)), sample.remove_sample) == (0.0, True)
