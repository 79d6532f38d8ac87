"""Graders of other projects as reward functions that ``sandbox check-reward`` takes, called as each project calls its
own; None is what it has no form for.

    uv pip install --no-deps verl==0.9.1 ...
    PYTHONPATH=scripts/bench sandbox check-reward _peer_rewards:verl
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack, suppress
from functools import cache
from multiprocessing.util import Finalize
from typing import Any

from sandbox.build.builder import Builder
from sandbox.core.nouns import Program, Verdict
from sandbox.core.problem import Problem
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge

# Each is in an environment of its own. Imported here, so that no call takes the seconds of an import.
with suppress(ImportError):
    from verl.utils.reward_score import prime_code
with suppress(ImportError):
    from lighteval.tasks.tasks.lcb.codegen_metrics import check_correctness
with suppress(ImportError):
    from evalplus.eval import untrusted_check

SECONDS = 6
"""Wall time of a test, as LiveCodeBench has it."""


def verl(problem: dict[str, Any], program: str, language: str) -> float | None:
    """verl's ``prime_code``."""
    if (asked := _in_apps_format(problem, language)) is None:
        return None
    passed, _ = prime_code.compute_score(program, asked, continuous=True)  # as verl calls it
    return float(passed)


def livecodebench(problem: dict[str, Any], program: str, language: str) -> float | None:
    """LiveCodeBench's grader, as lighteval has it."""
    if (asked := _in_apps_format(problem, language)) is None:
        return None
    found = check_correctness({"input_output": json.dumps(asked)}, program, timeout=SECONDS)
    return float(all(result is True for result in found))


def evalplus(problem: dict[str, Any], program: str, language: str) -> float | None:
    """evalplus's ``untrusted_check``, which calls functions."""
    if language != "python" or problem["kind"] != "function":
        return None
    inputs = [json.loads(case["input"]) for case in problem["cases"]]
    expected = [json.loads(case["expected"]) for case in problem["cases"]]
    times = [0.01] * len(inputs)
    status, _ = untrusted_check("humaneval", program, inputs, problem["fn_name"], expected, 0, times, fast_check=True)
    return float(status == "pass")


def ours(problem: dict[str, Any], program: str, language: str) -> float | None:
    """A ``Judge`` of the sandbox, which keeps its jail."""
    judgement = _judge().judge(Problem.from_json(problem), Program(program, language))
    return float(judgement.verdict is Verdict.AC)


@cache
def _judge() -> Judge:
    stack = ExitStack()
    Finalize(None, stack.close, exitpriority=0)  # also at the end of a process of multiprocessing, unlike atexit
    builder = Builder(stack.enter_context(tempfile.TemporaryDirectory()))
    return Judge(stack.enter_context(Jail("auto", shared=builder.shared)), builder)


def _in_apps_format(problem: dict[str, Any], language: str) -> dict[str, Any] | None:
    """A problem as APPS (Hendrycks et al. 2021) writes it: a line for each argument of a function."""
    cases = problem["cases"]
    if language != "python" or problem["kind"] not in ("stdio", "function"):
        return None
    if problem["kind"] == "stdio":
        return {"inputs": [case["input"] for case in cases], "outputs": [case["expected"] for case in cases]}
    inputs = ["\n".join(json.dumps(argument) for argument in json.loads(case["input"])) for case in cases]
    return {"inputs": inputs, "outputs": [case["expected"] for case in cases], "fn_name": problem["fn_name"]}
