"""What a run of the recipe keeps of a sample: readers find the program that was judged and the sampled tokens again."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from rows import OWN, Bytes, jsonl

from overlap.commands.kept_answers import KeptAnswers
from overlap.core import Prompt, Request, Scored, Trajectory, Used
from overlap.record.sample_rows import SampleNotes, SampleRows
from recipes.code_rl.repair import RepairTask
from recipes.code_rl.task import CodeTask, ReasoningCodeTask

STDIO = {"id": "io", "kind": "stdio", "statement": "Print 2.", "tests": [{"input": "", "output": "2"}]}
ROWS = {"starter": OWN, "no-starter": {**OWN, "starter": ""}, "stdio": STDIO}
SYSTEM, TURN = "<system>be brief", "<user>wrong<assistant>"


def text_of(prompt: Prompt) -> str:
    return bytes(prompt.token_ids).decode()


class Kept:
    """The sample of a task as ``trajectories.jsonl`` has it. Tokens are bytes."""

    def __init__(self, made: type[CodeTask], row: str, folder: Path) -> None:
        other = jsonl(folder / "other.jsonl", {**STDIO, "id": "other", "statement": "Print 3."})
        self.task = made(train=jsonl(folder / "rows.jsonl", ROWS[row]), heldout=other)
        (self.prompt,) = self.task.prompts(Bytes(), "train")
        self.text = "\n    return n + 1\n```" if self.prompt.prefill else "so</think>\n```python\nprint(2)\n```"
        self.trajectory = self._episode() if made is RepairTask else self._answered(self.text)
        rows, self.path = SampleRows("train", 1, text_of, self.task.program), folder / "trajectories.jsonl"
        self.path.write_bytes(rows.line(Scored(self.trajectory, 1.0), SampleNotes()))

    def _answered(self, said: str, **more: object) -> Trajectory:
        ids, request = tuple(said.encode()), Request(0, 0, self.prompt)
        return Trajectory(request, ids, (0.0,) * len(ids), self.text, "stop", (), 0.0, 1.0, **more)  # type: ignore[arg-type]

    def _episode(self) -> Trajectory:
        """Two turns, of which the first saw words that are not in the prompt."""
        prompt_ids = (*SYSTEM.encode(), *self.prompt.token_ids)
        used = Used(turns=2, prompted=1, sampled=1, cached=0, rerendered=0, replayed=0, unread=0)
        return self._answered(self.text + TURN + self.text, prompt_ids=prompt_ids, used=used)

    def judged_again(self) -> Trajectory:
        kept = KeptAnswers(self.path)
        (head,) = kept.file.heads()
        return kept.restored(head, self.prompt).trajectory


@pytest.fixture(
    params=itertools.product((CodeTask, ReasoningCodeTask, RepairTask), ROWS),
    ids=lambda each: f"{each[0].__name__}-{each[1]}",
)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return Kept(*request.param, tmp_path)


def test_the_program_that_was_judged_is_judged_again(kept: Kept) -> None:
    again, prompt = kept.judged_again(), kept.prompt
    job = kept.task.program(prompt, prompt.prefill + again.text)
    assert job is not None
    assert job == kept.task.program(prompt, prompt.prefill + kept.text)
    assert again.token_ids == kept.trajectory.token_ids
