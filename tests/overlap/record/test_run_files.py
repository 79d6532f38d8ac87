"""Every file that a run makes is in the table from which its paths come."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from places import ROOT
from sessions import Stage, play

from overlap.record.ownership import holds_run
from overlap.record.run_files import RunFile, exported_policy, is_run_file
from overlap.record.rundir import RunDir

EVERYTHING = ("run.samples=all", "run.save_every=1", "run.eval_samples=2", "run.eval_every=2")


def test_a_run_makes_no_file_that_is_not_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Stage(tmp_path, monkeypatch, *EVERYTHING).session()
    play(session)
    made = {path.name for path in session.run.path.iterdir()}
    assert {
        "config.yaml",
        "metrics.jsonl",
        "events",
        "trajectories.jsonl",
        "checkpoints",
        "policy",
        "picture.png",
    } <= made
    assert sorted(name for name in made if not is_run_file(name)) == []
    assert is_run_file(exported_policy(tmp_path, 7).name)
    assert not is_run_file("notes.txt")


def test_no_other_module_spells_the_name_of_a_file_of_a_run() -> None:
    """Of two spellings, one would be forgotten."""
    names = {file.filename for file in RunFile if "." in file.filename or "-" in file.filename}
    folders = ("overlap/record", "overlap/run", "overlap/commands")
    paths = {path for folder in folders for path in (ROOT / folder).glob("*.py")}
    joins = [
        (path, node)
        for path in paths - {ROOT / "overlap/record/run_files.py"}
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant)
        if "scratch" not in ast.unparse(node.left)  # the log of what has no run directory
    ]
    assert joins
    assert [f"{path}:{node.lineno}" for path, node in joins if node.right.value in names] == []


@pytest.mark.promise("documents")
def test_the_documentation_names_every_file() -> None:
    text = (ROOT / "docs" / "training.md").read_text("utf-8")
    assert [file.filename for file in RunFile if f"`{file.filename.replace('*', 'N')}" not in text] == []


@pytest.mark.parametrize("file", [file for file in RunFile if file.swept])
def test_what_a_failed_start_left_is_swept(tmp_path: Path, file: RunFile) -> None:
    RunDir.create(str(tmp_path), {}).close()
    left = tmp_path / file.swept.replace("*", "1")
    left.parent.mkdir(exist_ok=True)
    left.touch()
    RunDir.create(str(tmp_path), {}).close()
    assert not left.exists()


@pytest.mark.parametrize("file", [file for file in RunFile if file.evidence])
def test_what_is_evidence_of_a_run_keeps_others_out(tmp_path: Path, file: RunFile) -> None:
    path = tmp_path / file.evidence.replace("*", "000003")
    path.parent.mkdir(exist_ok=True)
    assert not holds_run(tmp_path)
    if "." in file.filename:
        path.write_text("something\n")
    else:
        path.mkdir()
    assert holds_run(tmp_path)
