"""A training session: attempts, one after the other where the learner died, and the reports on them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from overlap.core.errors import OverlapError
from overlap.evaluation.history import EvaluationHistory
from overlap.hooks.callback import CallbackRun
from overlap.hooks.thread import CallbackThread
from overlap.hooks.trackers import Trackers
from overlap.inspect.curves import write_picture
from overlap.inspect.report import by_product, report_html, run_that_ends, warnings_at_the_end
from overlap.inspect.run_data import RunData
from overlap.process.atomic import write_atomic
from overlap.record.report import summary
from overlap.record.resume import BEGINNING, Resumed
from overlap.record.run_files import RunFile
from overlap.record.run_summary import RunExit, RunSummary
from overlap.run.attempt import Attempt, RunMemory
from overlap.run.restarts import Restarts, death_in
from overlap.run.run_events import RunEvents
from overlap.run.run_inputs import RunSetup
from overlap.run.save_policy import PolicySaver

_STOPPED_AT_THE_START = "the run was stopped before its first step"
_STOPPED_ON_ITS_WAY_BACK = "the run was stopped while it went back to a checkpoint: --resume goes on from there"


class TrainingSession:
    """One run of the pipeline on real parts. ``reason`` says how it ended, ``policy_saver`` where its policy is.
    ``attempt`` is the current attempt, or the last one.
    """

    def __init__(
        self,
        setup: RunSetup,
        resumed: Resumed = BEGINNING,
        callbacks: Sequence[Any] = (),
        trackers: Mapping[str, Any] | None = None,
    ) -> None:
        """``callbacks``: as ``check_callbacks`` returned them. ``trackers``: as ``named_trackers`` did."""
        self.setup, self.run, self.control = setup, setup.run, setup.control
        self.reason = RunExit.INTERRUPTED.value
        self.policy_saver = PolicySaver(setup.run, setup.inputs.policy, self._save_policy, setup.console.print)
        self.restarts = Restarts(setup.run, setup.inputs.cfg, setup.console.print)
        self._events = _events(setup, callbacks, trackers or {})
        self._outages: list[float] = []
        self._earlier_s, self._began_s, self._taken_before = resumed.state.seconds, time.monotonic(), 0
        self.attempt = self._attempt_from(resumed)

    def _attempt_from(self, begins: Resumed) -> Attempt:
        history = self._history = EvaluationHistory.from_dict(begins.state.evaluation)
        memory = RunMemory(history, self._events, self.policy_saver, self._outages, lambda: self.seconds)
        return Attempt(self.setup, begins, memory)

    # --- attempts -------------------------------------------------------------------------------------------

    async def __call__(self) -> None:
        """Train. Raises OverlapErrors; cancelling it saves what was learned and closes everything.

        When the learner has died, everything is closed and begun again from the newest checkpoint, a bounded number of
        times (``Restarts``).
        """
        self._began_s = time.monotonic()
        self.run.failures.report_to(self.setup.console.print)
        self.control.enter("starting")
        async with self.control.attached(self._status, self._on_save, self.setup.console.print):
            while await self._died():
                await self._go_back()

    async def _died(self) -> bool:
        """Train once. Returns whether the learner has died, and another attempt follows."""
        async with self.attempt as attempt:
            try:
                await attempt.start(_STOPPED_ON_ITS_WAY_BACK if self.restarts.lines else _STOPPED_AT_THE_START)
                self.restarts.begun, self.policy_saver.outcome = True, {}
                await attempt.train()
            except BaseException as error:
                attempt.death = death_in(error) or attempt.death
                ends = self.control.stopped or not (attempt.death and isinstance(error, OverlapError))
                if not ends and self.restarts.possible(self.taken):
                    self.control.enter("restarting", self.restarts.coming)
                    return True
                self.control.enter("ending")
                await self._rescue()
                raise
            if self.control.stopped:
                await self._rescue()
            self.reason = self._how_it_ended()
            self.control.enter("ending")
            attempt.progress.phase("closing")
            return False

    async def _go_back(self) -> None:
        """Prepare another attempt after the learner's death."""
        death = self.attempt.death
        assert death is not None
        self.policy_saver.outcome = {"failure": str(death)}  # until there is a learner again
        begins = await self.control.unless_stopped(self.restarts.go_back(death), _STOPPED_ON_ITS_WAY_BACK)
        self._taken_before = self.taken
        self.attempt = self._attempt_from(begins)

    async def _rescue(self) -> None:
        """Keep what this session has learned, if that can be."""
        if self.taken:
            await self.policy_saver.rescue()

    def _how_it_ended(self) -> str:
        if self.control.stopped:
            return RunExit.STOPPED.value
        if by := self.control.loop_control.ended_by:
            return f"{RunExit.BY_CALLBACK} {by}"
        early = RunExit.ALL_SOLVED if self.attempt.prompts.ended else RunExit.DRAINED
        return (early if self.attempt.at.step < self.setup.inputs.cfg.run.steps else RunExit.FINISHED).value

    async def _save_policy(self, path: Path) -> int:
        return await self.attempt.save_policy(path)

    async def _on_save(self, carried: Any) -> None:
        """Write a checkpoint that was requested, between two steps."""
        assert self.attempt.steps is not None
        await self.attempt.steps.checkpoint(carried)

    # --- what is reported ---------------------------------------------------------------------------------------

    @property
    def taken(self) -> int:
        """Steps taken by this session, with the steps that a restart has undone."""
        return self._taken_before + self.attempt.taken

    @property
    def step(self) -> int:
        """The last step that was taken, before the session too."""
        return self.attempt.at.step

    @property
    def seconds(self) -> float:
        """Wall time of the run, that before it was resumed included, s."""
        return self._earlier_s + time.monotonic() - self._began_s

    def _status(self) -> dict[str, Any]:
        return {
            "run": str(self.run.path),
            "step": self.step,
            "steps": self.setup.inputs.cfg.run.steps,
            "version": self.attempt.at.version,
            "seconds": round(self.seconds, 1),
            "checkpoint": self.restarts.newest_checkpoint,
            "restarts": len(self.restarts.lines),
            "not_written": list(self.run.failures),
        }

    def summarize(self, seconds: float) -> RunSummary:
        """Return the figures of the whole run, ``seconds`` being those of this session. When a step was taken they are
        written down and drawn; a start that failed leaves its directory free.
        """
        attempt, history = self.attempt, self._history
        rows = attempt.recorder.rows if attempt.recorder else []
        left = run_that_ends(self.run.path, rows)
        figures = summary(
            rows,
            reason=self.reason,
            seconds=self._earlier_s + seconds,
            run_dir=self.run.path,
            evaluations=history.summary(self.step if RunExit.of(self.reason).measured else None),
            measure=history.measure,
            warnings=warnings_at_the_end(left) if self.taken else (),
            extra=self._extra(),
        )
        if self.taken:
            title = f"{self.setup.inputs.cfg.model.policy}, {len(rows)} steps"
            self._write_end(figures, left, title)
        return cast(RunSummary, figures)

    def _write_end(self, figures: dict[str, Any], left: RunData, title: str) -> None:
        """Write summary.json, picture.png and report.html. What cannot be written is named in ``not_written``."""
        run, lost = self.run, self.run.failures.add
        run.finish(figures)
        by_product(RunFile.PICTURE, lambda: write_picture(left, run.picture, title=title), lost)
        by_product(RunFile.REPORT, lambda: write_atomic(RunFile.REPORT.of(run.path), report_html([left])), lost)
        self._write_again(figures, {"not_written": list(run.failures)})

    def _write_again(self, figures: dict[str, Any], known: dict[str, Any]) -> None:
        """Write summary.json once more where it does not have what is ``known`` now."""
        if any(figures.get(name) != value for name, value in known.items()):
            figures.update(known)
            self.run.finish(figures)

    def tell_end(self, figures: RunSummary, error: BaseException | None) -> None:
        """Tell callbacks and trackers that the run has ended, by ``error`` or in order; ``figures`` and summary.json
        then have what could not be reported. Raises CallbackError, unless there is an ``error``.
        """
        try:
            self._events.tell_end(self.step, self.reason, figures if self.taken else {}, error)
        finally:
            if self.taken:
                known = {"callbacks": self._events.callbacks.figures, "not_written": list(self.run.failures)}
                self._write_again(cast(dict[str, Any], figures), known)

    def _extra(self) -> dict[str, Any]:
        inputs, solved = self.setup.inputs, self.attempt.prompts.figures if self.attempt.recorder else {}
        return {
            "prompts": {"train": len(inputs.train), "heldout": len(inputs.heldout), **solved},
            "data": {split: intake.to_json() for split, intake in inputs.splits.items()},
            "policy": self.policy_saver.figures(),
            "restarts": self.restarts.lines,
            "engine_outages_s": self._outages,
            "not_written": list(self.run.failures),
            "callbacks": self._events.callbacks.figures,
        }


def _events(setup: RunSetup, callbacks: Sequence[Any], trackers: Mapping[str, Any]) -> RunEvents:
    cfg, report_line = setup.inputs.cfg, setup.console.print
    run = CallbackRun(setup.run.path, cfg, setup.control, setup.text_of)
    why = "" if cfg.run.eval_samples else "run.eval_samples is 0"
    why = why or ("" if setup.inputs.heldout else "there are no held-out prompts")
    told = Trackers(trackers, run, setup.run.failures)
    return RunEvents(CallbackThread(callbacks, run, report_line), told, setup.control.loop_control, report_line, why)
