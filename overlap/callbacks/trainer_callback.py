"""Adapts a ``transformers.TrainerCallback``: its events, its state as far as a run knows it, and what its control asks.

    on_run_start ──▶ on_train_begin, on_step_begin         control.should_training_stop ──▶ Stop
    on_step      ──▶ on_step_end, on_log, on_step_begin    control.should_save          ──▶ Save
    on_evaluate  ──▶ on_evaluate                           control.should_evaluate      ──▶ Evaluate
    on_save      ──▶ on_save
    on_run_end   ──▶ on_train_end

A run has no epochs, and its model lives in other processes: events of epochs, of parts of a step and of the Hub are
never called, and ``model``, ``optimizer`` and the dataloaders are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from overlap.callbacks.actions import Action, Evaluate, Save, Stop
from overlap.callbacks.events import CallbackRun, CheckpointSaved, Evaluated, RunEnded, RunStarted, StepTaken
from overlap.config.fields import Config

_NOT_HERE = dict.fromkeys(("model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader"))


def is_trainer_callback(callback: object) -> bool:
    """Whether it is one of transformers; found without importing that."""
    names = {(kind.__module__, kind.__name__) for kind in type(callback).__mro__}
    return ("transformers.trainer_callback", "TrainerCallback") in names


class TrainerArgs(SimpleNamespace):
    """The fields of ``TrainingArguments`` that a run has."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class TrainerCallbackAdapter:
    """A callback of this package around one of transformers; ``train`` makes it for each that it is given. ``args`` are
    fields of ``TrainingArguments`` that the callback shall see with other values.
    """

    def __init__(self, callback: Any, **args: Any) -> None:
        from transformers.trainer_callback import TrainerControl, TrainerState

        self._callback, self._given = callback, args
        self._args = TrainerArgs()
        self.state, self.control = TrainerState(), TrainerControl()

    def on_run_start(self, run: CallbackRun, event: RunStarted) -> list[Action]:
        self._args = TrainerArgs(**{**_args(run.cfg, str(run.path)), **self._given})
        state, args = self.state, self._args
        state.global_step, state.max_steps = event.step, run.cfg.run.steps
        state.logging_steps, state.eval_steps, state.save_steps = 1, args.eval_steps, args.save_steps
        state.train_batch_size, state.num_train_epochs, state.epoch = args.train_batch_size, 1, self._epoch
        self._call("on_init_end")
        self._call("on_train_begin")
        return self._begin_step()

    def on_step(self, run: CallbackRun, event: StepTaken) -> list[Action]:
        state = self.state
        state.global_step = event.step
        state.epoch = self._epoch
        self._call("on_step_end")
        logs = {name: value for name, value in event.row.items() if isinstance(value, int | float)}
        state.log_history.append({**logs, "step": event.step})
        self._call("on_log", logs=logs)
        return self._begin_step()

    def on_evaluate(self, run: CallbackRun, event: Evaluated) -> list[Action]:
        metrics = {name.replace("/", "_"): value for name, value in event.row.items()}
        metrics["eval_value"] = event.figures["value"]
        self.state.log_history.append({**metrics, "step": event.step})
        self._call("on_evaluate", metrics=metrics)
        self._keep_best(metrics)
        return self._asked()

    def on_save(self, run: CallbackRun, event: CheckpointSaved) -> list[Action]:
        self._call("on_save")
        return self._asked()

    def on_run_end(self, run: CallbackRun, event: RunEnded) -> None:
        self._call("on_train_end")

    @property
    def _epoch(self) -> float:
        return float(self.state.global_step / max(1, self.state.max_steps))

    def _begin_step(self) -> list[Action]:
        asked = self._asked()
        self._call("on_step_begin")
        return [*asked, *self._asked()]

    def _call(self, name: str, **more: Any) -> None:
        # A method that is missing is that of a callback for an older transformers.
        if (method := getattr(self._callback, name, None)) is not None:
            returned = method(self._args, self.state, self.control, **_NOT_HERE, eval_dataloader=None, **more)
            self.control = self.control if returned is None else returned

    def _asked(self) -> list[Action]:
        control, who = self.control, type(self._callback).__name__
        found: list[Action] = [Stop(who)] if control.should_training_stop else []
        found += [Save()] if control.should_save else []
        found += [Evaluate()] if control.should_evaluate else []
        control.should_save = control.should_evaluate = control.should_log = False
        return found

    def _keep_best(self, metrics: Mapping[str, Any]) -> None:
        """As ``Trainer`` does after an evaluation."""
        named = f"eval_{str(self._args.metric_for_best_model).removeprefix('eval_')}"
        value, best = metrics.get(named), self.state.best_metric
        if value is None:
            return
        better = best is None or (value > best if self._args.greater_is_better else value < best)
        if better:
            self.state.best_metric, self.state.best_global_step = value, self.state.global_step


def _args(cfg: Config, path: str) -> dict[str, Any]:
    run, every = cfg.run, cfg.run.eval_every
    return {
        "output_dir": path, "logging_dir": path, "run_name": path, "report_to": [], "disable_tqdm": False,
        "max_steps": run.steps, "num_train_epochs": 1, "seed": run.seed, "data_seed": run.seed,
        "learning_rate": cfg.learn.lr, "per_device_train_batch_size": cfg.samples_per_step,
        "train_batch_size": cfg.samples_per_step, "gradient_accumulation_steps": 1,
        "logging_strategy": "steps", "logging_steps": 1, "logging_first_step": True,
        "eval_strategy": "steps" if run.eval_samples else "no", "eval_steps": every or run.steps,
        "save_strategy": "steps" if run.save_every else "no", "save_steps": run.save_every or run.steps,
        "save_total_limit": run.keep_last, "load_best_model_at_end": bool(every),
        "metric_for_best_model": "value", "greater_is_better": True,
        "world_size": 1, "process_index": 0, "local_process_index": 0, "local_rank": 0, "should_save": True,
        "should_log": True,
    }  # fmt: skip
