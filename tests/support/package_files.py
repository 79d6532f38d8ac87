"""Problem packages for tests, written file by file, and what `sandbox` says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

LEGACY = "name: Sum\n"
NEW = "problem_format_version: 2025-09\nname: Sum\nuuid: 1\n"
TIMED = NEW + "limits: {time_limit: 1}\n"
ADD = "print(sum(map(int, open(0).read().split())))"
RIGHT = {"submissions/accepted/right.py": ADD}
ONE_CASE = {"data/secret/1.in": "3 4\n", "data/secret/1.ans": "7\n"}
Command = Callable[..., Any]


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


class Packages:
    """Writes a package, and verifies it by the command."""

    def __init__(self, root: Path, command: Command) -> None:
        self.root, self.command = root, command

    def write(self, files: Mapping[str, str]) -> Path:
        return write_package(self.root, files)

    def lines(self, files: Mapping[str, str], code: int = 0, *words: str) -> list[str]:
        """The lines that `sandbox verify` prints."""
        return self.command(code, "verify", self.write(files), *words).out.splitlines()

    def report(self, files: Mapping[str, str], code: int = 0, *words: str) -> dict[str, Any]:
        """What --json says, with the submissions by their names."""
        report: dict[str, Any] = json.loads("".join(self.lines(files, code, "--json", *words)))
        return report | {"submissions": {each["name"]: each for each in report["submissions"]}}

    def verdicts(self, files: Mapping[str, str], code: int = 0) -> dict[str, str]:
        """The verdicts of submissions by the last parts of their names."""
        found = self.report(files, code)["submissions"].items()
        return {name.rpartition("/")[2]: each["verdict"] for name, each in found}

    def refused(self, files: Mapping[str, str]) -> str:
        """What is said in one line of a package that cannot be verified."""
        error = self.command(2, "verify", self.write(files)).err
        assert error.startswith("sandbox: error: ")
        assert error.count("\n") == 1
        return error
