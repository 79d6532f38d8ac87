"""The trackers that the documentation shows are trackers, and get a run's rows to what they import."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from places import ROOT
from sessions import Stage, play

EXAMPLES = [path.read_text("utf-8") for path in (ROOT / "docs" / "examples").glob("*_tracker.py")]


@pytest.mark.parametrize(("name", "log"), [("Mlflow", "log_metrics"), ("Swanlab", "log")])
def test_an_example_of_a_tracker_shows_a_run(
    name: str, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = [text for text in EXAMPLES if f"class {name}" in text]
    (tmp_path / f"my_{name}.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, name.lower(), package := MagicMock())
    session = Stage(tmp_path, monkeypatch, f"run.trackers=['my_{name}:{name}']", "run.steps=2").session()
    assert play(session)["not_written"] == []
    logged = getattr(package, log).call_args_list
    assert [call.kwargs["step"] for call in logged] == [1, 2]
    assert all("reward/mean" in call.args[0] for call in logged)
