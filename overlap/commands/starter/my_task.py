"""Your task: a row of problems.jsonl becomes a prompt, an answer becomes a program, its verdict becomes the reward."""

import json
from pathlib import Path

import overlap
import sandbox
from overlap.rows.row import own_split
from sandbox.rewards.extract import extract_program

PROBLEMS = Path(__file__).with_name("problems.jsonl")


def problem_rows():
    """The rows of problems.jsonl: id, split, statement, fn_name, starter, tests and reference."""
    return [json.loads(line) for line in PROBLEMS.read_text(encoding="utf-8").splitlines() if line.strip()]


def split_of(row):
    """ "train" or "heldout", which "test" and "validation" mean, too; a row that does not say is trained on."""
    return own_split(row.get("split"), row["id"], PROBLEMS.name) or "train"


class MyTask(overlap.Task):
    """Python functions, judged by tests that the policy does not see."""

    def __init__(self, stop=(), cpu_s=1.0):
        self.stop = stop
        self.limits = sandbox.Limits(cpu_s=cpu_s)

    @classmethod
    def from_config(cls, cfg):
        """Make the task that `data.task` names in a configuration."""
        return cls(cfg.rollout.stop, cfg.verify.cpu_s)

    def prompts(self, tokenizer, split):
        """Return the prompts of "train" or "heldout". Each answer begins with the prefill, an open code fence and the
        first line, so that a small policy goes on with code at once.
        """
        return [
            overlap.chat_prompt(
                tokenizer,
                row["id"],
                f"Write only the Python function, no example usage. {row['statement']}",
                prefill=f"```python\n{row['starter']}",
                data=row,
            )
            for row in problem_rows()
            if split_of(row) == split
        ]

    def program(self, prompt, answer):
        """The problem for the sandbox and the program in the answer; None if there is no program, which gets 0."""
        source = extract_program(answer, prefill=prompt.prefill, stop=self.stop)
        if not source:
            return None
        row = prompt.data
        cases = tuple(sandbox.Case(test["input"], test["output"]) for test in row["tests"])
        problem = sandbox.Problem(row["id"], row["kind"], cases, row["fn_name"], limits=self.limits)
        return problem, sandbox.Program(source)

    def reward(self, prompt, answer, judgement):
        """1 if the program passes every test. `all_cases = True` on the class and `judgement.score` would give the
        share of the tests that pass.
        """
        return float(judgement is not None and judgement.verdict == "AC")
