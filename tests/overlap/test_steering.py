"""A run that goes on does what its owner asks, from a thread or over the socket in its directory."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from sessions import Stage, play

from overlap.cli import main
from overlap.errors import ConfigError, OverlapError
from overlap.record import read_rows
from overlap.record.checkpoint import complete
from overlap.session import Session
from overlap.steering import SOCKET, Steering, ask, listening

Make = Callable[..., Stage]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda *overrides: Stage(tmp_path, monkeypatch, *overrides)


def meanwhile(made: Stage, step: int, work: Callable[[], Any]) -> Future[Any]:
    """Do ``work`` in a thread of its own from ``step`` on; the loop goes on beside it."""
    outcome: Future[Any] = Future()

    def thread() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # raised where it is asked for
            outcome.set_exception(error)

    def on_step(batch: Any) -> None:
        if batch.step == step:
            threading.Thread(target=thread).start()

    made.learner.on_step = on_step
    return outcome


def steps_of(session: Session) -> list[float]:
    return [row["step"] for row in read_rows(session.run.metrics)]


def test_a_run_is_paused_saved_and_resumed_over_its_socket(stage: Make) -> None:
    made = stage("run.steps=40")
    session = made.session()
    run = str(session.run.path)

    def work() -> dict[str, Any]:
        ask(run, "pause")
        ask(run, "save")
        while not complete(session.run.checkpoints):
            ask(run, "status")
        status = ask(run, "status")
        ask(run, "resume")
        return status

    asked = meanwhile(made, 2, work)
    figures = play(session)
    status = asked.result()
    assert status["paused"]
    assert 2 <= status["step"] < 40
    assert complete(session.run.checkpoints)[0].name == f"step-{status['step']:06d}"
    assert figures["exit"] == "finished"
    assert steps_of(session) == list(range(1, 41))
    assert not (session.run.path / SOCKET).exists()


def test_a_drained_run_ends_early_in_order(stage: Make) -> None:
    made = stage("run.steps=5000", "rollout.max_staleness=1")
    session = made.session()
    meanwhile(made, 2, session.steering.drain)
    figures = play(session)
    assert figures["exit"] == "drained"
    assert figures["policy"]["version"] == len(steps_of(session)) < 5000


def test_a_stopped_run_keeps_its_policy(stage: Make) -> None:
    made = stage("run.steps=5000")
    session = made.session()
    meanwhile(made, 3, session.steering.stop)
    figures = play(session)
    assert figures["exit"] == "stopped"
    assert figures["policy"]["version"] >= 3
    assert session.run.policy.is_dir()


def test_a_run_that_is_stopped_before_it_has_begun_says_so(stage: Make) -> None:
    session = stage().session()
    session.steering.stop()
    with pytest.raises(OverlapError, match="stopped before its first step"):
        play(session)


def test_only_the_owner_reaches_the_socket_however_deep_it_lies(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["deep" * 10] * 5)
    folder.mkdir(parents=True)

    async def scenario() -> dict[str, Any]:
        steering = Steering()
        async with steering.attached(lambda: {"step": 7}), listening(steering, folder):
            assert stat.S_IMODE(os.stat(folder / SOCKET).st_mode) == 0o600
            return await asyncio.to_thread(ask, str(folder), "status")

    assert asyncio.run(scenario())["step"] == 7


@pytest.mark.parametrize(
    "sent", [b"nonsense\n", b'{"command": "rm"}\n', b'["status"]\n', b"\xff\xfe\n", b"x" * 200_000]
)
def test_bytes_that_are_no_command_harm_nothing(tmp_path: Path, sent: bytes) -> None:
    async def scenario() -> None:
        steering = Steering()
        async with steering.attached(dict), listening(steering, tmp_path):
            reader, writer = await asyncio.open_unix_connection(tmp_path / SOCKET)
            writer.write(sent)
            said = await reader.read()
            assert said == b"" or b"is no command: use pause" in said
            writer.close()
            assert not (await asyncio.to_thread(ask, str(tmp_path), "status"))["paused"]

    asyncio.run(scenario())


def test_a_place_where_no_run_goes_on_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no run goes on there"):
        ask(str(tmp_path), "status")
    assert main(["ctl", str(tmp_path / "nowhere"), "pause"]) == 2
    assert "no run goes on there" in capsys.readouterr().err
