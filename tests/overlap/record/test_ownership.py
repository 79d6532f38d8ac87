"""Where a run may write: nothing of anybody's is touched, and the same command may be given again."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from made_run import made_run
from places import ROOT

from overlap import cli
from overlap.config.fields import Config
from overlap.core.errors import ConfigError
from overlap.record import ownership
from overlap.record.out_file import OutFile
from overlap.record.ownership import (
    check_out,
    check_run_dir_free,
    command_line,
    masked,
    read_history,
    write_config,
)
from overlap.record.rundir import RunDir

CFG = Config().to_dict()


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that lies in a folder, with its contents."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def refused(template: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        RunDir.create(template, CFG)
    assert caught.value.exit_code == 2
    assert caught.value.field == "run.dir"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("  ", "names no directory; write for instance runs/first"),
        *(
            (name, "run.dir=")
            for name in ("a\0b", "~nobody-has-this-name/run", "x" * 300, "half-\udcff", "runs/{date}")
        ),
        ("/proc/no-such-place/run", "run.dir="),
    ],
)
def test_a_name_that_no_directory_can_have_is_refused(name, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(name, told)
    assert tree(tmp_path) == {}


@pytest.mark.promise("users-files")
@pytest.mark.parametrize(
    "files", [["notes.txt"], ["config.yaml"], ["run.log"], ["policy.txt", "metrics.jsonl"], ["ctl"]]
)
def test_a_directory_with_files_of_the_users_is_refused_and_left_as_it_is(tmp_path, files):
    for name in files:
        (tmp_path / name).write_text("mine\n")
    before = tree(tmp_path)
    refused(str(tmp_path), "holds")
    assert tree(tmp_path) == before


def test_a_link_is_refused_also_one_that_leads_nowhere_and_one_on_the_way_is_none_of_our_business(tmp_path):
    (tmp_path / "real").mkdir()
    for name, target in (("link", "real"), ("dangling", "none")):
        (tmp_path / name).symlink_to(tmp_path / target)
        refused(f"{tmp_path / name}/", "is a link")
    assert list((tmp_path / "real").iterdir()) == []
    assert not (tmp_path / "none").exists()
    RunDir.create(str(tmp_path / "link" / "first"), CFG).close()
    assert (tmp_path / "real" / "first" / "config.yaml").is_file()


def test_a_place_that_may_not_be_written_or_looked_at_is_named_before_anything_is_made(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "access", lambda path, mode: False)  # to root, no mode refuses anything
    refused(str(tmp_path / "a" / "b"), f"{tmp_path} cannot be written; name another directory")
    assert tree(tmp_path) == {}
    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ConfigError, match=r"run.dir='x': cannot be read .* name another directory"):
        check_run_dir_free(tmp_path / "x", "x")


def test_a_failed_start_leaves_its_directory_free_for_the_same_command(tmp_path):
    for _ in range(3):
        made = RunDir.create(str(tmp_path / "run"), CFG)
        assert made.log.read_text() == ""
        assert len(read_history(made.path)) == 1
        assert not (made.path / "engines").exists()
        made.log.write_text("the engine did not start")
        (made.path / "engines").mkdir()
        (made.path / "engines" / "1.log").write_text("nor did this one")
        made.close()


def test_a_start_that_was_killed_at_any_moment_leaves_its_directory_free(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.log").touch()  # killed before its configuration was there
    check_run_dir_free(run, "run")
    (run / ".config.yaml.123-1.partial").touch()
    RunDir.create(str(run), CFG).close()
    assert sorted(os.listdir(run)) == ["config.yaml", "run.log"]


@pytest.mark.promise("users-files")
def test_a_run_of_another_process_keeps_others_out_until_it_ends(tmp_path):
    code = f"""
