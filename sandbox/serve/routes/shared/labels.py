"""Problems as labels of other trainers' data, and the program in an answer to one.

A label is what `sandbox.rewards.ground_truth` reads: a problem.json, {inputs, outputs, fn_name} of verl, TACO and APPS,
a list of {input, output}, asserts; as an object or as its JSON text. Beside the tests an object may have `language` (of
the program in the answer), `compare` and `limits`. A function in Python finds the imports that graders put in front of
it, as `List`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sandbox.core.nouns import Judgement, Program
from sandbox.core.problem import Problem
from sandbox.errors import InvalidProblem
from sandbox.languages.table import find_language
from sandbox.rewards.answer_text import program_of_answer
from sandbox.rewards.ground_truth import problem_of
from sandbox.rewards.outcome import all_or_nothing, score, share_of_cases
from sandbox.serve.bodies import Refused
from sandbox.serve.bounds import FENCES, LINES
from sandbox.serve.routes.shared import fields
from sandbox.serve.service import Service

REWARDS: Final = {"all": all_or_nothing, "share": share_of_cases, "score": score}
"""By the name that `?reward=` gives: 1 where every case passes, the share of cases that pass, the problem's points."""
_HOW: Final = ("language", "compare", "limits")


@dataclasses.dataclass(frozen=True, slots=True)
class Label:
    """A problem, and the language of the programs that answer it."""

    problem: Problem
    language: str


def label_of(service: Service, where: str, given: Any) -> Label:
    """Read a label. Raises Refused, InvalidProblem."""
    try:
        label = fields.parsed(where, given)
    except Refused:
        label = given  # asserts as they stand
    try:
        problem = service.problem(label, _problem)
    except InvalidProblem as error:
        raise Refused(422, f"{where}: {error}") from None
    language = fields.text(label, "language", problem.language) if isinstance(label, dict) else problem.language
    return Label(problem, find_language(language).name)


def _problem(label: Any) -> Problem:
    if not isinstance(label, dict) or "cases" in label:
        return problem_of(label, id="label")
    tests = {name: value for name, value in label.items() if name not in _HOW}
    language, compare = fields.text(label, "language", "python"), fields.text(label, "compare", "tokens")
    problem = problem_of(tests, id="label", language=language, compare=compare)
    return problem if label.get("limits") is None else dataclasses.replace(problem, limits=label["limits"])


def check_answers(where: str, answers: Iterable[str]) -> None:
    """Raise Refused for answers whose fences take too long to be found."""
    lines = fences = 0
    for answer in answers:
        lines, fences = lines + answer.count("\n"), fences + answer.count("```") + answer.count("~~~")
        if lines > LINES or fences > FENCES:
            raise Refused(413, f"{where}: more than {LINES} lines or {FENCES} fences; send less in a request")


async def label_reward(service: Service, answer: str, label: Label, name: str) -> float:
    """The reward of an answer; 0 for one without a program. Raises SandboxError."""
    source = program_of_answer(answer, label.language)
    if not source:
        return 0.0
    program = Program(source, label.language)
    done: Judgement = await service.pool.judge(label.problem, program, stop_at_first_failure=name == "all")
    found = REWARDS[name](done)
    assert found is not None  # only a SandboxError has no reward
    return found


def reward_name(query: Mapping[str, str]) -> str:
    """The reward that the URL asks for. Raises Refused."""
    name = query.get("reward", "all")
    if name not in REWARDS:
        raise Refused(422, f"reward={name!r}: use one of {', '.join(REWARDS)}")
    return name
