"""A taskset (v1) or an environment (v0) of the package ``verifiers`` as a task: ``data.task=verifiers:NAME``.

The package has its own interpreter (``data.options.python``), because it needs other versions of what a run needs too.
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
from overlap.environments.host import EnvironmentHost, printed_json
from overlap.environments.scored import Range, Seal, given_reward, refuse_command, scored
from overlap.errors import ConfigError, RolloutError
from overlap.task import Task, messages_prompt, task_options

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

    python: str = ""
    """The interpreter that has ``verifiers`` and the environment; "": the run's own."""
    args: dict[str, Any] = field(default_factory=dict)
    """What the environment takes: arguments of ``load_environment``, or fields of the taskset's configuration."""
    env: dict[str, Any] = field(default_factory=dict)
    """v1: further fields of the environment's configuration, such as ``agent``."""
    harness: str = ""
    """v1: the harness that plays a taskset, as ``bash``; "": one that only talks, and calls the taskset's tools."""
    count: int = 0
    """Rows to train on; 0: all."""
    heldout: int = 0
    """Rows to evaluate on: of the environment's own data for that, or else the last ones."""
    reward_least: float | None = None
    reward_most: float | None = None
    """The range of rewards that count; any other is a fault of the environment. null: no bound."""


class VerifiersTask(Task):
    """``verifiers:NAME``."""

    options: ClassVar[type] = VerifiersOptions
    endpoint = True

    def __init__(self, name: str, options: VerifiersOptions) -> None:
        if not name:
            raise ConfigError("data.task", "verifiers:", "name a taskset or an environment: verifiers:gsm8k")
        self._name, self._options, self._seal = name, options, Seal()
        self._rows: list[dict[str, Any]] | None = None
        self._host: EnvironmentHost | None = None

    @classmethod
    def from_config(cls, cfg: Config) -> VerifiersTask:
        refuse_command(cfg)
        return cls(cfg.data.task.partition(":")[2], task_options(cfg, cls))

    def prompts(self, tokenizer: Any, split: str) -> Sequence[Prompt]:
        found = [
            (number, row) for number, row in enumerate(self._read()) if bool(row.get("heldout")) == (split == "heldout")
        ]
        return [
            messages_prompt(
                tokenizer, f"{self._name}/{number}", row["messages"], data={"row": row["row"], "seal": self._seal}
            )
            for number, row in found
        ]

    def resources(self) -> AbstractAsyncContextManager[Any]:
        self._host = EnvironmentHost(self._command("serve"), f"verifiers:{self._name}")
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
        return [self._options.python or sys.executable, str(_PROGRAM), what, self._name, json.dumps(given)]

    def _read(self) -> list[dict[str, Any]]:
        if self._rows is None:
            try:
                self._rows = printed_json(self._command("rows"), _ROWS_S)
            except RolloutError as error:
                way_out = f"{error}; install verifiers and the environment, and name their interpreter in "
                raise ConfigError("data.task", f"verifiers:{self._name}", f"{way_out}data.options.python") from error
            late = self._rows[-self._options.heldout :] if self._options.heldout else []
            if not any(row.get("heldout") for row in self._rows):
                for row in late:
                    row["heldout"] = True
        return self._rows
