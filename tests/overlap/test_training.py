"""``overlap.train`` from wherever it is called: what it writes, what it raises, and which error is told."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sessions import Stage, Tokenizer

import overlap
from overlap import training
from overlap.config import Config
from overlap.errors import RunDirError
from overlap.fakes import fake_prompts
from overlap.prepared import Prepared

Train = Callable[[], dict[str, Any]]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Fakes behind ``overlap.train``."""
    made = Stage(tmp_path, monkeypatch)
    (made.policy / "config.json").write_text("{}")

    def prepare(cfg: Config, task: Any, scratch: Path) -> Prepared:
        return Prepared(cfg, task, made.policy, Tokenizer(), tuple(fake_prompts(8)), ())

    monkeypatch.setattr(training, "prepare", prepare)
    return made


def called_plainly(train: Train) -> dict[str, Any]:
    return train()


def called_in_a_thread(train: Train) -> dict[str, Any]:
    results: list[dict[str, Any] | BaseException] = []

    def target() -> None:
        try:
            results.append(train())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(60)
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result


def called_in_a_running_loop(train: Train) -> dict[str, Any]:
    async def cell() -> dict[str, Any]:
        return train()

    return asyncio.run(cell())


anywhere = pytest.mark.parametrize("called", [called_plainly, called_in_a_thread, called_in_a_running_loop])


@anywhere
def test_a_run_may_be_called_from_a_script_a_thread_or_a_notebook(stage: Stage, called: Any, tmp_path: Path) -> None:
    figures = called(lambda: overlap.train(stage.cfg))
    assert (figures["exit"], figures["steps"]) == ("finished", 5)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["policy"]["version"] == 5


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
    monkeypatch.setattr("overlap.session.summary", _raising(second))
    stage.learner.on_save = _raising(ZeroDivisionError("the first"))
    with pytest.raises(ZeroDivisionError, match="the first"):
        overlap.train(stage.cfg)
    assert str(second) in (tmp_path / "run" / "run.log").read_text()
