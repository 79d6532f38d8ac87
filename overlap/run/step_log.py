"""Where an attempt stands, and what each of its steps leaves on disk: a row of metrics, samples, a checkpoint."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from overlap.aio import shielded_thread, threaded
from overlap.clock import now
from overlap.core import Batch, Learner, Scored
from overlap.errors import CallbackError
from overlap.evaluation.history import Evaluator
from overlap.hooks.callback import CheckpointSaved, Evaluated, RunEvent, RunStarted, StepTaken
from overlap.pipeline.learning import StepResult
from overlap.pipeline.prompts import PromptStream
from overlap.record.checkpoint import LEARNER, RunState, is_complete, path_of, save_state, writing
from overlap.record.digest import data_digest
from overlap.record.kept_samples import save_carryover
from overlap.record.progress import selection_line
from overlap.record.recorder import Recorder
from overlap.record.run_files import RunFile
from overlap.record.rundir import RunDir
from overlap.run.run_events import RunEvents
from overlap.run.run_inputs import RunInputs


@dataclass
class StepLog:
    """Belongs to the session's loop. ``step``, ``version`` and ``groups`` are where the run stands."""

    inputs: RunInputs
    run: RunDir
    recorder: Recorder
    prompts: PromptStream
    learner: Learner
    evaluator: Evaluator
    events: RunEvents
    seconds: Callable[[], float]
    """Wall time of the run so far."""
    step: int
    version: int
    groups: int
    """Groups consumed, those that were dropped included."""
    data: str = ""
    """Digest of the prompts, for checkpoints."""
    replayed: bool = False
    """The samples are another run's: no engine computed log-probs that could differ from the learner's."""
    report_line: Callable[[str], None] = field(kw_only=True)
    taken: int = 0
    """Steps of this attempt."""
    _warned: bool = False
    _evaluated: Mapping[str, float] = field(default_factory=dict)

    async def begin(self) -> None:
        """Evaluate the policy before the first step, which starts when this returns."""
        await self._tell(RunStarted(self.step, resumed=self.step > 0))
        await self._note_evaluation(await self.evaluator.begin(self.step))
        self.recorder.begin()

    async def end(self) -> None:
        """Evaluate the policy that the run ends with."""
        await self._note_evaluation(await self.evaluator.end(self.step))

    async def _note_evaluation(self, found: Mapping[str, float]) -> None:
        """Write an evaluation before the first or after the last step as a row of its own."""
        if found:
            await asyncio.to_thread(self.run.step, {"step": self.step, **found})
            await self._tell_evaluation(self.step, found)

    async def _tell_evaluation(self, step: int, found: Mapping[str, float]) -> None:
        course, samples = self.evaluator.course, self.evaluator.pop_samples()
        if (figures := course.curve().get(step)) is not None:
            await self.events.tell(Evaluated(step, figures, found, samples))

    async def _tell(self, event: RunEvent) -> None:
        """Tell callbacks; evaluate where one asks for it."""
        if not await self.events.tell(event):
            return
        began = time.monotonic()
        if found := await self.evaluator.now(self.step):
            await self.recorder.evaluated_between(self.step, began)
            await self._note_evaluation(found)

    async def on_weights(self, result: StepResult) -> None:
        """Evaluate the policy that a step has made, when that is due."""
        began, self._evaluated = time.monotonic(), {}
        try:
            self._evaluated = await self.evaluator.after_step(result.batch.step)
            if self._evaluated:
                self.recorder.evaluated(began)
                await self._tell_evaluation(result.batch.step, self._evaluated)
        except BaseException:
            await self._note(result)  # the step was taken, whatever became of its evaluation
            raise

    async def on_step(self, result: StepResult) -> None:
        """Write a step's row, tell callbacks, and write a checkpoint when that is due, also where a callback failed."""
        await self._note(result)
        fault = None
        try:
            await self._tell(StepTaken(self.step, self.recorder.rows[-1], result.batch))
        except CallbackError as error:
            fault = error
        every = self.inputs.cfg.run.save_every
        if every and self.step % every == 0:
            await self.checkpoint(result.carried)
        if fault is not None:
            raise fault

    async def _note(self, result: StepResult) -> None:
        batch = result.batch
        self.taken += 1
        self.groups += len(batch.groups) + len(batch.dropped)
        self.version = result.report.version if result.report else self.version
        self.step = batch.step
        extra = {"rollout/parity_gap": math.nan} if self.replayed and result.report else {}
        extra |= {f"rollout/prompts_{name}": count for name, count in self.prompts.figures.items()}
        self._warn(batch)
        await self.recorder.step(result, {**self._evaluated, **extra})

    def _warn(self, batch: Batch) -> None:
        """Warn once that the episodes that are learned from are the fast ones."""
        cfg = self.inputs.cfg
        if (
            cfg.learn.truncated == "mask"
            and not self._warned
            and (line := selection_line(batch, cfg.episode.timeout_s))
        ):
            self._warned = True
            self.report_line(line)

    async def checkpoint(self, carried: tuple[Scored, ...]) -> None:
        """Write a checkpoint while the loop's other tasks run; ``carried`` are the results that no step has taken. If
        it cannot be written, training goes on without it. Raises LearnerError, CallbackError.
        """
        self.data = self.data or await asyncio.to_thread(data_digest, self.inputs.train)
        root, best = self.run.checkpoints, self.evaluator.course.best
        state = self._state(len(carried))
        spare, folder = {best["step"]} if best else set(), path_of(root, self.step)
        with self.run.failures.tolerate_write_errors(RunFile.CHECKPOINTS):
            if is_complete(folder):  # the learner has not moved since
                await shielded_thread(save_carryover, folder, carried, now())
                await shielded_thread(save_state, folder, state)
            else:
                made = writing(root, self.step, keep=self.inputs.cfg.run.keep_last, spare=spare)
                async with threaded(made) as making:
                    await shielded_thread(save_carryover, making, carried, now())
                    await self.learner.save(making / LEARNER, kind="state")
                    await shielded_thread(save_state, making, state)
            self.run.failures.recovered(str(RunFile.CHECKPOINTS))
        if is_complete(folder):
            await self._tell(CheckpointSaved(self.step, folder))

    def _state(self, carried: int) -> RunState:
        traced, traced_us = self.recorder.traced
        return RunState(
            step=self.step,
            version=self.version,
            groups=self.groups,
            **self.run.offsets,
            trace_offset=traced,
            trace_end_us=traced_us,
            config=self.inputs.cfg.to_dict(),
            data=self.data,
            seconds=self.seconds(),
            evaluation=self.evaluator.course.to_dict(),
            carried=carried,
            solved=self.prompts.known,
        )
