"""Position of an attempt, and what follows each of its steps: a row of metrics, evaluations, events, a checkpoint."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from overlap.core import Batch, Learner, Scored
from overlap.core.aio import shielded_thread, threaded
from overlap.core.clock import now
from overlap.core.errors import CallbackError
from overlap.evaluation.history import Evaluator
from overlap.hooks.callback import CheckpointSaved, Evaluated, RunEvent, RunStarted, StepTaken
from overlap.pipeline.learning import StepResult
from overlap.pipeline.loop import Position
from overlap.pipeline.prompts import PromptStream
from overlap.record.checkpoint import LEARNER, RunState, is_complete, path_of, save_state, writing
from overlap.record.kept_samples import save_carryover
from overlap.record.progress import selection_line
from overlap.record.recorder import Recorder
from overlap.record.resume import data_digest
from overlap.record.run_files import RunFile
from overlap.run.run_events import RunEvents
from overlap.run.run_inputs import RunSetup


@dataclass
class StepLog:
    """Belongs to the session's loop. ``at``: position of the run; its groups include the dropped ones. ``seconds``:
    wall time of the run so far.
    """

    setup: RunSetup
    at: Position
    recorder: Recorder
    prompts: PromptStream
    evaluator: Evaluator
    events: RunEvents
    learner: Learner
    seconds: Callable[[], float]
    _warned: bool = False
    _evaluated: Mapping[str, float] = field(default_factory=dict)

    async def begin(self) -> None:
        """Evaluate the policy before the first step, which starts when this returns."""
        await self._tell(RunStarted(self.at.step, resumed=self.at.step > 0))
        await self._note_evaluation(await self.evaluator.begin(self.at.step))
        self.recorder.begin()

    async def end(self) -> None:
        """Evaluate the policy that the run ends with."""
        await self._note_evaluation(await self.evaluator.end(self.at.step))

    async def _note_evaluation(self, found: Mapping[str, float]) -> None:
        """Write an evaluation before the first or after the last step as a row of its own."""
        if found:
            await asyncio.to_thread(self.setup.run.step, {"step": self.at.step, **found})
            await self._tell_evaluation(self.at.step, found)

    async def _tell_evaluation(self, step: int, found: Mapping[str, float]) -> None:
        course, samples = self.evaluator.course, self.evaluator.pop_samples()
        if (figures := course.curve().get(step)) is not None:
            await self.events.tell(Evaluated(step, figures, found, samples))

    async def _tell(self, event: RunEvent) -> None:
        """Tell callbacks; evaluate where one asks for it."""
        if not await self.events.tell(event):
            return
        began = time.monotonic()
        if found := await self.evaluator.now(self.at.step):
            await self.recorder.evaluated_between(self.at.step, began)
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
            await self._note(result)  # the step was taken, whatever the outcome of its evaluation
            raise

    async def on_step(self, result: StepResult) -> None:
        """Write a step's row, tell callbacks, and write a checkpoint when that is due, also where a callback failed."""
        await self._note(result)
        fault = None
        try:
            await self._tell(StepTaken(self.at.step, self.recorder.rows[-1], result.batch))
        except CallbackError as error:
            fault = error
        every = self.setup.inputs.cfg.run.save_every
        if every and self.at.step % every == 0:
            await self.checkpoint(result.carried)
        if fault is not None:
            raise fault

    async def checkpoint(self, carried: tuple[Scored, ...]) -> None:
        """Write a checkpoint; ``carried`` are results that no step has taken. Where it cannot be written, training goes
        on without it. Raises LearnerError, CallbackError.
        """
        setup, at = self.setup, replace(self.at, carried=carried)
        run, best, state = setup.run, self.evaluator.course.best, await self._state(at)
        folder = path_of(run.checkpoints, at.step)
        with run.failures.tolerate_write_errors(RunFile.CHECKPOINTS):
            if is_complete(folder):  # the learner has not moved since
                await shielded_thread(save_carryover, folder, carried, now())
                await shielded_thread(save_state, folder, state)
            else:
                keep, spare = setup.inputs.cfg.run.keep_last, {best["step"]} if best else set()
                async with threaded(writing(run.checkpoints, at.step, keep=keep, spare=spare)) as making:
                    await shielded_thread(save_carryover, making, carried, now())
                    await self.learner.save(making / LEARNER, kind="state")
                    await shielded_thread(save_state, making, state)
            run.failures.recovered(str(RunFile.CHECKPOINTS))
        if is_complete(folder):
            await self._tell(CheckpointSaved(at.step, folder))

    async def _state(self, at: Position) -> RunState:
        setup, (traced, traced_us) = self.setup, self.recorder.traced
        return RunState(
            step=at.step,
            version=at.version,
            groups=at.groups,
            **setup.run.offsets,
            trace_offset=traced,
            trace_end_us=traced_us,
            config=setup.inputs.cfg.to_dict(),
            data=setup.data or await asyncio.to_thread(data_digest, setup.inputs.train),
            seconds=self.seconds(),
            evaluation=self.evaluator.course.to_dict(),
            carried=len(at.carried),
            solved=self.prompts.known,
        )

    async def _note(self, result: StepResult) -> None:
        batch, report = result.batch, result.report
        groups = self.at.groups + len(batch.groups) + len(batch.dropped)
        self.at = Position(batch.step, report.version if report else self.at.version, groups)
        # Kept samples are another run's: no engine computed log-probs that could differ from the learner's.
        extra = {"rollout/parity_gap": math.nan} if self.setup.rollouts and report else {}
        extra |= {f"rollout/prompts_{name}": count for name, count in self.prompts.figures.items()}
        self._warn(batch)
        await self.recorder.step(result, {**self._evaluated, **extra})

    def _warn(self, batch: Batch) -> None:
        """Warn once that the episodes that are learned from are the fast ones."""
        cfg = self.setup.inputs.cfg
        if cfg.learn.truncated != "mask" or self._warned:
            return
        if line := selection_line(batch, cfg.episode.timeout_s):
            self._warned = True
            self.setup.console.print(line)
