"""`sandbox serve`: how it starts, how it ends, and that nothing of it is left."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from pooling import LONG, RIGHT, SLEEPER, SUM, living
from serving import Answered, ServeCommand
from wide import wide

from sandbox.kernel import cgroup
from sandbox.serve.cli import warn
from sandbox.serve.listening import bind
from sandbox.terminal import ONE_WISH_S

JOB = {"problem": SUM.to_json(), "program": RIGHT.source}
SLOW = {"problem": SUM.to_json(), "program": "import time\ntime.sleep(1.5)\n" + RIGHT.source}
ENDLESS = {"problem": LONG.to_json(), "program": SLEEPER.source}


class Asking(threading.Thread):
    """A request in a thread; `answer` is there after `join`."""

    def __init__(self, server: ServeCommand, body: Any) -> None:
        super().__init__(daemon=True)
        self.server, self.body = server, body
        self.answer: Answered | None = None
        self.start()
        wait_until(lambda: "sandbox_requests_in_hand 1.0\n" in server.ask("/metrics").body.decode())

    def run(self) -> None:
        try:
            self.answer = self.server.ask("/judge", self.body)
        except (OSError, http.client.HTTPException):
            self.answer = None


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def said(*arguments: str, **environment: str) -> tuple[int, str]:
    """Exit code and stderr of a command that does not come to serve."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-m", "sandbox", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)
    return done.returncode, done.stderr


@pytest.mark.promise("serve-bounds")
@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_and_ctrl_c_finish_what_runs_and_refuse_the_rest(tmp_path: Path, asked: int) -> None:
    with ServeCommand(tmp_path) as server:
        everyone = server.family()
        running = Asking(server, SLOW)
        server.process.send_signal(asked)
        wait_until(lambda: server.ask("/health").status == 503)
        assert server.ask("/judge", JOB).status == 503
        running.join(60)
        assert running.answer is not None
        assert running.answer.json["verdict"] == "AC"
        code, error = server.ended()
        assert (code, error.count("\n")) == (0 if asked == signal.SIGTERM else 130, 1)
        assert error.startswith("sandbox: terminated: " if asked == signal.SIGTERM else "sandbox: interrupted: ")
        again = "Ctrl-C" if asked == signal.SIGTERM else "a second Ctrl-C"
        assert error.endswith(f"waits for 1 request, at most 60 s; {again} ends at once\n")
    assert not living(everyone)
    assert os.listdir(tmp_path) == []


def test_what_runs_longer_than_the_drain_is_cut(tmp_path: Path) -> None:
    with ServeCommand(tmp_path, "--drain-s", "0.2") as server:
        everyone = server.family()
        running = Asking(server, ENDLESS)
        server.process.send_signal(signal.SIGTERM)
        code, error = server.ended()
        assert (code, error.splitlines()[1:]) == (0, ["sandbox: 1 requests were cut after 0.2 s (--drain-s)"])
        running.join(60)
        assert running.answer is not None
        assert (running.answer.status, running.answer.json["error"]["type"]) == (503, "Draining")
    assert not living(everyone)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ((signal.SIGINT, signal.SIGINT), 130),
        wide((signal.SIGTERM, signal.SIGTERM), 143),
        ((signal.SIGHUP,), 129),
    ],
)
def test_a_second_signal_and_a_closed_terminal_cut_what_runs(
    tmp_path: Path, signals: tuple[int, ...], code: int
) -> None:
    with ServeCommand(tmp_path) as server:
        everyone = server.family()
        running = Asking(server, ENDLESS)
        for number in signals:
            server.process.send_signal(number)
            time.sleep(2 * ONE_WISH_S)  # two that are closer are one
        assert server.ended()[0] == code
        running.join(60)
        assert running.answer is not None
        assert (running.answer.status, running.answer.json["error"]["type"]) == (503, "Draining")
    assert not living(everyone)
    assert os.listdir(tmp_path) == []


