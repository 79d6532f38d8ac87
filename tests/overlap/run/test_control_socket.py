"""The socket in a run's directory: its owner's alone, there while the run goes on, and in nobody's hands."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from overlap.cli import main
from overlap.core.errors import ConfigError, OverlapError
from overlap.run import control_socket as ctl
from overlap.run.control import RunControl
from overlap.run.control_socket import ask, listening


@contextmanager
def run_in(folder: Path) -> Iterator[RunControl]:
    """A run that goes on, and does nothing."""
    control = RunControl()
    (folder / "config.yaml").touch()
    with listening(control, folder / "ctl"):
        control.enter("running")
        yield control


@contextmanager
def client(folder: Path, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(60)
        link.connect(str(folder / "ctl"))
        link.sendall(sent)
        yield link


def heard(link: socket.socket) -> dict[str, Any]:
    """The answer, with which the connection ends."""
    with link.makefile("rb") as answers:
        lines = answers.readlines()
    assert len(lines) == 1
    answer: dict[str, Any] = json.loads(lines[0])
    return answer


@pytest.mark.promise("ctl")
def test_only_the_owner_reaches_the_socket_however_deep_it_lies(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["deep" * 10] * 5)
    folder.mkdir(parents=True)
    with run_in(folder):
        assert stat.S_IMODE(os.stat(folder / "ctl").st_mode) == 0o600
        assert ask(str(folder), "status")["state"] == "running"


def test_a_fault_of_ours_in_an_answer_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with run_in(tmp_path) as control:
        monkeypatch.setattr(control, "request", lambda command: 1 // 0)
        with client(tmp_path, b'{"command": "status"}\n') as link:
            assert link.recv(100) == b""
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"nonsense\n", "a command is a line of at most 4096 bytes"),
        (b"\n", "a command is a line of at most 4096 bytes"),
        (b"\xff\xfe\n", "a command is a line of at most 4096 bytes"),
        (b"[" * 4000 + b"\n", "a command is a line of at most 4096 bytes"),
        (b'{"command": "rm"}\n', "'rm' is not a command: use pause, resume, drain, save, status, stop"),
        (b'["status"]\n', "['status'] is not a command"),
        (b"{}\n", "None is not a command"),
        (b'"status"\n{"command": "stop"}\n', None),
    ],
)
def test_bytes_that_are_no_command_are_told_what_is_one(tmp_path: Path, sent: bytes, said: str | None) -> None:
    with run_in(tmp_path) as control:
        with client(tmp_path, sent) as link:
            answer = heard(link)
        assert said in answer["error"] if said else answer["state"] == "running"
        assert ask(str(tmp_path), "status")["state"] == "running"
        assert not control.stopped


@contextmanager
def locked(folder: Path) -> Iterator[IO[str]]:
    """What a run that does not listen leaves to be seen: its configuration, and the lock on its log."""
    (folder / "config.yaml").touch()
    with (folder / "run.log").open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        yield log


@pytest.mark.parametrize("sent", [b"", b'{"command": "st'])
def test_a_client_that_stays_silent_is_let_go(tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctl._Client, "timeout", 0.01)
    with run_in(tmp_path), client(tmp_path, sent) as link:
        assert link.recv(1) == b""


def test_the_socket_of_a_killed_run_is_no_run_and_goes_with_the_next_one(tmp_path: Path) -> None:
    with locked(tmp_path), socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "ctl"))
    with pytest.raises(
        ConfigError, match=r"no run is in progress there: it ended before it could say how; --resume goes on"
    ):
        ask(str(tmp_path), "status")
    with run_in(tmp_path):
        assert ask(str(tmp_path), "status")["state"] == "running"
    assert not (tmp_path / "ctl").exists()


def test_a_file_of_the_users_in_its_place_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "ctl").write_text("mine")
    with pytest.raises(OSError, match="already in use"), run_in(tmp_path):
        pass
    assert (tmp_path / "ctl").read_text() == "mine"


def test_a_run_that_has_its_directory_and_is_about_to_listen_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as later, locked(tmp_path):
        monkeypatch.setattr(ctl.time, "sleep", lambda seconds: later.enter_context(run_in(tmp_path)))
        assert ask(str(tmp_path), "status")["state"] == "running"


def test_a_run_that_could_make_no_socket_is_known_by_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctl, "MOMENT_S", 0.0)
    with (
        locked(tmp_path),
        pytest.raises(OverlapError, match=r"does not listen: it is starting or ending, or has no socket") as told,
    ):
        ask(str(tmp_path), "status")
    assert told.value.exit_code == 1


def test_a_run_that_has_ended_says_how(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    (tmp_path / "summary.json").write_text('{"exit": "drained", "steps": 4}')
    with pytest.raises(ConfigError, match=r"no run is in progress there: it has ended \(drained, 4 steps\)"):
        ask(str(tmp_path), "pause")
    os.utime(tmp_path / "summary.json", (0, 0))  # of an earlier session: it was resumed since
    with pytest.raises(ConfigError, match="it ended before it could say how"):
        ask(str(tmp_path), "pause")


@pytest.mark.parametrize(
    ("fails", "fault", "code", "said"),
    [
        *(
            (
                name,
                PermissionError(errno.EACCES, "Permission denied"),
                2,
                "to another user: a run obeys only the user who",
            )
            for name in ("_line_from", "has_owner")
        ),
        (
            "_line_from",
            TimeoutError("timed out"),
            1,
            "did not answer within 15 s: its process is stopped (kill -CONT resumes it) or gets no CPU time",
        ),
        ("_line_from", BlockingIOError(errno.EAGAIN, "try again"), 1, "cannot be asked (try again)"),
    ],
)
def test_a_run_that_cannot_be_asked_is_one_line(
    fails: str, fault: OSError, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Also where the directory itself, of another user, tells nothing."""

    def fail(*_: Any) -> None:
        raise fault

    (tmp_path / "config.yaml").touch()
    monkeypatch.setattr(ctl, fails, fail)
    assert main(["ctl", str(tmp_path), "status"]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nowhere", "file", "empty"])
def test_a_place_without_a_run_is_refused(name: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert main(["ctl", str(tmp_path / name), "pause"]) == 2
    err = capsys.readouterr().err
    assert f"{name}/config.yaml is missing: name a run directory" in err
    assert len(err.splitlines()) == 1


@pytest.mark.promise("ctl")
def test_a_done_command_is_a_line_and_a_refused_one_exit_code_1(tmp_path: Path, capsys: Any) -> None:
    with run_in(tmp_path):
        assert main(["ctl", str(tmp_path), "drain"]) == 0
        assert main(["ctl", str(tmp_path), "resume"]) == 1
    told = capsys.readouterr()
    assert told.out == "draining: no further prompts are admitted; the run ends when all complete steps are learned\n"
    assert told.err.startswith("overlap: failed: resume comes too late: the run is draining")
