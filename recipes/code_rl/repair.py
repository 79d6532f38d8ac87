"""``code_repair``: a problem in up to three turns. The feedback on a program's failure is on its public cases alone.

    problem ──▶ program ──▶ public cases ──▶ all pass, or the last turn: the answer ──▶ hidden tests ──▶ reward
                   ▲             └── the first that failed, or the compiler's words ──▶ next turn ──┐
                   └──────────────────────────────────────────────────────────────────────────────┘

As ``Task.rollout``, and for agent programs (``repair_agent.py``) as files. Hidden cases never enter an episode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from overlap.core import Prompt
from recipes.code_rl import prompts
from recipes.code_rl.core import CodeProblem
from recipes.code_rl.task import CodeTask
from sandbox.core.nouns import Judgement, Program, Verdict
from sandbox.core.problem import Problem

TURNS = 3
PROBLEM_FILE, ANSWER_FILE = "problem.json", "answer.txt"
_SHOWN = 300
"""Characters of a case, or of what a compiler says, that a turn shows."""
_WORDS: Mapping[Verdict, str] = {
    Verdict.WA: "gives another answer",
    Verdict.TLE: "takes too long",
    Verdict.MLE: "takes too much memory",
    Verdict.OLE: "prints too much",
    Verdict.RE: "ends with an error",
    Verdict.CE: "does not compile",
}


class RepairTask(CodeTask):
    """``CodeTask`` in up to ``TURNS`` turns. A problem without public cases has one."""

    __slots__ = ()

    async def rollout(self, prompt: Prompt, chat: Any, sandbox: Any) -> str:
        problem: CodeProblem = prompt.data
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompts.user_turn(problem)}]
        for turn in range(1, TURNS + 1):
            reply = await chat.say(messages, prefill=prompt.prefill)
            told = await self._told(prompt, reply.text, sandbox) if turn < TURNS else ""
            if not told:
                break
            messages += [reply.message, {"role": "user", "content": told}]
        return str(reply.text.removeprefix(prompt.prefill))

    def files(self, prompt: Prompt, text: str) -> Mapping[str, str]:
        """Files for ``repair_agent.py``: the question, and the public cases as a problem of ``sandbox judge``."""
        problem: CodeProblem = prompt.data
        shown = public_problem(problem)
        asked = {"messages": [{"role": "user", "content": prompts.user_turn(problem)}], "turns": TURNS}
        return {
            "task.json": json.dumps(asked),
            **({PROBLEM_FILE: json.dumps(shown.to_json())} if shown is not None else {}),
        }

    def answer(self, prompt: Prompt, folder: Path, said: str) -> str:
        return said.removeprefix(prompt.prefill)

    async def _told(self, prompt: Prompt, answer: str, sandbox: Any) -> str:
        """Return the next turn's feedback on this turn's program; "" where there is none."""
        shown = public_problem(prompt.data)
        if shown is None:
            return ""
        source = self.extract(prompt, answer)
        if not source:
            return NO_PROGRAM
        return feedback(shown, await sandbox.run(shown, Program(source)))


NO_PROGRAM = "There is no program in your answer. Write the whole program."


def public_problem(problem: CodeProblem) -> Problem | None:
    """The problem with its public cases alone; None where it has none."""
    if not problem.public:
        return None
    return replace(problem.problem, id=f"{problem.id}:public", cases=problem.public, subtasks=())


def feedback(shown: Problem, judgement: Judgement) -> str:
    """The first public case that failed, in words; "" where all passed."""
    if judgement.verdict is Verdict.AC:
        return ""
    if judgement.verdict is Verdict.CE:
        return f"Your program does not compile:\n{_short(judgement.compile_log)}\nWrite the whole program again."
    failed = next(case for case in judgement.cases if case.verdict is not Verdict.AC)
    case = shown.cases[failed.index]
    what = _WORDS.get(failed.verdict, f"fails ({failed.verdict})")
    call = f"`{shown.fn_name}` with the arguments {case.input}" if shown.kind == "function" else f"Input:\n{case.input}"
    wanted = f"The right answer is {case.expected}" if case.expected is not None else ""
    return "\n".join(
        [f"Your program {what}.", _short(call), *([_short(wanted)] if wanted else []), "Write the whole program again."]
    )


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"