def test_a_server_that_nohup_started_outlives_its_terminal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what nohup does
    try:
        server = ServeCommand(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    with server:
        server.process.send_signal(signal.SIGHUP)
        assert server.ask("/judge", JOB).json["verdict"] == "AC"
        server.process.send_signal(signal.SIGTERM)
        assert server.ended()[0] == 0


def test_a_signal_that_is_sent_twice_at_once_is_one(tmp_path: Path) -> None:
    """As `timeout` sends it: to its child, and to the child's group."""
    with ServeCommand(tmp_path) as server:
        running = Asking(server, SLOW)
        for _ in range(2):
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.ask("/health").status == 503)
        running.join(60)
        assert server.ended()[0] == 0
        assert running.answer is not None
        assert running.answer.json["verdict"] == "AC"


@pytest.mark.promise("serve-bounds")
def test_a_killed_server_leaves_nothing(tmp_path: Path) -> None:
    with ServeCommand(tmp_path) as server:
        running = Asking(server, ENDLESS)
        everyone, groups = server.family(), server.groups()
        server.process.kill()
        server.ended()
        assert not living(everyone)
        wait_until(lambda: os.listdir(tmp_path) == [])
        assert not groups & cgroup.other_names()
        running.join(60)
        assert running.answer is None


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with ServeCommand(tmp_path) as server:
        code, error = said("--port", str(server.port))
    assert code == 2
    assert error.count("\n") == 1
    assert f"--port {server.port}: Address already in use; another program has it" in error


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--port", "70000"), "--port 70000: must be at most 65535"),
        (("--port", "-1"), "--port -1: must be at least 0"),
        (("--workers", "0"), "--workers 0: must be at least 1"),
        (("--queue", "0"), "--queue 0: must be at least 1"),
        (("--body-limit", "0"), "--body-limit 0: must be at least 1"),
        (("--drain-s", "nan"), "--drain-s nan: must be at least 0"),
        (("--host", "nowhere.invalid"), "; give an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all"),
        (("--packages", "no_such_package", "--port", "0"), "no_such_package"),
        (("--token-file", "/nonexistent"), "/nonexistent: cannot be opened"),
        (("--token", ""), "--token: is empty; give the token (is its variable set?), or leave --token out"),
        (("--token", "\n"), "--token: must be printable ASCII"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: tuple[str, ...], named: str) -> None:
    code, error = said(*arguments)
    assert (code, error.count("\n"), named in error) == (2, 1, True), error


def test_without_the_extra_the_command_names_it(tmp_path: Path) -> None:
    """The rest of the sandbox does without: nothing of the extra is imported."""
    missing = ("aiohttp", "fastapi", "pydantic", "prometheus_client", "starlette", "uvicorn", "h11")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n")
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    code, error = said(PYTHONPATH=path)
    way_out = "serve needs fastapi, prometheus_client, uvicorn: pip install 'overlap-rl[serve]'"
    assert (code, error) == (2, f"sandbox: error: {way_out}\n")
    program = "import sandbox, sandbox.cli; sandbox.Pool; sandbox.cli._parser(); sandbox.Client('http://127.0.0.1')"
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=env, stderr=subprocess.PIPE, text=True, timeout=60)
    way_out = "sandbox.Client needs aiohttp: pip install 'overlap-rl[client]'"
    assert done.stderr.splitlines()[-1] == f"ImportError: {way_out}"


@pytest.mark.parametrize(
    ("host", "token", "named"),
    [
        ("127.8.8.8", False, ""),
        ("localhost", False, ""),
        ("0.0.0.0", True, "warning: 0.0.0.0 can be reached"),
        ("0.0.0.0", False, "WARNING: everybody who can reach 0.0.0.0 may run programs"),
    ],
)
def test_a_server_that_others_can_reach_is_warned_of(
    capsys: pytest.CaptureFixture[str], host: str, token: bool, named: str
) -> None:
    with bind(host, 0) as listener:
        warn(host, listener, token)
    said = capsys.readouterr().err
    assert named in said if named else not said
