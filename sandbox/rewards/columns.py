"""A row of data for a labelled problem, in the columns that public data sets have: what a reward function of another
trainer is checked with.

    Problem.to_json() ──▶ prompt, data_source, reward_model, extra_info (verl) · verification_info (open-r1)
                          input_output (APPS, TACO) · test_list (MBPP) · tests · label · answer
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sandbox.core.plain import python_literal

_FENCE = "```"


def columns_of(problem: Mapping[str, Any]) -> dict[str, Any]:
    """The columns for a problem as `Problem.to_json` writes it."""
    kind, cases, name = problem["kind"], problem["cases"], problem.get("fn_name")
    truth: dict[str, Any] = {"inputs": [], "outputs": []}
    if kind == "assert":
        truth["assert_case"] = [case["input"] for case in cases]
    else:
        truth = {
            "inputs": [_lines(case["input"]) if kind == "function" else case["input"] for case in cases],
            "outputs": [case["expected"] for case in cases],
        }
    if name:
        truth["fn_name"] = name
    pairs = [{"input": i, "output": o} for i, o in zip(truth["inputs"], truth["outputs"], strict=True)]
    by_call = {"type": "function_call", "fn_name": name} if kind == "function" else {"type": "stdin_stdout"}
    text = json.dumps(truth)
    return {
        "id": problem["id"],
        "prompt": [{"role": "user", "content": f"Write a program that solves {problem['id']} ({kind})."}],
        "data_source": "taco",
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": text},
        "extra_info": {"index": problem["id"], "split": "train"},
        **dict.fromkeys(("ground_truth", "label", "answer", "input_output"), text),
        **dict.fromkeys(("tests", "test_cases"), pairs),
        "test_list": truth.get("assert_case", []),
        "verification_info": {"language": "python", "test_cases": [by_call | pair for pair in pairs]},
        "metadata": truth,
        "language": "python",
    }


def fenced(program: str, language: str) -> str:
    """A program as the only block of an answer."""
    fence = _FENCE
    while any(line.lstrip().startswith(fence) for line in program.splitlines()):
        fence += "`"
    return f"{fence}{language}\n{program}{'' if program.endswith(chr(10)) else chr(10)}{fence}\n"


def _lines(arguments: str) -> str:
    """Each argument of a call as a line of JSON, as LiveCodeBench has them."""
    try:
        found = json.loads(arguments)
    except ValueError:
        found = python_literal(arguments)
    return "\n".join(map(json.dumps, found))
