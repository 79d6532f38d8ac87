"""``overlap.train`` from wherever it is called: what it writes, what it raises, and which error is told."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import pytest
from fake_parts import fake_prompts
from sessions import Stage, Tokenizer

import overlap
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core.errors import ConfigError, RunDirError
from overlap.record import ownership
from overlap.record.run_summary import RunSummary
from overlap.run import control_socket as ctl
from overlap.run import session, training
from overlap.run.control_socket import ask
from overlap.run.run_inputs import RunInputs

Train = Callable[[], dict[str, Any]]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Fakes behind ``overlap.train``."""
    made = Stage(tmp_path, monkeypatch)
    (made.policy / "config.json").write_text("{}")

    def prepare(cfg: Config, task: Any, scratch: Path, output: Any) -> RunInputs:
        return RunInputs(cfg, task, made.policy, Tokenizer(), tuple(fake_prompts(8)), ())

    monkeypatch.setattr(training, "prepare", prepare)
    return made


def called_in_a_thread(train: Train) -> dict[str, Any]:
    return ThreadPoolExecutor(1).submit(train).result(60)


def called_in_a_running_loop(train: Train) -> dict[str, Any]:
    async def cell() -> dict[str, Any]:
        return train()

    return asyncio.run(cell())


anywhere = pytest.mark.parametrize("called", [lambda train: train(), called_in_a_thread, called_in_a_running_loop])


@pytest.mark.promise("python")
@anywhere
def test_a_run_may_be_called_from_a_script_a_thread_or_a_notebook(stage: Stage, called: Any, tmp_path: Path) -> None:
    figures = called(lambda: overlap.train(stage.cfg))
    assert (figures["exit"], figures["steps"]) == ("finished", 5)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["policy"]["version"] == 5


def _started(cfg: Config, console: TextIO | None = None) -> RunSummary:
    with overlap.start(cfg, console=console) as run:
        pass
    return run.wait()


@pytest.mark.promise("python")
@pytest.mark.parametrize(
    ("call", "shown"), [(overlap.train, True), (_started, False), (lambda cfg: _started(cfg, sys.stderr), True)]
)
def test_a_run_leaves_the_output_of_its_caller_alone_and_shows_its_own_lines_where_asked(
    stage: Stage, call: Callable[[Config], RunSummary], shown: bool, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def on_step(batch: Any) -> None:
        print("printed", batch.step, flush=True)
        os.system("echo by a child")

    stage.learner.on_step = on_step
    figures = call(stage.cfg)
    assert figures.keys() == RunSummary.__annotations__.keys() - {"heldout_reward"}
    told = capfd.readouterr()
    assert told.out == "".join(f"printed {step}\nby a child\n" for step in range(1, 6))
    assert ("step 5/5" in told.err) is shown
    assert shown or told.err == ""
    assert "step 5/5" in (tmp_path / "run" / "run.log").read_text()


def _raising(error: Exception) -> Callable[..., None]:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise error

    return fails


@anywhere
def test_an_error_reaches_the_caller_and_the_summary_wherever_it_is_called(
    stage: Stage, called: Any, tmp_path: Path
) -> None:
    stage.learner.on_save = _raising(ZeroDivisionError("not one of ours"))
    with pytest.raises(ZeroDivisionError, match="not one of ours"):
        called(lambda: overlap.train(stage.cfg))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["exit"] == "error: ZeroDivisionError: not one of ours"


@pytest.mark.parametrize(
    "second", [OSError(errno.ENOSPC, "No space left on device"), RunDirError("disk full"), RuntimeError("no font")]
)
def test_the_first_error_is_the_one_that_is_told(
    stage: Stage, second: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlap.run.session.summary", _raising(second))
    stage.learner.on_save = _raising(ZeroDivisionError("the first"))
    with pytest.raises(ZeroDivisionError, match="the first"):
        overlap.train(stage.cfg)
    assert str(second) in (tmp_path / "run" / "run.log").read_text()


def test_a_run_can_be_asked_from_its_first_line_to_its_last_figure(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[str] = []

    def asking(name: str, owner: Any) -> None:
        real = getattr(owner, name)

        def asks(*args: Any, **kwargs: Any) -> Any:
            states.append(ask(str(tmp_path / "run"), "status")["state"])
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, asks)

    asking("banner", training)
    asking("write_picture", session)
    overlap.train(stage.cfg)
    assert states == ["starting", "ending"]
    with pytest.raises(ConfigError, match=r"no run is in progress there: it has ended \(finished, 5 steps\)"):
        ask(str(tmp_path / "run"), "status")


def test_a_run_in_a_place_without_sockets_goes_on_and_says_that_it_cannot_be_asked(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsupported = OSError(errno.EOPNOTSUPP, "Operation not supported")
    monkeypatch.setattr(ctl._Server, "server_bind", _raising(unsupported))
    figures = overlap.train(stage.cfg)
    assert figures["exit"] == "finished"
    (line,) = figures["not_written"]
    assert line.startswith("ctl (overlap ctl cannot reach this run) (Operation not supported; 1 time")


def test_a_second_run_in_the_directory_or_of_the_process_is_refused_and_harms_nothing(
    stage: Stage, tmp_path: Path
) -> None:
    run, said = tmp_path / "run", list[Any]()

    def on_step(batch: Any) -> None:
        if batch.step == 2:
            with pytest.raises(ConfigError, match="another run is writing there"):
                ownership.take_lock(run, "again")
            with pytest.raises(ConfigError, match="another run is in progress in this process: wait for it"):
                overlap.train(load_config(None, [f"run.dir={tmp_path / 'other'}"]))
            said.append((run / "ctl").is_socket())

    stage.learner.on_step = on_step
    assert overlap.train(stage.cfg)["exit"] == "finished"
    assert said == [True]
    assert not (tmp_path / "other").exists()
