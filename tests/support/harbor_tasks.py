"""Task directories of Harbor, and the configuration that names one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from environment_runs import config

from overlap.config.fields import Config

TOML = """version = "1.0"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 20.0
env = { WANTED = "hello" }
[environment]
memory_mb = 512
"""
TEST = """#!/bin/bash
mkdir -p /logs/verifier
if [ "$(cat /app/out.txt)" = "$WANTED" ] && [ "$(cat /tests/secret)" = s ]; then echo 1 > /logs/verifier/reward.txt
else echo 0.25 > /logs/verifier/reward.txt; fi
"""


def harbor(folder: Path, *, test: str = TEST, toml: str = TOML, **environment: str) -> Path:
    for name in ("environment", "tests"):
        (folder / name).mkdir(parents=True)
    (folder / "instruction.md").write_text("Write hello into out.txt.")
    (folder / "task.toml").write_text(toml)
    (folder / "tests" / "test.sh").write_text(test)
    (folder / "tests" / "secret").write_text("s")
    for name, text in environment.items():
        (folder / "environment" / name).write_text(text)
    return folder


def of(folder: Path | str, **options: Any) -> Config:
    return config("recipes.environments.harbor:HarborTask", {"tasks": str(folder), **options})
