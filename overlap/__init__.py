"""overlap: a pipelined rollout and reward engine for reinforcement learning on code.

    cfg = overlap.load_config("config.yaml", {"run.steps": 10})
    summary = overlap.train(cfg)               # or: with overlap.start(cfg) as run: ..., which trains in a thread
    rate = overlap.evaluate(cfg)               # pass@k on the held-out prompts
    answers = overlap.rollout(cfg, limit=8)    # samples with their rewards
    again = overlap.rollout(cfg, answers="runs/first")  # kept samples, judged by a changed task or set of tests
    run = overlap.load_run("runs/first")       # what a run has left: metrics, samples, evaluations
    overlap.write_report("runs/first")         # the same as one HTML page
    policy = overlap.export("runs/first")      # a Hugging Face checkpoint of a saved state

Importing this package imports no GPU library; the functions import one when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap import core as core
    from overlap.commands.answering import ScoredAnswers, evaluate, rollout
    from overlap.commands.exporting import ExportedPolicy, export
    from overlap.config.fields import Config
    from overlap.config.load import load_config
    from overlap.core import errors as errors
    from overlap.core.errors import ConfigError, OverlapError
    from overlap.evaluation.evaluate import PassRate
    from overlap.hooks.callback import Callback, Evaluate, Save, Stop
    from overlap.inspect.report import write_report
    from overlap.inspect.run_data import RunData, load_run
    from overlap.record.run_summary import RunSummary
    from overlap.rewards import reward_task
    from overlap.run.control import RunStatus
    from overlap.run.handle import Run, start
    from overlap.run.training import train
    from overlap.task import Task, chat_prompt
else:  # imported on first use: a command is to hear a signal before it imports what takes time
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "Callback",
    "Config",
    "ConfigError",
    "Evaluate",
    "ExportedPolicy",
    "OverlapError",
    "PassRate",
    "Run",
    "RunData",
    "RunStatus",
    "RunSummary",
    "Save",
    "ScoredAnswers",
    "Stop",
    "Task",
    "chat_prompt",
    "evaluate",
    "export",
    "load_config",
    "load_run",
    "reward_task",
    "rollout",
    "start",
    "train",
    "write_report",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
