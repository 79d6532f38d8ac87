"""open-r1's graders for contests, as its Piston client asks for them: files in, "1" or "0" out.

    main.cpp | main.python, input.txt, correct_output.txt, grader_config (KEY=VALUE a line), perhaps checker.py

The checker prints its score and nothing else, 1 or 100 for a right output: convention "score" of judging/referee.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from sandbox.core.nouns import MIB, Program, Verdict
from sandbox.serve.bodies import Json, Refused
from sandbox.serve.service import Service

_NEEDED: Final = frozenset({"input.txt", "correct_output.txt", "grader_config"})


def wants_grader(files: Mapping[str, str]) -> bool:
    """Whether the files are those of a grader."""
    return files.keys() >= _NEEDED


async def judge_by_config(service: Service, language: str, files: Mapping[str, str]) -> Json:
    """What Piston answers to such files. Raises Refused, InvalidProblem, SandboxError."""
    config = dict(line.split("=", 1) for line in files["grader_config"].splitlines() if "=" in line)
    if (mode := config.get("INPUT_MODE", "stdio").strip()) not in ("stdio", "", "None"):
        raise Refused(400, f"INPUT_MODE={mode}: programs read stdin and write stdout here")
    problem: Json = {
        "id": "graded",
        "kind": "stdio",
        "cases": [{"input": files["input.txt"], "expected": files["correct_output.txt"]}],
        "limits": {"cpu_s": _number(config, "TIME_LIMIT", 3.0)},
    }
    problem["limits"]["memory_bytes"] = int(_number(config, "MEMORY_LIMIT", 512.0) * MIB)
    if checker := files.get("checker.py"):
        problem |= {"compare": "checker", "checker": {"source": checker}, "convention": "score"}
    done = await service.pool.judge(service.problem(problem), Program(next(iter(files.values())), language))
    broken = done.verdict is Verdict.CE and language != "python"
    compiled = {
        "stdout": "",
        "stderr": done.compile_log,
        "output": done.compile_log,
        "code": int(broken),
        "signal": None,
    }
    said = "1" if done.verdict is Verdict.AC else "0"
    why = done.cases[0].message if done.cases else ""
    ran = {"stdout": said, "stderr": why, "output": said, "code": None if broken else 0, "signal": None}
    return {"compile": compiled, "run": ran}


def _number(config: Mapping[str, str], name: str, default: float) -> float:
    text = config.get(name, "")
    try:
        value = float(text) if text.strip() not in ("", "None") else default
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise Refused(400, f"grader_config: {name}={text!r}: must be a positive number")
    return value
