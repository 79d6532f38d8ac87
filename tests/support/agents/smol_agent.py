"""A program of smolagents: ``python smol_agent.py HOW``, whose agent calls tools (calls) or writes code (code)."""

import os
import sys
from pathlib import Path

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool


@tool
def twice(number: int) -> int:
    """Doubles a number.

    Args:
        number: The number.
    """
    return 2 * number


model = OpenAIModel("policy", os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
kind = {"calls": ToolCallingAgent, "code": CodeAgent}[sys.argv[1]]
agent = kind(tools=[twice], model=model, max_steps=4)
Path("answer.txt").write_text(str(agent.run(Path("prompt.txt").read_text())))
