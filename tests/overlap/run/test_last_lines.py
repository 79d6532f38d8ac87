"""However a run ends, its last three lines say what happened, what to look at, and the command that goes on."""

from __future__ import annotations

import io
import queue
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_parts import fake_prompts
from sessions import Stage, Tokenizer

import overlap
from overlap.config.fields import Config
from overlap.core.errors import LearnerError
from overlap.run import training
from overlap.run.run_inputs import RunInputs


def _fails(run: overlap.Run) -> None:
    raise LearnerError("the loss is nan")


RESUME = "overlap train --resume run.dir="
ENDS: list[tuple[str, Callable[[overlap.Run], object], str, str, str]] = [
    # settings, what is done in step 2 of 5, the outcome, the next command
    ("", lambda run: None, "finished, 5 steps in ", "overlap show ", "overlap rollout --config "),
    ("", _fails, "error: learning failed at step 2: ", "overlap train --config ", "no checkpoint: run.save_every"),
    ("run.save_every=1", _fails, "error: learning failed at step 2: ", RESUME, "step-000001"),
    ("run.save_every=1", lambda run: run.stop(), "stopped, ", RESUME, "step-"),
    ("run.save_every=1", lambda run: run.drain(), "drained, 2 of 5 steps", RESUME, "step-000002"),
]


@pytest.fixture
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stage]:
    """Makes fakes behind ``overlap.train``."""

    def make(*settings: str) -> Stage:
        stage = Stage(tmp_path, monkeypatch, *settings)
        (stage.policy / "config.json").write_text("{}")
        task: Any = None

        def prepare(cfg: Config, *_: object) -> RunInputs:
            return RunInputs(cfg, task, stage.policy, Tokenizer(), tuple(fake_prompts(8)), ())

        monkeypatch.setattr(training, "prepare", prepare)
        return stage

    return make


@pytest.mark.parametrize(("settings", "act", "outcome", "following", "more"), ENDS)
def test_the_last_three_lines_of_a_run(
    settings: str, act: Callable[[overlap.Run], object], outcome: str, following: str, more: str, staged
) -> None:
    stage, shown, made = staged(*settings.split()), io.StringIO(), queue.Queue[overlap.Run]()
    stage.learner.on_step = lambda batch: act(made.get(timeout=30)) if batch.step == 2 else None
    run = overlap.start(stage.cfg, console=shown)
    made.put(run)
    with suppress(overlap.OverlapError):
        run.wait(60)
    lines = shown.getvalue().splitlines()[-3:]
    assert lines[0].startswith(f"outcome  {outcome}"), lines
    assert lines[1].startswith("look at  ")
    assert "report.html (curves, samples, settings)" in lines[1] or "warning: " in lines[1]
    assert lines[2].startswith(f"next     {following}")
    assert more in lines[2]


@pytest.mark.promise("interrupts")
def test_ctrl_c_ends_with_the_command_that_resumes(staged, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    stage = staged("run.save_every=1")
    stage.learner.on_step = lambda batch: signal.raise_signal(signal.SIGINT) if batch.step == 2 else None
    with pytest.raises(KeyboardInterrupt):
        overlap.train(stage.cfg)
    outcome, _, following = capsys.readouterr().err.splitlines()[-3:]
    assert outcome.startswith("outcome  interrupted, ")
    assert following.startswith(f"next     {RESUME}{tmp_path}/run (goes on from step-00000")
