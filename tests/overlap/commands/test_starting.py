"""``overlap init``: the folder that it writes works as it is, and nothing is ever overwritten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from places import ROOT
from tiny_policy import make_tiny_policy
from wide import wide

from overlap import cli

FILES = ["README.md", "config.yaml", "my_task.py", "problems.jsonl", "test_my_task.py"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> Path:
    """A folder that the command has written."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "new/mine"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        f"new/mine: {', '.join(FILES)}",
        "its test:  cd new/mine && python -m pytest -q test_my_task.py",
        "training:  cd new/mine && overlap train --config config.yaml",
    ]
    return tmp_path / "new" / "mine"


@pytest.mark.promise("init")
def test_the_test_that_it_writes_passes_and_fails_where_a_reference_is_wrong(made: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_task.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=made, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout
    rows = (made / "problems.jsonl").read_text()
    (made / "problems.jsonl").write_text(rows.replace("text[::-1]", "text"))
    chosen = ["-k", "reference or unique"]
    done = subprocess.run([*command, *chosen], cwd=made, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 1
    assert "1 failed, 3 passed" in done.stdout


def planned(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Plan the run that it proposes, with a tiny policy; returns the exit code."""
    policy = make_tiny_policy(tmp_path / "tiny")
    monkeypatch.chdir(made)
    monkeypatch.syspath_prepend(made)
    monkeypatch.delitem(sys.modules, "my_task", raising=False)
    tiny = [f"model.policy={policy}", "model.prompt_tokens=1700", "learn.micro_batch_tokens=2048"]
    return cli.main(["train", "--dry-run", "--config", "config.yaml", *tiny])


@pytest.mark.parametrize(
    ("split", "told"),
    [
        ("test", "1 to train on, 2 held out"),
        wide(None, "2 to train on, 1 held out"),
        ("dev", "its split is 'dev'; use one"),
    ],
)
def test_its_task_loses_no_row_by_its_split(
    split: str | None,
    told: str,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    rows = [json.loads(line) for line in (made / "problems.jsonl").read_text().splitlines()]
    rows[0]["split"] = split
    (made / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert planned(made, tmp_path, monkeypatch) == (2 if split == "dev" else 0)
    said = capfd.readouterr()
    assert told in said.out + said.err


@pytest.mark.promise("init")
def test_the_run_that_it_proposes_can_be_planned_as_it_is(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    assert planned(made, tmp_path, monkeypatch) == 0
    said = capfd.readouterr().out
    assert "2 to train on, 1 held out" in said
    assert "2 prompts x 8 samples = 16 trajectories" in said
    assert sorted(path.name for path in made.iterdir() if path.name != "__pycache__") == FILES


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> Callable[[str], str]:
    monkeypatch.chdir(tmp_path)

    def command(folder: str) -> str:
        assert cli.main(["init", folder]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        return str(line)

    return command


@pytest.mark.parametrize("content", ["notes.txt", ".hidden", "my_task.py"])
def test_a_folder_with_anything_in_it_stays_as_it_is(content: str, tmp_path: Path, refused) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / content).write_text("mine")
    assert "DIR='mine': is not empty, and nothing is overwritten: name a new folder" in refused("mine")
    assert [(path.name, path.read_text()) for path in (tmp_path / "mine").iterdir()] == [(content, "mine")]


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("file", "DIR='file': cannot be written (File exists)"),
        ("file/mine", "cannot be written (Not a directory); name a folder elsewhere"),
        ("x" * 300, "cannot be written (File name too long)"),
        ("a\0b", "cannot be written (embedded null byte)"),
        ("/proc/mine", "cannot be written ("),
    ],
)
def test_a_place_that_cannot_be_one_is_a_line(folder: str, told: str, tmp_path: Path, refused) -> None:
    (tmp_path / "file").write_text("")
    assert told in refused(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_name_that_a_shell_would_take_for_an_option_is_quoted_in_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("-dash", "a b", "it's"):
        assert cli.main(["init", "--", name]) == 0
        command = capfd.readouterr().out.splitlines()[1].removeprefix("its test:  ").partition(" && ")[0]
        subprocess.run(["sh", "-c", f"{command} && test -f my_task.py"], check=True)
