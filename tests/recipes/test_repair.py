"""``code_repair``: what a turn is told, what it is never told, and when an episode ends."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from overlap.core import Prompt
from recipes.code_rl.core import CodeProblem
from recipes.code_rl.data import load_problems
from recipes.code_rl.repair import RepairTask
from recipes.code_rl.task import PROBLEM_FILES
from sandbox.core.nouns import Case, CaseResult, Judgement, Program, Verdict
from sandbox.core.problem import Problem

ADD = CodeProblem(
    "add", "Write `add`.",
    Problem("add", "function", (Case("[2, 3]", "5"), Case("[98765, 1]", "98766")), fn_name="add"),
    starter="def add(a, b):", public=(Case("[2, 3]", "5"),),
)  # fmt: skip
PROMPT = Prompt("add", (1, 2), "```python\ndef add(a, b):", ADD)


def judged(verdict: Verdict, log: str = "") -> Judgement:
    cases = () if verdict is Verdict.CE else (CaseResult(0, verdict, 0.0, 0.0, 0, "m"),)
    passed = int(verdict is Verdict.AC)
    return Judgement("add:public", verdict, cases, passed, 1, False, "B", "python", "3", log, 0.0, 0.0)


class Talk:
    """A policy with these answers, and a sandbox with these verdicts."""

    def __init__(self, answers: list[str], verdicts: list[Verdict]) -> None:
        self.answers, self.verdicts = answers, verdicts
        self.asked: list[list[dict[str, Any]]] = []
        self.run_: list[tuple[Problem, Program]] = []

    async def say(self, messages: list[dict[str, Any]], *, prefill: str) -> Any:
        self.asked.append([dict(message) for message in messages])
        text = prefill + self.answers[len(self.asked) - 1]

        return SimpleNamespace(text=text, message={"role": "assistant", "content": text})

    async def run(self, problem: Problem, program: Program) -> Judgement:
        self.run_.append((problem, program))
        return judged(self.verdicts[len(self.run_) - 1])


def play(answers: list[str], verdicts: list[Verdict], prompt: Prompt = PROMPT) -> tuple[str, Talk]:
    talk = Talk(answers, verdicts)
    return asyncio.run(RepairTask().rollout(prompt, talk, talk)), talk


def test_a_program_that_passes_its_public_cases_is_the_answer() -> None:
    answer, talk = play([" return a + b\n```"], [Verdict.AC])
    assert answer == " return a + b\n```"
    assert len(talk.asked) == 1


def test_one_that_fails_is_told_of_the_public_case_and_the_last_turns_is_the_answer_unjudged() -> None:
    answer, talk = play([" return a\n```", " return b\n```", " return a + b\n```"], [Verdict.WA, Verdict.TLE])
    assert answer == " return a + b\n```"
    assert [len(messages) for messages in talk.asked] == [1, 3, 5]
    first, second = talk.asked[2][2]["content"], talk.asked[2][4]["content"]
    assert "gives another answer" in first
    assert "`add` with the arguments [2, 3]" in first
    assert "The right answer is 5" in first
    assert "takes too long" in second
    assert len(talk.run_) == 2


@pytest.mark.promise("expected-outputs")
def test_hidden_cases_never_enter_an_episode() -> None:
    _, talk = play([" return a\n```"] * 3, [Verdict.WA] * 2)
    task = RepairTask()
    everything = json.dumps(talk.asked) + json.dumps(dict(task.files(PROMPT, "text")))
    everything += json.dumps([problem.to_json() for problem, _ in talk.run_])
    assert "98765" not in everything
    assert "98766" not in everything


def test_an_answer_without_a_program_is_told_so_and_not_judged() -> None:
    prompt = replace(PROMPT, prefill="")
    _, talk = play(["i do not know", "```python\nx\n```"], [Verdict.AC], prompt)
    assert "no program" in talk.asked[1][2]["content"]
    assert len(talk.run_) == 1


def test_a_problem_without_public_cases_has_one_turn() -> None:
    _, talk = play(["x"], [], replace(PROMPT, data=replace(ADD, public=())))
    assert len(talk.asked) == 1
    assert "problem.json" not in RepairTask().files(replace(PROMPT, data=replace(ADD, public=())), "")


@pytest.mark.parametrize("file", PROBLEM_FILES, ids=lambda path: path.name)
def test_our_own_problems_show_their_public_case_in_the_statement(file: Path) -> None:
    from recipes.code_rl.cases import Judging

    for problem in load_problems(str(file), Judging()).problems:
        (case,) = problem.public
        assert case in problem.problem.cases or len(problem.problem.cases) == 15
        wanted = {case.expected.strip(), case.expected.strip().replace('"', "'")}
        if problem.problem.kind == "function":
            wanted.add(repr(json.loads(case.expected)))
        assert any(word.splitlines()[0] in problem.statement for word in wanted), problem.id
