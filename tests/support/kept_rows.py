"""Rows of trajectories.jsonl as a reader meets them, whole, by what differs from a wrong answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FAILED_TEST = {
    "index": 2, "verdict": "WA", "cpu_s": 0.01, "wall_s": 0.02, "memory_bytes": 9 << 20, "message": "wrong output",
    "exit": 0, "signal": None, "input": "3 4\n", "expected": "7\n", "got": "8\n", "stderr": None,
}  # fmt: skip
_HEAD = {
    "schema": 3, "split": "train", "step": 3, "group": 17, "sample": 2, "id": "g17s2", "prompt_id": "p4", "reward": 0.0,
    "advantage": -0.5, "parts": {"task": 0.0}, "verdict": "WA", "failure": "", "dropped": "", "kept_as": ["worst"],
    "weak": False, "passed": 2, "total": 5, "tokens": 40, "finish": "stop", "truncated": False, "turns": 1,
    "branches": 1, "versions": [[2, 0, 40]], "generate_s": 1.0, "queue_s": 0.1, "verify_s": 0.2, "node": "",
    "program_sha256": "02943bd6c21e9ab3",
}  # fmt: skip
_BULK = {
    "prompt": "Add two numbers.\n", "answer": "```python\nprint(8)\n```",
    "program": {"source": "print(8)\n", "language": "python"}, "kind": "stdio", "tests": [FAILED_TEST],
    "compile_log": "", "token_ids": "", "logprobs": "", "prompt_token_ids": "",
}  # fmt: skip


def kept_row(**given: Any) -> dict[str, Any]:
    """A row with these values; ``test={...}`` changes its failed test."""
    test = {**FAILED_TEST, **given.pop("test", {})}
    row = {**_HEAD, **{name: value for name, value in given.items() if name in _HEAD}, **_BULK, "tests": [test]}
    row |= {name: value for name, value in given.items() if name not in _HEAD}
    return {**row, "id": f"g{row['group']}s{row['sample']}"}


def write_rows(folder: Path, *rows: dict[str, Any], config: str = "run: {samples: all}\n") -> Path:
    """Make ``folder`` a run directory with these samples alone; further calls add to it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(config)
    with (folder / "trajectories.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder
