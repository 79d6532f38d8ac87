"""The formats of other trainers, as the documentation shows them over `sandbox.Client`."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from places import ROOT
from serving import Served, served

SUM = "print(sum(map(int, input().split())))"
ANSWERS = [f"```python\n{SUM}\n```", "```python\nprint(7)\n```"]
EXAMPLES = [path.read_text("utf-8") for path in sorted((ROOT / "docs" / "examples").glob("*_reward.py"))]
LABEL = {"inputs": ["3 4\n", "1 1\n"], "outputs": ["7\n", "2\n"]}
REQUESTS: list[tuple[str, Any, Any]] = [
    ("/get_reward", {"query": [f"Add.{text}" for text in ANSWERS], "prompts": ["Add."] * 2, "labels": [LABEL] * 2},
     lambda found: found["rewards"] == [1.0, 0.0]),
    ("/remote_rm", {"response": ANSWERS[0], "label": LABEL}, lambda found: found == 1.0),
    ("/test_program", {"program": "f = abs", "tests": ["assert f(-1) == 1", "assert f(1) == 2"]},
     lambda found: (found["results"], found["runtimes"][1]) == ([1, 0], -1.0)),
    ("/api/v2/execute", {"language": "python", "files": [{"content": SUM}], "stdin": "3 4"},
     lambda found: (found["run"]["stdout"], found["run"]["code"]) == ("7\n", 0)),
]  # fmt: skip


def test_each_has_at_most_15_lines() -> None:
    assert len(EXAMPLES) == len(REQUESTS) + 1
    assert (
        max(len([line for line in text.splitlines() if line]) for text in EXAMPLES) <= 16
    )  # the first names the client


@pytest.mark.parametrize(("path", "body", "right"), REQUESTS, ids=[path for path, *_ in REQUESTS])
@served()
async def test_a_format_of_another_trainer_is_a_few_lines(s: Served, path: str, body: Any, right: Any) -> None:
    names = run(next(text for text in EXAMPLES if f'"{path}"' in text), s)
    async with names["pool"], httpx.AsyncClient(transport=httpx.ASGITransport(names["app"])) as asking:
        found = (await asking.post(f"http://here{path}", json=body)).json()
    assert right(found), found


@served()
async def test_the_reward_of_open_r1_is_a_few_lines(s: Served) -> None:
    names = run(next(text for text in EXAMPLES if "verification_info" in text), s)
    info = {"test_cases": [{"input": "3 4", "output": "7"}, {"input": "1 1", "output": "2"}]}
    completions = [[{"content": text}] for text in ANSWERS]
    assert await asyncio.to_thread(names["code_reward"], completions, [info] * 2) == [1.0, 0.0]


def run(example: str, s: Served) -> dict[str, Any]:
    names = dict[str, Any]()
    exec(example.replace("http://127.0.0.1:8080", s.url), names)
    return names
