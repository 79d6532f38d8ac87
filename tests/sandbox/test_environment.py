"""The environment is copied in one way only: the one that stands what other threads do to it meanwhile."""

from __future__ import annotations

import os
import re

import pytest
from places import ROOT

from sandbox.terminal import current_environment


class Going(dict[str, str]):
    """An environment whose variable is gone between the moment when it is listed and the moment when it is read."""

    def __getitem__(self, name: str) -> str:
        self.pop(name)
        raise KeyError(name)

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        return "here" if name == "STAYS" else default


def test_a_variable_that_goes_while_the_environment_is_copied_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", Going(GOES="x", STAYS="x"))
    assert current_environment() == {"STAYS": "here"}


def test_nobody_in_the_sandbox_reads_the_whole_environment_in_another_way() -> None:
    """What a jail or a caller of rewards sets in its own process has one thread; those set, and read nothing."""
    whole = re.compile(r"os\.environ\b(?!\[|\.(get|clear|update|setdefault)\b)")
    found = {path for path in (ROOT / "sandbox").rglob("*.py") if whole.search(path.read_text())}
    assert {path.name for path in found if path.parent.name != "zoo"} == {"terminal.py"}  # the zoo's are programs
