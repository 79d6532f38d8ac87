"""Callbacks of transformers, the real ones, in runs on the fakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sessions import Stage, play
from transformers import EarlyStoppingCallback, TrainerCallback

from overlap.callbacks.trainer_callback import TrainerCallbackAdapter


class Noting(TrainerCallback):
    """Notes its calls; ``act`` is called at each with (name, args, state, control)."""

    def __init__(self, act: Any = lambda *_: None) -> None:
        self.calls: list[str] = []
        self.act = act

    def _note(self, name: str, args: Any, state: Any, control: Any) -> Any:
        self.calls.append(f"{name} {state.global_step}")
        self.args, self.state = args, state
        return self.act(name, args, state, control)

    def on_train_begin(self, args, state, control, **kwargs):
        return self._note("begin", args, state, control)

    def on_step_begin(self, args, state, control, **kwargs):
        return self._note("step_begin", args, state, control)

    def on_step_end(self, args, state, control, **kwargs):
        assert kwargs["model"] is None
        return self._note("step_end", args, state, control)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs = logs
        return self._note("log", args, state, control)

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.metrics = metrics
        return self._note("evaluate", args, state, control)

    def on_save(self, args, state, control, **kwargs):
        return self._note("save", args, state, control)

    def on_train_end(self, args, state, control, **kwargs):
        return self._note("end", args, state, control)


def test_its_events_state_and_arguments_are_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noting = Noting()
    made = Stage(tmp_path, monkeypatch, "run.steps=2", "run.eval_samples=1", "run.save_every=2")
    session = made.session(callbacks=[noting], heldout=2)
    play(session)
    assert noting.calls == [
        "begin 0", "step_begin 0", "evaluate 0", "step_end 1", "log 1", "step_begin 1",
        "step_end 2", "log 2", "step_begin 2", "save 2", "evaluate 2", "end 2",
    ]  # fmt: skip
    assert (noting.state.max_steps, noting.state.epoch) == (2, 1.0)
    assert noting.state.best_metric == pytest.approx(
        max(e["eval_value"] for e in noting.state.log_history if "eval_value" in e)
    )
    assert (noting.args.output_dir, noting.args.max_steps) == (str(session.run.path), 2)
    assert noting.args.to_dict()["learning_rate"] == made.cfg.learn.lr
    assert {"reward/mean", "learn/loss"} <= set(noting.logs) or "reward/mean" in noting.logs
    assert {"eval_value", "eval_samples"} <= set(noting.metrics)


def test_what_its_control_asks_for_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(name: str, args: Any, state: Any, control: Any) -> Any:
        if name == "step_end":
            control.should_save = control.should_evaluate = state.global_step == 2
            control.should_training_stop = state.global_step == 3
        return control

    noting = Noting(act)
    made = Stage(tmp_path, monkeypatch, "run.eval_samples=1")
    session = made.session(callbacks=[noting], heldout=2)
    figures = play(session)
    assert figures["exit"] == "stopped by callback TrainerCallbackAdapter.on_step: Noting"
    assert (session.run.checkpoints / "step-000002").is_dir()
    assert [call for call in noting.calls if call.startswith(("evaluate", "save"))] == [
        "evaluate 0", "evaluate 2", "save 2", "evaluate 3",
    ]  # fmt: skip


def test_early_stopping_of_transformers_stops_a_run_that_gains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Stage(tmp_path, monkeypatch, "run.eval_samples=1", "run.eval_every=1", "run.steps=50")
    early = TrainerCallbackAdapter(EarlyStoppingCallback(2, early_stopping_threshold=2.0), seed=7)
    figures = play(made.session(callbacks=[early], heldout=2))
    assert figures["exit"] == "stopped by callback TrainerCallbackAdapter.on_evaluate: EarlyStoppingCallback"
    assert figures["steps"] == 2
    assert early._args.seed == 7
