"""Problems as labels of other trainers' data, and the program in an answer to one.

    {id, kind, cases, ...}                    problem.json
    {inputs, outputs, fn_name?}               verl, TACO, APPS: with fn_name, an input has one JSON value per line
    {assert_case: [code, ...]}                verl: an assert each

Beside them `language`, of the program in the answer (python), `compare` (tokens) and `limits`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from sandbox.core import Judgement, Problem, Program
from sandbox.languages import find_language
from sandbox.rewards.extract import extract_program
from sandbox.rewards.outcome import all_or_nothing, score, share_of_cases
from sandbox.serve.bodies import Json, Refused
from sandbox.serve.service import Service
from sandbox.serve.wires import fields

REWARDS: Final = {"all": all_or_nothing, "share": share_of_cases, "score": score}
"""By the name that `?reward=` gives: 1 where every case passes, the share of cases that pass, the problem's points."""
_TESTS: Final = frozenset({"inputs", "outputs", "fn_name", "assert_case"})
_KEPT: Final = ("compare", "limits", "language", "preamble")
_END: Final = re.compile(r"(?:(?:<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|</s>|<eos>|<end_of_turn>|<pad>)\s*)+\Z")
"""Special tokens of chat templates that end an answer."""


def problem_of(service: Service, where: str, label: Any) -> Problem:
    """The problem of a label. Raises Refused, InvalidProblem."""
    given = fields.parsed(where, label)
    if not isinstance(given, dict):
        raise fields.refusal(where, label, "a problem: problem.json, or {inputs, outputs, fn_name}")
    if "cases" in given:
        return service.problem(given)
    if not {"inputs", "assert_case"} & given.keys():
        raise fields.refusal(where, sorted(given), "a problem: problem.json, or {inputs, outputs, fn_name}")
    if unknown := sorted(given.keys() - _TESTS - set(_KEPT)):
        raise Refused(422, f"{where}: {unknown[0]!r} is unknown beside inputs and outputs")
    kept = {name: given[name] for name in _KEPT if name in given}
    return service.problem({"id": "label", **kept, **_tests(where, given)})


def _tests(where: str, given: Json) -> Json:
    if asserts := given.get("assert_case"):
        cases = [{"input": text} for text in fields.texts(given, "assert_case")]
        if any(asserts) and not given.get("fn_name"):
            return {"kind": "assert", "cases": cases}
    inputs, outputs = (_listed(where, given, name) for name in ("inputs", "outputs"))
    if len(inputs) != len(outputs):
        raise Refused(422, f"{where}: {len(inputs)} inputs, {len(outputs)} outputs: every input needs its output")
    if name := given.get("fn_name"):
        cases = [_call(f"{where}: [{n}]", *pair) for n, pair in enumerate(zip(inputs, outputs, strict=True))]
        return {"kind": "function", "fn_name": fields.text({"fn_name": name}, "fn_name"), "cases": cases}
    pairs = zip(inputs, outputs, strict=True)
    cases = [{"input": _text(where, read), "expected": _text(where, written)} for read, written in pairs]
    return {"kind": "stdio", "cases": cases}


def _listed(where: str, given: Json, name: str) -> list[Any]:
    value = given.get(name)
    if not isinstance(value, list):
        raise fields.refusal(f"{where}: {name}", value, "a list")
    return value


def _text(where: str, value: Any) -> str:
    """Standard input or output: a list holds lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise fields.refusal(where, value, "text, or a list of lines")
    return value


def _call(where: str, given: Any, wanted: Any) -> Json:
    """A call. An expected text that is no JSON is the string itself. None is no expectation: any function would do."""
    if wanted is None:
        raise fields.refusal(f"{where}: output", wanted, 'the value that is expected ("null" for None)')
    if isinstance(given, str):
        lines = [line for line in given.split("\n") if line.strip()]
        given = [fields.parsed(f"{where}: input", line) for line in lines]
    if not isinstance(given, list):
        raise fields.refusal(f"{where}: input", given, "one JSON value per line, or the list of arguments")
    if isinstance(wanted, str):
        with suppress(ValueError, RecursionError):  # a string that was stored without its quotes
            wanted = json.loads(wanted)
    return {"input": json.dumps(given), "expected": json.dumps(wanted)}


def program_in(answer: str, problem: Problem) -> Program | None:
    """The program in an answer, by the rule of `sandbox.rewards.extract`, or None for no program. Special tokens that
    end the answer are no part of it.
    """
    ended = _END.search(answer)
    source = extract_program(answer[: ended.start()] if ended else answer, language=problem.language)
    return Program(source, problem.language) if source else None


async def reward_of(service: Service, answer: str, problem: Problem, name: str) -> float:
    """The reward of an answer; 0 for one without a program. Raises SandboxError."""
    find_language(problem.language)
    program = program_in(answer, problem)
    if program is None:
        return 0.0
    done: Judgement = await service.pool.judge(problem, program, stop_at_first_failure=name == "all")
    found = REWARDS[name](done)
    assert found is not None  # only a SandboxError has no reward
    return found


def reward_name(query: Mapping[str, str]) -> str:
    """The reward that the URL asks for. Raises Refused."""
    name = query.get("reward", "all")
    if name not in REWARDS:
        raise Refused(422, f"reward={name!r}: use one of {', '.join(REWARDS)}")
    return name
