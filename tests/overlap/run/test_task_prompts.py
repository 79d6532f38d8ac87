"""A task's mistakes, found by ``--dry-run``: one line, with the class and the line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from overlap import cli

GOOD = """
import overlap

class Mine(overlap.Task):
    def prompts(self, tokenizer, split): return [overlap.chat_prompt(tokenizer, 'a', 'Why?')]
    def reward(self, prompt, answer, judgement): return 1.0
"""
MISTAKES = [
    ("def prompts(self, tokenizer): return []", "Mine.prompts", "cannot be called with tokenizer, split"),
    ("def prompts(self, tokenizer, split, more): return []", "Mine.prompts", "'more'"),
    ("async def prompts(self, tokenizer, split): return []", "Mine.prompts", "it is async"),
    ("prompts = []", "Mine.prompts", "is no method, but []"),
    ("def prompts(self, tokenizer, split): return ['Why?']", "Mine.prompts", "entry 0 of split 'train' is no"),
    ("def prompts(self, tokenizer, split): return [{'prompt': 'Why?'}]", "Mine.prompts", "of type dict"),
    ("def prompts(self, tokenizer, split): return 'Why?'", "Mine.prompts", "of type str for split 'train'"),
    ("def prompts(self, tokenizer, split): return None", "Mine.prompts", "of type NoneType for split"),
    ("def prompts(self, tokenizer, split): return {}[split]", "Mine.prompts", "raised KeyError: 'train'"),
    (
        "def prompts(self, tokenizer, split): return 2 * [overlap.chat_prompt(tokenizer, 'a', 'b')]",
        "Mine.prompts",
        "entries 0 and 1 of split 'train' have the id 'a': make the ids unique",
    ),
    (
        "def prompts(self, tokenizer, split): return [overlap.chat_prompt(tokenizer, 7, 'b')]",
        "Mine.prompts",
        "has the id 7: use a string",
    ),
    ("def prompts(self, tokenizer, split): return []", "data.train", "gives no prompt to train on"),
    ("def reward(self, prompt, answer): return 1.0", "Mine.reward", "cannot be called with prompt, answer, ju"),
    ("def reward(self, completions, **kwargs): return 1.0", "Mine.reward", "write `def reward(self, prompt,"),
    ("async def reward(self, prompt, answer, judgement): return 1.0", "Mine.reward", "it is async"),
    ("def reward(self, prompt, answer, judgement): yield 1.0", "Mine.reward", "it yields"),
    ("reward = 1.0", "Mine.reward", "is no method, but 1.0"),
    ("def program(self, answer): return None", "Mine.program", "write `def program(self, prompt, answer)`"),
    ("def probes(self): return ()", "Mine.probes", "write `def probes(self, prompt)`"),
    ("def probes(self, prompt): return None", "Mine.probes", "returned None for prompt 'a'"),
    ("def probes(self, prompt): return ['x']", "Mine.probes", "gave 'x' for prompt 'a', which is no Probe"),
    ("def probes(self, prompt): return 1 / 0", "Mine.probes", "raised ZeroDivisionError: division by zero"),
    ("def rollout(self, prompt, chat, sandbox): return ''", "Mine.rollout", "it is not async"),
    ("async def rollout(self, chat): return ''", "Mine.rollout", "write `async def rollout(self, prompt,"),
    ("packages = 'numpy'", "Mine.packages", "write a tuple of names"),
    ("def __init__(self): self.x = {}['x']", "Mine()", "raised KeyError: 'x'"),
    ("def __init__(self, path): pass", "mine:Mine", "cannot be made without its argument path"),
    ("@classmethod\n    def from_config(cls, cfg): return cfg.data.nothing", "Mine.from_config", "raised Attri"),
]


@pytest.mark.parametrize(("code", "named", "told"), MISTAKES, ids=[code[:60] for code, *_ in MISTAKES])
def test_a_mistake_of_a_task_is_found_by_a_dry_run(
    code: str, named: str, told: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "mine.py").write_text(f"{GOOD}    {code}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert cli.main(["train", "--dry-run", "data.task=mine:Mine", "run.dir=runs/a"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert told in line
    if named.startswith("Mine.") and "is no method" not in told and "packages" not in named:
        assert re.search(r"\bmine\.py:\d+\b", line), line
    assert not (tmp_path / "runs").exists()
