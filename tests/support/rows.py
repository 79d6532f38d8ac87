"""Problem files of one row, a tokenizer, words that a command refuses, and the mark of tests that read public files."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from places import SHARED

from recipes.code_rl.cases import Judging
from recipes.code_rl.data import load_problems

shared = [
    pytest.mark.shared,
    pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED.name} is not there: the public samples lie outside"),
]

OWN = {
    "id": "inc",
    "kind": "function",
    "level": 1,
    "statement": "Write `inc`.",
    "fn_name": "inc",
    "starter": "def inc(n):",
    "tests": [{"input": "[1]", "output": "2"}],
    "reference": "def inc(n):\n    return n + 1\n",
}


def jsonl(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def only(path: Path, row: dict[str, Any], judging: Judging | None = None) -> Any:
    (problem,) = load_problems(jsonl(path / "one.jsonl", row), judging).problems
    return problem


def refusal(main: Callable[[list[str]], int], words: list[str]) -> str:
    """What a command says of words that it does not take: one line, and exit code 2."""
    with redirect_stderr(StringIO()) as said:
        try:
            code = main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
    (line,) = said.getvalue().splitlines()
    assert code == 2, line
    return line


class Bytes:
    """A tokenizer of bytes with a chat template."""

    chat_template = "yes"

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}
