"""A training session: parts start, the pipeline runs between two evaluations, parts close in reverse order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from overlap.aio import race
from overlap.clock import now
from overlap.core import Learner, Prompt, Scored
from overlap.errors import LearnerDiedError, OverlapError
from overlap.evaluation.history import EvaluationHistory, Evaluator
from overlap.hooks.callback import CallbackRun
from overlap.hooks.thread import CallbackThread
from overlap.hooks.trackers import Trackers
from overlap.inspect.report import run_that_ends, warnings_at_the_end
from overlap.pipeline.flow import Pending
from overlap.pipeline.learning import Components
from overlap.pipeline.loop import Position, overlapped
from overlap.pipeline.prompts import PromptStream
from overlap.placement.seats import Placement
from overlap.process.reaper import Reaper
from overlap.record.checkpoint import LEARNER
from overlap.record.kept_samples import Carryover, KeptSamples
from overlap.record.logs import Console
from overlap.record.looplag import LoopLag
from overlap.record.progress import Progress, stall_line
from overlap.record.recorder import Recorder
from overlap.record.report import summary
from overlap.record.resume import BEGINNING, Resumed
from overlap.record.run_exit import RunExit
from overlap.record.run_summary import RunSummary
from overlap.record.rundir import RunDir
from overlap.record.sample_writer import SampleWriter
from overlap.run.control import RunControl
from overlap.run.kept_rollouts import UnpublishedLearner
from overlap.run.open_close import Component, open_components
from overlap.run.parts import PartFactory, before_starts
from overlap.run.restarts import Restarts, death_in
from overlap.run.run_end import write_end
from overlap.run.run_events import RunEvents
from overlap.run.run_inputs import RunInputs
from overlap.run.save_policy import PolicySaver
from overlap.run.step_log import StepLog

_STOPPED_AT_THE_START = "the run was stopped before its first step"
_STOPPED_ON_ITS_WAY_BACK = "the run was stopped while it went back to a checkpoint: --resume goes on from there"


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
    rollouts: KeptSamples | None = None
    """Samples to train from in the place of an engine and a verifier."""
    callbacks: Sequence[Any] = ()
    """As ``check_callbacks`` returned them."""
    trackers: Mapping[str, Any] = field(default_factory=dict)
    """By name, as ``named_trackers`` returned them."""
    reason: str = RunExit.INTERRUPTED.value
    course: EvaluationHistory = field(init=False)
    policy_saver: PolicySaver = field(init=False)
    events: RunEvents = field(init=False)
    restarts: Restarts = field(init=False)
    recorder: Recorder | None = None
    steps: StepLog | None = None
    """Of the attempt that goes on, or was the last; None until its parts are up."""
    outages: list[float] = field(default_factory=list)
    """Seconds from each death of the engine to the next response."""

    def __post_init__(self) -> None:
        self.course = EvaluationHistory.from_dict(self.resumed.state.evaluation)
        self.policy_saver = PolicySaver(self.run, self.inputs.policy, self._save_policy, self.console.print)
        self.restarts = Restarts(self.run, self.inputs.cfg, self.console.print)
        self.events = self._make_events()
        self._earlier_s, self._taken = self.resumed.state.seconds, 0
        self._death: LearnerDiedError | None = None

    def _make_events(self) -> RunEvents:
        cfg, report_line = self.inputs.cfg, self.console.print
        run = CallbackRun(self.run.path, cfg, self.control, self._text_of)
        thread = CallbackThread(self.callbacks, run, report_line)
        trackers = Trackers(self.trackers, run, self.run.failures)
        why = "" if cfg.run.eval_samples else "run.eval_samples is 0"
        why = why or ("" if self.inputs.heldout else "there are no held-out prompts")
        return RunEvents(thread, trackers, self.control.loop_control, report_line, why)

    def _text_of(self, prompt: Prompt) -> str:
        return str(self.inputs.tokenizer.decode(list(prompt.token_ids)))

    # --- attempts -------------------------------------------------------------------------------------------

    async def __call__(self) -> None:
        """Train. Raises OverlapErrors; cancelling it saves what was learned and closes everything.

        When the learner has died, everything is closed and begun again from the newest checkpoint, a bounded number of
        times (``Restarts``).
        """
        self._began_s = time.monotonic()
        self.run.failures.report_to(self.console.print)
        self.control.enter("starting")
        async with self.control.attached(self._status, self._on_save, self.console.print):
            while True:
                try:
                    return await self._attempt()
                except OverlapError:
                    if self.control.phase != "restarting":
                        raise
                    await self._go_back()

    async def _attempt(self) -> None:
        """Train once. Of an attempt that another one follows, ``_death`` is the reason, and the phase "restarting"."""
        cfg, at = self.inputs.cfg, self.resumed.state
        self._taken, self.steps, self._death = self.taken, None, None
        self._prompts = PromptStream.of(cfg, self.inputs.train, at.groups, at.solved, self.console.print)
        async with AsyncExitStack() as stack:
            progress = self._progress = stack.enter_context(Progress(self.console, cfg.run.steps, done=at.step))
            try:
                stopped = _STOPPED_ON_ITS_WAY_BACK if self.restarts.lines else _STOPPED_AT_THE_START
                await self._guarded(self._train(*await self._begin(stack, stopped)))
            except BaseException as error:
                self._death = death_in(error) or self._death
                if self._death and not self.control.stopped and self.restarts.possible(self.taken):
                    self.control.enter("restarting", self.restarts.coming)
                else:
                    self.control.enter("ending")
                    await self._rescue()
                raise
            if self.control.stopped:
                await self._rescue()
            self.reason = self._how_it_ended()
            self.control.enter("ending")
            progress.phase("closing")

    async def _go_back(self) -> None:
        """Prepare another attempt after the learner's death."""
        assert self._death is not None
        self.policy_saver.outcome = {"failure": str(self._death)}  # until there is a learner again
        self.resumed = await self.control.unless_stopped(self.restarts.go_back(self._death), _STOPPED_ON_ITS_WAY_BACK)
        self.course = EvaluationHistory.from_dict(self.resumed.state.evaluation)

    async def _rescue(self) -> None:
        """Keep what this session has learned, if that can be."""
        if self.taken:
            await self.policy_saver.rescue()

    def _how_it_ended(self) -> str:
        if self.control.stopped:
            return RunExit.STOPPED.value
        if by := self.control.loop_control.ended_by:
            return f"{RunExit.BY_CALLBACK} {by}"
        early = RunExit.ALL_SOLVED if self._prompts.ended else RunExit.DRAINED
        return (early if self.step < self.inputs.cfg.run.steps else RunExit.FINISHED).value

    # --- the parts ------------------------------------------------------------------------------------------

    async def _begin(self, stack: AsyncExitStack, stopped: str) -> tuple[Components, StepLog]:
        """Open the recorder and start the parts; ``stack`` closes them."""
        p, run, progress, at = self.inputs, self.run, self._progress, self.resumed.state
        self._lag = await stack.enter_async_context(LoopLag())
        recorder = self.recorder = Recorder(
            run,
            progress,
            self._lag,
            self._sample_writer(),
            earlier=self.resumed.rows,
            traced=(at.trace_offset, at.trace_end_us),
            max_staleness=p.cfg.rollout.max_staleness,
        )
        stack.callback(recorder.close)
        stack.callback(self.policy_saver.clean_up)
        progress.phase(f"starting {'engine, learner and verifier' if self.rollouts is None else 'the learner'}")
        components = await self.control.unless_stopped(self._open(stack, recorder), stopped)
        self.restarts.begun = True
        self.policy_saver.outcome = {}
        uncounted = self.parts.generator, self.parts.verifier  # samples of evaluations are no part of a step
        evaluator = Evaluator(
            p.cfg,
            p.heldout,
            uncounted,
            self._save_policy,
            run.best,
            progress,
            self.course,
            run.failures.add,
            recorder.evaluation,
        )
        self.steps = StepLog(
            p,
            run,
            recorder,
            self._prompts,
            self.parts.learner,
            evaluator,
            self.events,
            lambda: self.seconds,
            at.step,
            at.version,
            at.groups,
            self.data,
            replayed=self.rollouts is not None,
            report_line=self.console.print,
        )
        return components, self.steps

    def _sample_writer(self) -> SampleWriter:
        p = self.inputs
        return SampleWriter(
            self.run,
            self._text_of,
            lambda prompt, answer: p.task.program(prompt, answer),
            p.cfg.run.samples,
            critic=p.cfg.learn.advantage == "gae",
            data=self.data,
        )

    async def _open(self, stack: AsyncExitStack, recorder: Recorder) -> Components:
        """Make the parts, start them side by side, and see to it that all are closed. Returns what the loop uses."""
        factory = PartFactory(
            self.inputs, self.placement, self.scratch, self.run.log, self.console.print, self.reaper.watch_pid
        )
        made = self.parts = factory.training_parts(self.rollouts, self.outages.append)
        named: dict[str, Component] = {"verifier": made.verifier, "engine": made.generator, "learner": made.learner}
        waits = before_starts(made.generator, self.placement)
        await open_components(named, stack, self.reaper, self.console.note, waits)
        if self.resumed.folder is not None:
            await made.learner.restore(self.resumed.folder / LEARNER)
        learner = made.learner if self.rollouts is None else cast(Learner, UnpublishedLearner(made.learner))
        traffic = recorder.traffic
        return Components(traffic.generator(made.generator), traffic.verifier(made.verifier), learner)

    async def _save_policy(self, path: Path) -> int:
        return await self.parts.learner.save(path, kind="policy")

    # --- training -------------------------------------------------------------------------------------------

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; the death of the engine or of a learner rank ends it at once, wherever it stands."""
        main = asyncio.create_task(work, name="train")
        watchers = [asyncio.create_task(part.wait_dead()) for part in (self.parts.generator, self.parts.learner)]
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

    async def _train(self, components: Components, steps: StepLog) -> None:
        at = self.resumed.state
        if given_up := self.resumed.given_up:
            self.console.print(f"{given_up} samples of the checkpoint are made again: {self.resumed.why_given_up}")
        carried = await asyncio.to_thread(self.resumed.carried.scored, self._prompts.at, now())
        self.resumed = replace(self.resumed, carried=Carryover())  # tens of MB, which nobody needs any more

        async def on_ready() -> None:
            self.control.enter("running")
            await steps.begin()

        await overlapped(
            components,
            self.placement.counted(self.inputs.cfg),
            self._prompts,
            steps.on_step,
            Position(at.step, at.version, at.groups, carried),
            on_ready,
            steps.on_weights,
            self.control.loop_control,
            self._on_stall,
        )
        self._progress.phase("saving the policy")
        await self.policy_saver.save()
        await steps.end()

    async def _on_save(self, carried: tuple[Scored, ...]) -> None:
        """Write a checkpoint that was requested, between two steps."""
        assert self.steps is not None
        await self.steps.checkpoint(carried)

    def _on_stall(self, pending: list[Pending], given_up: bool) -> None:
        self.console.print(stall_line(pending, self.inputs.cfg.run.stall_s, given_up))

    # --- what is told ---------------------------------------------------------------------------------------

    @property
    def taken(self) -> int:
        """Steps taken by this session, those that a restart has undone included."""
        return self._taken + (self.steps.taken if self.steps else 0)

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

    def summarize(self, seconds: float) -> RunSummary:
        """Return the figures of the whole run, ``seconds`` being those of this session. When a step was taken they are
        written down and drawn; a start that failed leaves its directory free.
        """
        rows = self.recorder.rows if self.recorder else []
        left = run_that_ends(self.run.path, rows)
        figures = summary(
            rows,
            reason=self.reason,
            seconds=self._earlier_s + seconds,
            run_dir=self.run.path,
            lag=self._lag.run() if self.recorder else None,
            evaluations=self.course.summary(self.step if RunExit.of(self.reason).measured else None),
            measure=self.course.measure,
            warnings=warnings_at_the_end(left) if self.taken else (),
            extra=self._extra(),
        )
        if self.taken:
            title = f"{self.inputs.cfg.model.policy}, {len(rows)} steps"
            write_end(self.run, figures, left, title)
        return cast(RunSummary, figures)

    def tell_end(self, figures: RunSummary, error: BaseException | None) -> None:
        """Tell callbacks and trackers that the run has ended, by ``error`` or in order; ``figures`` and summary.json
        then have what could not be told. Raises CallbackError, unless there is an ``error``.
        """
        try:
            self.events.tell_end(self.step, self.reason, figures if self.taken else {}, error)
        finally:
            known = {"callbacks": self.events.figures, "not_written": list(self.run.failures)}
            if self.taken and any(figures.get(name) != value for name, value in known.items()):
                figures.update(cast(RunSummary, known))
                self.run.finish(figures)

    def _extra(self) -> dict[str, Any]:
        p, solved = self.inputs, self._prompts.figures if self.recorder else {}
        return {
            "prompts": {"train": len(p.train), "heldout": len(p.heldout), **solved},
            "data": {split: intake.to_json() for split, intake in p.splits.items()},
            "policy": self.policy_saver.figures(),
            "restarts": self.restarts.lines,
            "engine_outages_s": self.outages,
            "not_written": list(self.run.failures),
            "callbacks": self.events.figures,
        }
