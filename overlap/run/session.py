"""A training session: parts start, the pipeline runs between two evaluations, parts close in reverse order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from overlap.aio import race
from overlap.clock import now
from overlap.core import Generator, Learner, Prompt, Scored, Verifier
from overlap.errors import LearnerDiedError, OverlapError
from overlap.evaluation import EvaluationHistory, Evaluator
from overlap.pipeline import Components, Pending, Position, PromptStream, StepResult, overlapped
from overlap.placement import Placement
from overlap.prepare import RunInputs
from overlap.process import Reaper
from overlap.record import (
    BEGINNING,
    LEARNER,
    Carryover,
    Console,
    LoopLag,
    Progress,
    Recorder,
    Resumed,
    Rollouts,
    RunDir,
    RunFile,
    stall_line,
    summary,
    write_picture,
)
from overlap.replay import SavedGenerator, SavedVerifier, UnpublishedLearner
from overlap.run.control import RunControl
from overlap.run.open_close import Component, open_components
from overlap.run.parts import PartFactory, before_starts
from overlap.run.restarts import INTERRUPTED, Restarts, death_in, reason_of
from overlap.run.save_policy import PolicySaver
from overlap.run.step_log import StepLog

_STOPPED_AT_THE_START = "the run was stopped before its first step"
_STOPPED_ON_ITS_WAY_BACK = "the run was stopped while it went back to a checkpoint: --resume goes on from there"
ALL_SOLVED = "all prompts solved"
ENDS = ("finished", "drained", ALL_SOLVED)
"""Reasons of a run that ended in order."""


@dataclass
class TrainingSession:
    """One run of the pipeline on real parts. ``reason`` says how it ended, ``policy_saver`` where its policy is."""

    inputs: RunInputs
    placement: Placement
    run: RunDir
    scratch: Path
    console: Console
    reaper: Reaper
    resumed: Resumed = BEGINNING
    data: str = ""
    """Digest of the prompts, for checkpoints."""
    control: RunControl = field(default_factory=RunControl)
    rollouts: Rollouts | None = None
    """Samples to train from in the place of an engine and a verifier."""
    reason: str = INTERRUPTED
    course: EvaluationHistory = field(init=False)
    policy_saver: PolicySaver = field(init=False)
    restarts: Restarts = field(init=False)
    recorder: Recorder | None = None
    steps: StepLog | None = None
    """Of the attempt that goes on, or was the last; None until its parts are up."""
    taken: int = 0
    """Steps taken by this session."""
    outages: list[float] = field(default_factory=list)
    """Seconds from each death of the engine to the next response."""

    def __post_init__(self) -> None:
        self.course = EvaluationHistory.from_dict(self.resumed.state.evaluation)
        self.policy_saver = PolicySaver(self.run, self.inputs.policy, self._save_policy)
        self.restarts = Restarts(self.run, self.inputs.cfg, self.console.print)
        self._earlier_s = self.resumed.state.seconds
        self._death: LearnerDiedError | None = None

    # --- attempts -------------------------------------------------------------------------------------------

    async def __call__(self) -> None:
        """Train. Raises OverlapErrors; cancelling it saves what was learned and closes everything.

        When the learner has died, everything is closed and begun again from the newest checkpoint, a bounded number of
        times (``Restarts``).
        """
        self._began_s = time.monotonic()
        self.run.failures.report_to(self.console.print)
        async with self.control.attached(self._status, self._on_save, self.console.print):
            while True:
                try:
                    return await self._attempt()
                except OverlapError as error:
                    await self._go_back(error)

    async def _attempt(self) -> None:
        cfg, at = self.inputs.cfg, self.resumed.state
        self.steps, self._death = None, None
        again = bool(self.restarts.lines)
        self.control.enter(*(("restarting", self.restarts.count()) if again else ("starting", "")))
        self._prompts = PromptStream.of(cfg, self.inputs.train, at.groups, at.solved, self.console.print)
        async with AsyncExitStack() as stack:
            progress = self._progress = stack.enter_context(Progress(self.console, cfg.run.steps, done=at.step))
            try:
                await self._begin(stack, _STOPPED_ON_ITS_WAY_BACK if again else _STOPPED_AT_THE_START)
                await self._guarded(self._train())
            except BaseException as error:
                if self._goes_back(error):
                    self.control.enter("restarting", self.restarts.count(coming=1))
                else:
                    self.control.enter("ending")
                    await self._rescue()
                raise
            if self.control.stopped:
                await self._rescue()
            self.reason = self._how_it_ended()
            self.control.enter("ending")
            progress.phase("closing")

    def _goes_back(self, error: BaseException) -> bool:
        """Whether the error that ends an attempt is a death of the learner after which another attempt is made."""
        died = self._death_behind(error) is not None
        return died and not self.control.stopped and self.restarts.possible(self.taken)

    def _death_behind(self, error: BaseException) -> LearnerDiedError | None:
        return death_in(error) or self._death

    async def _go_back(self, error: OverlapError) -> None:
        """Prepare another attempt after the error that ended one. Raises the error where no other one is made."""
        death = self._death_behind(error)
        if death is None or self.control.phase != "restarting":  # as was decided when it ended
            if death is not None and not self.control.stopped:
                self.restarts.refuse()
            raise error
        self.policy_saver.outcome = {"failure": str(death)}  # until there is a learner again
        self.resumed = await self.control.unless_stopped(self.restarts.go_back(death), _STOPPED_ON_ITS_WAY_BACK)
        self.course = EvaluationHistory.from_dict(self.resumed.state.evaluation)

    async def _rescue(self) -> None:
        """Keep what this session has learned, if that can be."""
        if self.taken:
            await self.policy_saver.rescue(self._progress.report_line)

    def _how_it_ended(self) -> str:
        if self.control.stopped:
            return "stopped"
        early = ALL_SOLVED if self._prompts.ended else "drained"
        return early if self.step < self.inputs.cfg.run.steps else "finished"

    def ended_by(self, error: BaseException) -> None:
        """Note in ``reason`` what ended the run early."""
        self.reason = reason_of(error)

    # --- the parts ------------------------------------------------------------------------------------------

    async def _begin(self, stack: AsyncExitStack, stopped: str) -> None:
        """Open the recorder and start the parts; ``stack`` closes them."""
        progress, at = self._progress, self.resumed.state
        self._lag = await stack.enter_async_context(LoopLag())
        self.recorder = Recorder(
            self.run,
            progress,
            self._lag,
            self._decode,
            earlier=self.resumed.rows,
            traced=(at.trace_offset, at.trace_end_us),
            keep=self.data if self.inputs.cfg.run.keep_rollouts else None,
        )
        stack.callback(self.recorder.close)
        stack.callback(self.policy_saver.clean_up)
        progress.phase(f"starting {'engine, learner and verifier' if self.rollouts is None else 'the learner'}")
        self.components = await self.control.unless_stopped(self._open(stack, self.recorder), stopped)
        self.restarts.begun = True
        self.policy_saver.outcome = {}
        self._evaluator = self._evaluations(progress)
        self.steps = StepLog(
            self.inputs,
            self.run,
            self.recorder,
            self._prompts,
            self.components.learner,
            self.course,
            lambda: self.seconds,
            at.step,
            at.version,
            at.groups,
            self.data,
            replayed=self.rollouts is not None,
        )

    async def _open(self, stack: AsyncExitStack, recorder: Recorder) -> Components:
        """Make the parts, start them side by side, and see to it that all are closed."""
        factory = PartFactory(
            self.inputs, self.placement, self.scratch, self.run.log, self.console.print, self.reaper.watch_pid
        )
        generator, verifier = self._sources(factory)
        learner = factory.learner()
        self.generator, self.verifier, self.learner = generator, verifier, learner
        parts: dict[str, Component] = {"verifier": verifier, "engine": generator, "learner": learner}
        await open_components(parts, stack, self.reaper, self.console.note, before_starts(generator, self.placement))
        if self.resumed.folder is not None:
            await learner.restore(self.resumed.folder / LEARNER)
        sent: Learner = learner if self.rollouts is None else cast(Learner, UnpublishedLearner(learner))
        return Components(recorder.traffic.generator(generator), recorder.traffic.verifier(verifier), sent)

    def _sources(self, factory: PartFactory) -> tuple[Generator, Verifier]:
        """An engine and a verifier, or what a run has kept of theirs."""
        if self.rollouts is not None:
            return SavedGenerator(self.rollouts), SavedVerifier(self.rollouts)
        engines, verifier = factory.training_engines(self.outages.append), factory.verifier()
        return factory.with_episodes(engines, verifier), verifier

    def _evaluations(self, progress: Progress) -> Evaluator:
        components = self.generator, self.verifier  # not the counted ones: these samples are no part of a step
        p, run = self.inputs, self.run
        return Evaluator(
            p.cfg, p.heldout, components, self._save_policy, run.best, progress, self.course, run.failures.add
        )

    async def _save_policy(self, path: Path) -> int:
        return await self.learner.save(path, kind="policy")

    def _decode(self, prompt: Prompt) -> str:
        return str(self.inputs.tokenizer.decode(list(prompt.token_ids)))

    # --- training -------------------------------------------------------------------------------------------

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; the death of the engine or of a learner rank ends it at once, wherever it stands."""
        main = asyncio.create_task(work, name="train")
        watchers = [asyncio.create_task(part.wait_dead()) for part in (self.generator, self.learner)]
        watchers.append(asyncio.create_task(self.control.wait_stopped()))
        try:
            await race(main, *watchers)
            if not main.done() and not self.control.stopped:
                await asyncio.wait([main], timeout=2.0)  # its own error names the stage and the sample
            for task in (main, *watchers):
                if task.done():
                    await task
                    return
        finally:
            for task in (main, *watchers):
                task.cancel()
            ends = await asyncio.gather(main, *watchers, return_exceptions=True)
            self._death = next((end for end in ends if isinstance(end, LearnerDiedError)), None)

    async def _train(self) -> None:
        p, at = self.inputs, self.resumed.state
        if given_up := self.resumed.given_up:
            self.console.print(f"{given_up} samples of the checkpoint are made again, for another run made them")
        carried = await asyncio.to_thread(self.resumed.carried.scored, self._prompts.at, now())
        self.resumed = replace(self.resumed, carried=Carryover())  # tens of MB, which nobody needs any more
        await overlapped(
            self.components,
            self.placement.counted(p.cfg),
            self._prompts,
            self._on_step,
            Position(at.step, at.version, at.groups, carried),
            self._on_ready,
            self._on_weights,
            self.control.loop_control,
            self._on_stall,
        )
        self._progress.phase("saving the policy")
        await self.policy_saver.save()
        await self._evaluator.end(self.step)

    async def _on_ready(self) -> None:
        self.control.enter("running")
        await self._evaluator.begin(self.resumed.state.step)
        assert self.recorder is not None
        self.recorder.begin()

    async def _on_weights(self, result: StepResult) -> None:
        assert self.recorder is not None
        began, self._evaluated = time.monotonic(), {}
        try:
            self._evaluated = await self._evaluator.after_step(result.batch.step)
        except BaseException:
            await self._note(result)  # the step was taken, whatever became of its evaluation
            raise
        if self._evaluated:
            self.recorder.evaluated(began)

    async def _on_step(self, result: StepResult) -> None:
        step, every = result.batch.step, self.inputs.cfg.run.save_every
        await self._note(result)
        if every and step % every == 0:
            await self._checkpoint(result.carried)

    async def _note(self, result: StepResult) -> None:
        assert self.steps is not None
        self.taken += 1
        await self.steps.note(result, self._evaluated)

    async def _on_save(self, carried: tuple[Scored, ...]) -> None:
        """A checkpoint that was requested, between two steps."""
        await self._checkpoint(carried)

    async def _checkpoint(self, carried: tuple[Scored, ...]) -> None:
        assert self.steps is not None
        await self.steps.checkpoint(carried)

    def _on_stall(self, pending: list[Pending], given_up: bool) -> None:
        self.console.print(stall_line(pending, self.inputs.cfg.run.stall_s, given_up))

    # --- what is told ---------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The last step that was taken, before the session too."""
        return self.steps.step if self.steps else self.resumed.state.step

    @property
    def seconds(self) -> float:
        """Wall time of the run, that before it was resumed included, s."""
        return self._earlier_s + time.monotonic() - self._began_s

    def _status(self) -> dict[str, Any]:
        return {
            "run": str(self.run.path),
            "step": self.step,
            "steps": self.inputs.cfg.run.steps,
            "version": self.steps.version if self.steps else self.resumed.state.version,
            "seconds": round(self.seconds, 1),
            "checkpoint": self.restarts.newest_checkpoint,
            "restarts": len(self.restarts.lines),
            "not_written": list(self.run.failures),
        }

    def summarize(self, seconds: float) -> dict[str, Any]:
        """Return the figures of the whole run, ``seconds`` being those of this session. When a step was taken they are
        written down and drawn; a start that failed leaves its directory free.
        """
        rows = self.recorder.rows if self.recorder else []
        figures = summary(
            rows,
            reason=self.reason,
            seconds=self._earlier_s + seconds,
            run_dir=self.run.path,
            lag=self._lag.run() if self.recorder else None,
            pass_at_1=self.course.summary(self.step if self.reason in ENDS else None),
            extra=self._extra(),
        )
        if self.taken:
            self.run.finish(figures)
            lost = len(figures["not_written"])
            with self.run.failures.tolerate_write_errors(RunFile.PICTURE):
                title = f"{self.inputs.cfg.model.policy}, {len(rows)} steps"
                write_picture(rows, self.run.picture, title=title, evaluations=self.course.curve())
            figures["not_written"] = list(self.run.failures)
            if len(figures["not_written"]) > lost:
                self.run.finish(figures)
        return figures

    def _extra(self) -> dict[str, Any]:
        p, solved = self.inputs, self._prompts.figures if self.recorder else {}
        return {
            "prompts": {"train": len(p.train), "heldout": len(p.heldout), **solved},
            "data": {split: intake.to_json() for split, intake in p.splits.items()},
            "policy": self.policy_saver.figures(),
            "restarts": self.restarts.lines,
            "engine_outages_s": self.outages,
            "not_written": list(self.run.failures),
        }
