"""``code_repair`` as an agent program: ``episode.command="python -m recipes.code_rl.repair_agent"``.

It finds ``task.json`` and, where there are public cases, ``problem.json`` in its working directory, asks the policy
through ``OPENAI_BASE_URL``, has the sandbox of this machine judge each program by the public cases, and gives
the policy the first that failed. Standard library and ``sandbox`` only: it knows nothing of the run.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import sandbox
from recipes.code_rl.repair import NO_PROGRAM, PROBLEM_FILE, feedback
from sandbox.core.nouns import Program
from sandbox.core.problem import Problem
from sandbox.rewards.extract import extract_program

_TIMEOUT_S = 600.0


def say(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The policy's message."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return dict(json.load(answer)["choices"][0]["message"])


def feedback_on(shown: Problem | None, answer: str) -> str:
    """Return the feedback on the policy's answer; "" where there is none."""
    if shown is None:
        return ""
    source = extract_program(answer)
    return feedback(shown, sandbox.judge(shown, Program(source))) if source else NO_PROGRAM


def main() -> None:
    task = json.loads(Path("task.json").read_text())
    file = Path(PROBLEM_FILE)
    shown = Problem.from_json(json.loads(file.read_text())) if file.exists() else None
    messages: list[dict[str, Any]] = task["messages"]
    for turn in range(1, task["turns"] + 1):
        reply = say(messages)
        words = feedback_on(shown, reply["content"]) if turn < task["turns"] else ""
        if not words:
            return
        messages += [reply, {"role": "user", "content": words}]


if __name__ == "__main__":
    main()
