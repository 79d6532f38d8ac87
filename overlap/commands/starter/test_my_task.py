"""References of problems.jsonl get the reward 1 and wrong programs get 0, by the sandbox that a run judges with."""

import sys
from pathlib import Path

import pytest

import sandbox
from overlap.core import Prompt

sys.path.insert(0, str(Path(__file__).parent))  # my_task.py is beside this file
from my_task import MyTask, problem_rows, split_of

TASK = MyTask()
WRONG = {
    "returns nothing": "\n    pass\n",
    "does not compile": "\n    return (\n",
    "never ends": "\n    while True: pass\n",
    "ends the process": "\n    raise SystemExit\n",
}
problems = pytest.mark.parametrize("row", problem_rows(), ids=lambda row: row["id"])


def reward_of(row, source):
    """The reward of an answer with this program, judged as in a run."""
    prompt = Prompt(row["id"], (0,), prefill="```python\n", data=row)
    answer = f"```python\n{source}\n```"
    judged = TASK.program(prompt, answer)
    return TASK.reward(prompt, answer, judged and sandbox.judge(*judged))


@problems
def test_the_reference_gets_1(row):
    assert reward_of(row, row["reference"]) == 1.0


@problems
@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_a_wrong_program_gets_0(row, body):
    assert reward_of(row, row["starter"] + body) == 0.0


@problems
def test_an_answer_without_a_program_gets_0(row):
    assert reward_of(row, "") == 0.0


def test_ids_are_unique_and_both_splits_have_problems():
    ids = [row["id"] for row in problem_rows()]
    assert len(set(ids)) == len(ids)
    assert {split_of(row) for row in problem_rows()} == {"train", "heldout"}
