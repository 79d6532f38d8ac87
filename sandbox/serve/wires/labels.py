"""Problems as labels of other trainers' data, and the program in an answer to one.

A label is what `sandbox.rewards.ground_truth` reads: a problem.json, {inputs, outputs, fn_name} of verl, TACO and APPS,
a list of {input, output}, asserts; as an object or as its JSON text. Beside the tests an object may have `language` (of
the program in the answer), `compare` and `limits`. A function in Python finds the imports that graders put in front of
it, as `List`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

from sandbox.core import Judgement, Problem, Program
from sandbox.errors import InvalidProblem
from sandbox.languages import find_language
from sandbox.rewards import CONTEST_PREAMBLE, all_or_nothing, extract_program, problem_of, score, share_of_cases
from sandbox.serve.bodies import Refused
from sandbox.serve.service import Service
from sandbox.serve.wires import fields

REWARDS: Final = {"all": all_or_nothing, "share": share_of_cases, "score": score}
"""By the name that `?reward=` gives: 1 where every case passes, the share of cases that pass, the problem's points."""
_HOW: Final = ("language", "compare", "limits")
_TOKEN: Final = re.compile(r"(?:<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|</s>|<eos>|<end_of_turn>|<pad>)\Z")
"""A special token of a chat template, at the end of an answer."""
_TOKEN_MAX: Final = 48
"""Characters of one, at most."""
_TOKENS_MAX: Final = 10_000


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
    if problem.kind == "function" and find_language(language).name == "python":
        problem = dataclasses.replace(problem, preamble=CONTEST_PREAMBLE)
    return problem if label.get("limits") is None else dataclasses.replace(problem, limits=label["limits"])


def answered_program(answer: str, language: str) -> Program | None:
    """The program in an answer, by the rule of `sandbox.rewards.extract`, or None for no program. Special tokens that
    end the answer are no part of it.
    """
    source = extract_program(without_tokens(answer), language=language)
    return Program(source, language) if source else None


def without_tokens(answer: str) -> str:
    """An answer without the special tokens that end it, and the white space between and behind them."""
    end = len(answer)
    for _ in range(_TOKENS_MAX):
        bare = end
        while bare and answer[bare - 1].isspace():
            bare -= 1
        found = _TOKEN.search(answer, max(0, bare - _TOKEN_MAX), bare)
        if found is None:
            break
        end = found.start()
    return answer[:end]


async def label_reward(service: Service, answer: str, label: Label, name: str) -> float:
    """The reward of an answer; 0 for one without a program. Raises SandboxError."""
    program = answered_program(answer, label.language)
    if program is None:
        return 0.0
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
