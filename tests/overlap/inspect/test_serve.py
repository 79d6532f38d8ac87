"""Tests of ``overlap view`` as a process: it says its address, answers, and ends in order."""

from __future__ import annotations

import json
import signal
import socket
import threading
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from served_view import served_view

from overlap import cli
from overlap.inspect import serve


def test_it_says_where_it_listens_answers_there_and_ends_with_ctrl_c(finished: Path) -> None:
    with served_view(finished) as (address, process):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{address}api/run", timeout=60) as answer:
            assert json.load(answer)["steps"] == 6
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, "", "overlap: interrupted\n")


@pytest.mark.parametrize(("display", "said"), [("", "no display here"), (":0", "")])
def test_the_page_is_opened_where_there_is_a_display(
    display: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    opened = threading.Event()
    monkeypatch.setattr("webbrowser.open", lambda address: opened.set())
    for name in ("WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", display)
    serve._open("http://127.0.0.1:1/")
    assert said in capsys.readouterr().out
    assert opened.wait(10 if display else 0) == bool(display)


def test_a_port_that_is_taken_is_one_line_with_the_way_out(finished: Path, capsys: pytest.CaptureFixture) -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert cli.main(["view", str(finished), "--port", port]) == 2
    assert f"--port={port}: is taken; use another one, or --port 0" in capsys.readouterr().err


def test_what_holds_no_samples_or_no_run_ends_the_command_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    for name, said in (("notes.txt", "notes.txt': line 1 holds no sample"), ("", "is missing")):
        assert cli.main(["view", str(tmp_path / name), "--port", "0"]) == 2
        assert said in capsys.readouterr().err
