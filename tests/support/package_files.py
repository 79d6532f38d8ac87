"""Problem packages for tests, written file by file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

LEGACY = "name: Sum\n"
NEW = "problem_format_version: 2025-09\nname: Sum\nuuid: 1\n"
ADD = "print(sum(map(int, open(0).read().split())))"
ONE_CASE = {"data/secret/1.in": "3 4\n", "data/secret/1.ans": "7\n"}


def write_package(root: Path, files: Mapping[str, str]) -> Path:
    """A directory with these files; ONE_CASE where they bring no data."""
    package = root / "sum"
    more = {} if any(name.startswith("data/") for name in files) else ONE_CASE
    for name, text in {**more, **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), "utf-8")
    return package


def cases(*names: str, given: str = "3 4\n", answer: str = "7\n") -> dict[str, str]:
    """Files of test cases, all alike."""
    return {f"data/{name}.{end}": text for name in names for end, text in (("in", given), ("ans", answer))}
