"""Where ``--out`` says that no file lies: a pipe, a device, standard output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from made_run import made_run

from overlap import cli
from overlap.core.errors import ConfigError
from overlap.record.out_file import OutFile


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
