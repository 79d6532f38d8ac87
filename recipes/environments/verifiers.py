"""A taskset of the package ``verifiers`` as a task: ``data.task=recipes.environments.verifiers:VerifiersTask``.

The package has its own interpreter (``data.options.python``), because it needs other versions of a run's packages.
Its model is the policy, over an endpoint of the episode; its reward is the sample's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from overlap.core import Prompt
from overlap.core.errors import ConfigError, RolloutError
from overlap.task import Task, messages_prompt, task_options
from recipes.environments.host import EnvironmentHost, printed_json
from recipes.environments.scored import Range, Seal, given_reward, refuse_command, scored

if TYPE_CHECKING:
    from overlap.config.fields import Config
    from overlap.server.chat import Chat
    from overlap.server.episodes import EpisodeSandbox
    from sandbox.core.nouns import Judgement

_PROGRAM = Path(__file__).with_name("_verifiers_host.py")
_ROWS_S = 600.0


@dataclass(frozen=True)
class VerifiersOptions:
    """``data.options`` of such a task."""

    taskset: str = ""
    """Name of the taskset."""
    python: str = ""
    """The interpreter that has ``verifiers`` and the taskset; "": the run's own."""
    args: dict[str, Any] = field(default_factory=dict)
    """Fields of the taskset's configuration."""
    env: dict[str, Any] = field(default_factory=dict)
    """Further fields of the environment's configuration, such as ``agent``."""
    harness: str = ""
    """The harness that plays it, as ``bash``; "": one that only talks, and calls the taskset's tools."""
    count: int = 0
    """Rows to train on; 0: all."""
    heldout: int = 0
    """Rows to evaluate on: those behind."""
    reward_least: float | None = None
    reward_most: float | None = None
    """The range of rewards that count; any other is a fault of the environment. null: no bound."""


class VerifiersTask(Task):
    """The taskset of ``data.options.taskset``."""

    options: ClassVar[type] = VerifiersOptions
    endpoint = True

    def __init__(self, options: VerifiersOptions) -> None:
        if not options.taskset:
            raise ConfigError("data.options.taskset", "", "name a taskset: {taskset: gsm8k-v1}")
        for name in ("count", "heldout"):
            if (number := getattr(options, name)) < 0:
                raise ConfigError(f"data.options.{name}", number, "use a whole number, 0 or more")
        self._options, self._seal = options, Seal()
        self._rows: list[dict[str, Any]] | None = None
        self._host: EnvironmentHost | None = None

    @classmethod
    def from_config(cls, cfg: Config) -> VerifiersTask:
        refuse_command(cfg)
        return cls(task_options(cfg, cls))

    def prompts(self, tokenizer: Any, split: str) -> Sequence[Prompt]:
        rows, name = self._read(), self._options.taskset
        late = len(rows) - self._options.heldout
        return [
            messages_prompt(tokenizer, f"{name}/{n}", row["messages"], data={"row": row["row"], "seal": self._seal})
            for n, row in enumerate(rows)
            if (n >= late) == (split == "heldout")
        ]

    def resources(self) -> AbstractAsyncContextManager[Any]:
        self._host = EnvironmentHost(self._command("serve"), f"verifiers: {self._options.taskset}")
        return self._host

    async def rollout(self, prompt: Prompt, chat: Chat, sandbox: EpisodeSandbox) -> str:
        assert self._host is not None, "episodes run inside the task's resources"
        with sandbox.endpoint() as (url, key):
            try:
                made = await self._host.run({"row": prompt.data["row"], "url": url, "key": key})
            except Exception:
                if chat.spent:  # what it met is the end of the budget, or of the context
                    return ""
                raise
        said, within = str(made.get("said", "")), Range(self._options.reward_least, self._options.reward_most)
        return scored(said, made.get("reward"), prompt.data, within, metrics=made.get("metrics", {}))

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float | None:
        return given_reward(answer, prompt.data)

    def _command(self, what: str) -> list[str]:
        given = {name: getattr(self._options, name) for name in ("args", "env", "harness", "count", "heldout")}
        return [self._options.python or sys.executable, str(_PROGRAM), what, self._options.taskset, json.dumps(given)]

    def _read(self) -> list[dict[str, Any]]:
        if self._rows is None:
            try:
                self._rows = printed_json(self._command("rows"), _ROWS_S)
            except RolloutError as error:
                way_out = f"{error}; install verifiers and the taskset, and name their interpreter in "
                raise ConfigError(
                    "data.options.taskset", self._options.taskset, f"{way_out}data.options.python"
                ) from error
            if len(self._rows) <= self._options.heldout:
                way_out = f"the taskset has {len(self._rows)} tasks: hold fewer out, so that one is left to train on"
                raise ConfigError("data.options.heldout", self._options.heldout, way_out)
        return self._rows
