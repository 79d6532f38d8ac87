"""overlap: a pipelined rollout and reward engine for reinforcement learning on code.

Importing this package imports no GPU library; ``train`` imports one when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlap.config import Config, load_config
    from overlap.core import Task as TaskProtocol
    from overlap.errors import ConfigError, OverlapError
    from overlap.run import Run
    from overlap.task import Task, chat_prompt

_HOMES = {
    "Config": "config",
    "ConfigError": "errors",
    "OverlapError": "errors",
    "Task": "task",
    "chat_prompt": "task",
    "load_config": "config",
}


def train(
    cfg: Config, task: TaskProtocol | None = None, *, resume: bool = False, with_changes: bool = False
) -> dict[str, Any]:
    """Train a policy; see :func:`overlap.run.training.train`."""
    from overlap.run import train as run

    return run(cfg, task, resume=resume, with_changes=with_changes)


def start(cfg: Config, task: TaskProtocol | None = None, *, resume: bool = False, with_changes: bool = False) -> Run:
    """Begin to train in a thread; see :func:`overlap.run.handle.start`."""
    from overlap.run import start as begin

    return begin(cfg, task, resume=resume, with_changes=with_changes)


def __getattr__(name: str) -> Any:
    """The names of other files, when they are asked for: the command is to hear a signal before it imports them."""
    from importlib import import_module

    if name in ("config", "core", "errors"):
        return import_module(f"overlap.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'overlap' has no attribute {name!r}")
    return getattr(import_module(f"overlap.{_HOMES[name]}"), name)


__all__ = ["Config", "ConfigError", "OverlapError", "Task", "chat_prompt", "load_config", "start", "train"]
