"""Checkpoints of a run, written while the loop's other tasks run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from overlap.core import Learner
from overlap.core.aio import shielded_thread, threaded
from overlap.core.clock import now
from overlap.evaluation.history import EvaluationHistory
from overlap.pipeline.loop import Position
from overlap.pipeline.prompts import PromptStream
from overlap.record.checkpoint import LEARNER, RunState, is_complete, path_of, save_state, writing
from overlap.record.digest import data_digest
from overlap.record.kept_samples import save_carryover
from overlap.record.recorder import Recorder
from overlap.record.run_files import RunFile
from overlap.run.run_setup import RunSetup


class CheckpointWriter:
    """Collects the position of each part of a run."""

    def __init__(
        self,
        setup: RunSetup,
        learner: Learner,
        recorder: Recorder,
        prompts: PromptStream,
        history: EvaluationHistory,
        seconds: Callable[[], float],
    ) -> None:
        """``seconds``: wall time of the run so far."""
        self._cfg, self._run, self._data, self._train = setup.inputs.cfg, setup.run, setup.data, setup.inputs.train
        self._learner, self._recorder, self._prompts = learner, recorder, prompts
        self._history, self._seconds = history, seconds

    async def write(self, at: Position) -> Path | None:
        """Write one, with the results that no step has taken. Where it cannot be written, training goes on, and None is
        returned. Raises LearnerError.
        """
        self._data = self._data or await asyncio.to_thread(data_digest, self._train)
        root, best, state = self._run.checkpoints, self._history.best, self._state(at)
        spare, folder = {best["step"]} if best else set(), path_of(root, at.step)
        with self._run.failures.tolerate_write_errors(RunFile.CHECKPOINTS):
            if is_complete(folder):  # the learner has not moved since
                await shielded_thread(save_carryover, folder, at.carried, now())
                await shielded_thread(save_state, folder, state)
            else:
                made = writing(root, at.step, keep=self._cfg.run.keep_last, spare=spare)
                async with threaded(made) as making:
                    await shielded_thread(save_carryover, making, at.carried, now())
                    await self._learner.save(making / LEARNER, kind="state")
                    await shielded_thread(save_state, making, state)
            self._run.failures.recovered(str(RunFile.CHECKPOINTS))
        return folder if is_complete(folder) else None

    def _state(self, at: Position) -> RunState:
        traced, traced_us = self._recorder.traced
        return RunState(
            step=at.step,
            version=at.version,
            groups=at.groups,
            **self._run.offsets,
            trace_offset=traced,
            trace_end_us=traced_us,
            config=self._cfg.to_dict(),
            data=self._data,
            seconds=self._seconds(),
            evaluation=self._history.to_dict(),
            carried=len(at.carried),
            solved=self._prompts.known,
        )
