"""The evaluations of a run: before it, every ``run.eval_every`` steps, and after it; and the best policy so far.

Consumes  the held-out prompts and a version in the engine; produces figures of the step, and ``policy-best/``
Waits for the generator, the verifier, and the learner's save
Woken by  the loop, when the weights of a step are in the engine and nothing more has been admitted
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.core import Generator, Prompt, Scored, Verifier
from overlap.core.aio import shielded_thread
from overlap.core.errors import RunDirError, count_of
from overlap.core.json_types import to_json_types
from overlap.evaluation.evaluate import MEAN_REWARD, PassRate, measure_pass_rate, paired_change
from overlap.process.atomic import partial_path, remove_path, replace, write_atomic
from overlap.record.progress import Progress
from overlap.record.report import PASS_AT_1

RECORD = "evaluation.json"
"""In ``policy-best/``: the figures of its evaluation, and its step."""


@dataclass
class EvaluationHistory:
    """The results of a run's evaluations so far: ``PassRate.figures`` with the step of each."""

    before: PassRate | None = None
    """Pass rate of the policy that the run began with."""
    points: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Figures by step."""
    best: dict[str, Any] | None = None
    """Figures of the policy in ``policy-best/``."""
    last: PassRate | None = None
    """The newest one, for the change since ``before``. Not kept in checkpoints."""

    def add(self, step: int, rate: PassRate) -> dict[str, Any]:
        """Add the evaluation of a step; returns its figures."""
        self.last = rate
        self.points[step] = {"step": step, **rate.figures()}
        return self.points[step]

    def to_dict(self) -> dict[str, Any]:
        """As JSON types, for a checkpoint."""
        before = asdict(self.before) if self.before else None
        stored: dict[str, Any] = to_json_types(
            {"before": before, "points": list(self.points.values()), "best": self.best}
        )
        return stored

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> EvaluationHistory:
        """The history that ``to_dict`` stored; an empty mapping gives an empty history."""
        before = PassRate.from_dict(stored["before"]) if stored.get("before") else None
        return cls(before, {int(p["step"]): dict(p) for p in stored.get("points", ())}, stored.get("best"))

    @property
    def measure(self) -> str:
        """Name of what the evaluations measure; the mean reward unless rewards were passes in all of them."""
        found = [figures.get("measure", PASS_AT_1) for figures in self.curve().values()]
        return MEAN_REWARD if MEAN_REWARD in found else PASS_AT_1

    def summary(self, after: int | None) -> dict[str, Any]:
        """``pass_at_1`` of ``summary.json``, or by ``measure`` its ``heldout_reward``. ``after`` is the last step of a
        run that came to its end, else None.
        """
        end = None if after is None else self.points.get(after)
        return {
            "before": self.before.figures() if self.before else None,
            "after": end,
            "change": self._change() if end else None,
            "best": self.best,
            "during": [figures for step, figures in sorted(self.points.items()) if step != after],
        }

    def curve(self) -> dict[int, dict[str, Any]]:
        """Figures by step, for the picture; step 0 is before the run."""
        return ({0: self.before.figures()} if self.before else {}) | dict(sorted(self.points.items()))

    def _change(self) -> dict[str, Any] | None:
        if self.before is None or self.last is None or self.before.temperature != self.last.temperature:
            return None
        return asdict(paired_change(self.before, self.last))


def row(figures: Mapping[str, Any]) -> dict[str, float]:
    """Figures of an evaluation as ``eval/...`` columns of ``metrics.jsonl``."""
    at_k = figures.get("pass_at_k") or {}
    name = "pass_at_1" if figures.get("measure", PASS_AT_1) == PASS_AT_1 else "reward_mean"
    named = {name: figures, f"pass_at_{at_k.get('k')}": at_k}
    found = {f"eval/{name}": of["value"] for name, of in named.items() if of}
    found |= {f"eval/{name}_{end}": of[end] for name, of in named.items() if of for end in ("low", "high")}
    return found | {f"eval/{name}": figures[name] for name in ROW_FIGURES}


ROW_FIGURES = ("samples", "failed", "truncated_share", "tokens_mean", "seconds")


@dataclass
class Evaluator:
    """Measures the policy in the engine on held-out prompts, and keeps the best one.

    Its requests are no training samples: it calls generator and verifier directly, not through the training loop.
    """

    cfg: Config
    prompts: tuple[Prompt, ...]
    components: tuple[Generator, Verifier]
    save: Callable[[Path], Awaitable[object]]
    """Writes the learner's policy to a path."""
    best: Path
    """Directory of the best policy."""
    progress: Progress
    course: EvaluationHistory
    lost: Callable[[str, str], None]
    """Gets the name of the best policy and the reason when it cannot be written."""
    record: Callable[[int, Sequence[Scored]], Awaitable[None]]
    """Gets the samples of each evaluation, and the step after which it was made."""
    _samples: Sequence[Scored] = field(default=(), init=False)

    def pop_samples(self) -> Sequence[Scored]:
        """The samples of the last evaluation, once."""
        samples, self._samples = self._samples, ()
        return samples

    async def begin(self, step: int) -> dict[str, float]:
        """Evaluate the policy that the run begins with; a run that goes on after ``step`` knows it or never will.
        Returns the columns of an evaluation that was made.
        """
        found: dict[str, float] = {}
        if step == 0 and self._wanted:
            self.course.before = await self._measure(0, "before training")
            found = row(self.course.before.figures())
        elif self.course.before:
            self.progress.phase(f"before training: {self.course.before}")
        if step:
            self.course.best = await asyncio.to_thread(best_so_far, self.best)
        return found

    async def after_step(self, step: int) -> dict[str, float]:
        """Evaluate when ``step`` is due; returns the columns of the step's row."""
        every = self.cfg.run.eval_every
        return row(await self._evaluate(step)) if every and step % every == 0 and self._wanted else {}

    async def now(self, step: int) -> dict[str, float]:
        """Evaluate when that was requested, unless the policy of ``step`` was evaluated; returns the columns."""
        due = self._wanted and step not in self.course.points and not (step == 0 and self.course.before)
        return row(await self._evaluate(step)) if due else {}

    async def end(self, step: int) -> dict[str, float]:
        """Evaluate the final policy, unless its step was due; returns the columns of this evaluation."""
        due = self._wanted and step not in self.course.points
        return row(await self._evaluate(step)) if due else {}

    async def _record(self, step: int, samples: Sequence[Scored]) -> None:
        self._samples = samples
        await self.record(step, samples)

    @property
    def _wanted(self) -> bool:
        return bool(self.cfg.run.eval_samples and self.prompts)

    async def _evaluate(self, step: int) -> dict[str, Any]:
        figures = self.course.add(step, await self._measure(step, f"after step {step}"))
        best = self.course.best
        if self.cfg.run.eval_every and figures["problems"] and (best is None or figures["value"] > best["value"]):
            await self._keep(figures)
        return figures

    async def _keep(self, figures: dict[str, Any]) -> None:
        """Put the learner's policy and its record in the place of the best one so far, which stays until then."""
        self.progress.phase(f"keeping the policy of step {figures['step']}, the best so far")
        making = partial_path(self.best)
        try:
            await self.save(making)
            await shielded_thread(write_atomic, making / RECORD, json.dumps(to_json_types(figures), indent=2) + "\n")
            await shielded_thread(replace, making, self.best)
            self.course.best = figures
        except RunDirError as error:  # a full disk costs no training
            self.lost(f"{self.best.name}/", str(error))
        finally:
            await asyncio.to_thread(remove_path, making)

    async def _measure(self, step: int, when: str) -> PassRate:
        run, progress = self.cfg.run, self.progress
        progress.phase(
            f"{when}: {run.eval_samples} samples of each of {count_of(len(self.prompts), 'held-out problem')}"
        )
        rate = await measure_pass_rate(
            *self.components,
            self.prompts,
            run.eval_samples,
            temperature=self.cfg.rollout.temperature,
            progress=lambda done, of: progress.live(f"{when}: scored {done}/{of}"),
            stall_s=run.stall_s,
            record=partial(self._record, step),
        )
        progress.phase(f"{when}: {rate}")
        return rate


def best_so_far(folder: Path) -> dict[str, Any] | None:
    """Figures of the policy in ``folder``, from its own record; None where none was kept."""
    record = folder / RECORD
    stored: dict[str, Any] | None = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else None
    return stored
