"""Which test files belong to a change: those that name a package that it touches, as many as a budget allows."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

UNKNOWN_S = 200.0
"""Of a file that was never recorded."""


def packages_changed_since(revision: str, root: Path) -> set[str]:
    """Packages (``overlap.pipeline``) and files of which git knows a change since ``revision``."""
    command = ["git", "diff", "--name-only", revision]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split()
    packages = {".".join(name.split("/")[:2]).removesuffix(".py") for name in names if name.endswith(".py")}
    return {name for name in packages if name.startswith(("overlap.", "sandbox.", "recipes."))} | set(names)


def files_within(
    budget_s: float, files: Iterable[Path], changed: set[str], seconds: Mapping[str, float], seed: str, root: Path
) -> set[str]:
    """Of the test ``files`` that belong to the change, as many as take ``budget_s`` together by ``seconds``.

    The order is random by ``seed`` (the revision before the change), so that over several changes each file gets its
    turn, and a change that is mended meets the same files again.
    """
    packages = [re.escape(name) for name in changed if "/" not in name]
    names = re.compile(rf"\b({'|'.join(packages)})\b") if packages else None
    belonging = []
    for file in files:
        name = file.relative_to(root).as_posix()
        if name in changed or (names and names.search(file.read_text("utf-8"))):
            belonging.append(name)
    random.Random(seed).shuffle(belonging)
    chosen = set()
    for name in belonging:
        if (cost := seconds.get(name, UNKNOWN_S)) <= budget_s:
            budget_s -= cost
            chosen.add(name)
    return chosen