import sys
from overlap.record.rundir import RunDir
RunDir.create({str(tmp_path / "run")!r}, {{}})
print("taken", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "taken\n"
        refused(str(tmp_path / "run"), "another run is writing there")
        other.stdin.close()
        other.wait(60)
    RunDir.create(str(tmp_path / "run"), CFG).close()


def test_a_glance_at_the_lock_keeps_no_run_out(tmp_path, monkeypatch):
    (tmp_path / "run.log").touch()
    glance = os.open(tmp_path / "run.log", os.O_RDONLY)
    fcntl.flock(glance, fcntl.LOCK_SH)  # as ``has_owner`` for a moment
    glances = [glance]
    monkeypatch.setattr(ownership.time, "sleep", lambda seconds: glances and os.close(glances.pop()))
    lock = ownership.take_lock(tmp_path, "run")
    assert ownership.has_owner(tmp_path)
    os.close(lock)
    assert not ownership.has_owner(tmp_path)


def test_the_socket_of_a_start_that_was_killed_occupies_no_directory(tmp_path):
    RunDir.create(str(tmp_path / "run"), CFG).close()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "run" / "ctl"))
    check_run_dir_free(tmp_path / "run", "run")


def test_the_history_is_kept_beside_the_configuration(tmp_path):
    write_config(tmp_path, CFG, [{"step": 0}])
    assert read_history(tmp_path) == [{"step": 0}]
    (tmp_path / "config.yaml").write_text("run: {steps: 3}\n")
    assert read_history(tmp_path) == []
    (tmp_path / "config.yaml").write_text("run: [\n")
    with pytest.raises(ConfigError, match=r"its config\.yaml cannot be read"):
        read_history(tmp_path)


def test_a_command_does_not_write_over_what_is_there_but_for_what_it_wrote_before(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("my notes\n")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("folder", "text", "link", "none/out"):
        with pytest.raises(ConfigError, match=r"--out="):
            check_out(tmp_path / name)
    out = tmp_path / "split.jsonl"
    check_out(out)
    out.touch()
    check_out(out)
    out.write_text('{"id": "a", "passes": 3, "split": "train"}\n')
    check_out(out, ours='"split": ')
    with pytest.raises(ConfigError, match="exists already"):
        check_out(out)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["/x/bin/overlap", "train", "run.dir=runs/a b"], "overlap train 'run.dir=runs/a b'"),
        (["/x/overlap/cli.py", "train", "--resume"], "overlap train --resume"),
        (["/x/bin/overlap", "train", "episode.command=a --token abc"], "overlap train 'episode.command=a --token ***'"),
        (["mine.py", "--wandb", "abc"], "mine.py"),
        ([""], "python"),
    ],
)
def test_the_command_is_kept_without_what_is_anothers(
    words: list[str], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", words)
    assert command_line() == kept


@pytest.mark.promise("secrets")
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("--api-key abc --x", "--api-key *** --x"),
        ("API_KEY=abc", "API_KEY=***"),
        ('{"password": "a b", "n": 1}', '{"password": ***, "n": 1}'),
        ("model.prompt_tokens=512", "model.prompt_tokens=512"),
        ("learn.token_mean: 1", "learn.token_mean: 1"),
    ],
)
def test_values_of_passwords_are_masked_and_numbers_of_tokens_are_not(text: str, kept: str) -> None:
    assert masked(text) == kept


def test_a_pipe_gets_what_is_written_if_somebody_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="start what reads it first"):
        OutFile(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    out = OutFile(path)
    assert (out.is_stream, out.folder) == (True, Path.cwd())
    out.write("é \ud83d\n")
    assert os.read(reader, 100) == "é \\ud83d\n".encode()
    assert os.read(reader, 100) == b""  # closed
    os.close(reader)
    assert path.is_fifo()


def test_an_open_descriptor_is_written_to_where_it_stands(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb", buffering=0) as log, open(tmp_path / "log", "rb") as read:
        log.write(b"before ")
        name = Path(f"/dev/fd/{log.fileno()}")
        out = OutFile(name)
        out.write("it ")
        log.write(b"after")
        assert (out.is_stream, read.read()) == (True, b"before it after")
        with pytest.raises(ConfigError, match="cannot be written"):
            OutFile(Path(f"/dev/fd/{read.fileno()}"))


def test_a_reader_that_has_gone_ends_a_command_as_it_ends_others(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    out = OutFile(path)
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        out.write("x")


def test_a_report_goes_to_standard_output_and_what_is_said_of_it_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    run = made_run(tmp_path / "run", steps=2, groups=2, samples=2, heldout=0)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(run), str(run), "--out", "-"]) == 0
    told = capfd.readouterr()
    assert (told.out[:15], told.out.count("<!doctype html>")) == ("<!doctype html>", 1)
    assert told.out.rstrip().endswith("</html>")
    assert "open it in a browser" not in told.err
    assert os.listdir() == ["run"]
