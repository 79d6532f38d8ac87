"""One training session: doors open, the pipeline runs between two evaluations, doors close in reverse order."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from overlap.atomic import threaded, to_its_end
from overlap.clock import now
from overlap.core import Generator, Learner, Prompt, Scored, Verifier
from overlap.errors import LearnerDiedError, OverlapError
from overlap.evaluation import EvaluationHistory, Evaluator
from overlap.pipeline import Doors, Pending, Position, PromptStream, StepResult, overlapped
from overlap.placement import Placement
from overlap.prepare import Prepared
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
    RunState,
    data_digest,
    is_complete,
    path_of,
    save_carryover,
    save_state,
    stall_line,
    summary,
    write_picture,
    writing,
)
from overlap.replay import SavedGenerator, SavedVerifier, UnpublishedLearner
from overlap.run.control import Steering
from overlap.run.open_close import Door, open_doors
from overlap.run.parts import Sites, before_starts, learner_of, rolling, sandbox_verifier, steady_engines
from overlap.run.restarts import INTERRUPTED, Restarts, death_in, reason_of
from overlap.run.save_policy import Keeper

_STOPPED_AT_THE_START = "the run was stopped before its first step"
_STOPPED_ON_ITS_WAY_BACK = "the run was stopped while it went back to a checkpoint: --resume goes on from there"
ALL_SOLVED = "all prompts solved"
ENDS = ("finished", "drained", ALL_SOLVED)  # in order


@dataclass
class Session:
    """One run of the pipeline on real parts. ``reason`` says how it ended, ``keeper`` has its policy."""

    prepared: Prepared
    placement: Placement
    run: RunDir
    scratch: Path
    console: Console
    reaper: Reaper
    resumed: Resumed = BEGINNING
    data: str = ""
    """Digest of the prompts, for checkpoints."""
    steering: Steering = field(default_factory=Steering)
    rollouts: Rollouts | None = None
    """Samples to train from in the place of an engine and a verifier."""
    reason: str = INTERRUPTED
    course: EvaluationHistory = field(init=False)
    keeper: Keeper = field(init=False)
    restarts: Restarts = field(init=False)
    recorder: Recorder | None = None
    taken: int = 0
    """Steps taken by this session."""
    outages: list[float] = field(default_factory=list)
    """Seconds from each death of the engine to the next response."""

    def __post_init__(self) -> None:
        self.course = EvaluationHistory.from_dict(self.resumed.state.evaluation)
        self.keeper = Keeper(self.run, self.prepared.policy, self._save_policy)
        self.restarts = Restarts(self.run, self.prepared.cfg, self.console.print)
        self.sites = Sites(self.prepared, self.placement, self.console.print)
        self._step, self._earlier_s = self.resumed.state.step, self.resumed.state.seconds
        self._death: LearnerDiedError | None = None

    def ended_by(self, error: BaseException) -> None:
        """Note in ``reason`` what ended the run early."""
        self.reason = reason_of(error)

    async def __call__(self) -> None:
        """Train. Raises OverlapErrors; cancelling it saves what was learned and closes everything.

        When the learner has died, everything is closed and begun again from the newest checkpoint, a bounded number of
        times (``Restarts``).
        """
        self._began_s = time.monotonic()
        self.run.failures.report_to(self.console.print)
        async with self.steering.attached(self._about, self._on_save, self.console.print):
            while True:
                try:
                    return await self._attempt()
                except OverlapError as error:
                    await self._go_back(error)

    def _goes_back(self, error: BaseException) -> bool:
        """Whether the error that ends an attempt is a death of the learner that another attempt shall mend."""
        died = self._death_behind(error) is not None
        return died and not self.steering.stopped and self.restarts.possible(self.taken)

    def _death_behind(self, error: BaseException) -> LearnerDiedError | None:
        return death_in(error) or self._death

    async def _go_back(self, error: OverlapError) -> None:
        """Make ready for another attempt after the error that ended one; raises it where there is none."""
        death = self._death_behind(error)
        if death is None or self.steering.phase != "restarting":  # as was decided when it ended
            if death is not None and not self.steering.stopped:
                self.restarts.refuse()
            raise error
        self.keeper.kept = {"failure": str(death)}  # until there is a learner again
        self.resumed = await self.steering.unless_stopped(self.restarts.back(death), _STOPPED_ON_ITS_WAY_BACK)
        self.course = EvaluationHistory.from_dict(self.resumed.state.evaluation)

    async def _attempt(self) -> None:
        cfg, at = self.prepared.cfg, self.resumed.state
        self._step, self._consumed, self._version, self._death = at.step, at.groups, at.version, None
        again = bool(self.restarts.told)
        self.steering.enter(*(("restarting", self.restarts.count()) if again else ("starting", "")))
        self._prompts = PromptStream.of(cfg, self.prepared.train, at.groups, at.solved, self.console.print)
        async with AsyncExitStack() as stack:
            progress = self._progress = stack.enter_context(Progress(self.console, cfg.run.steps, done=at.step))
            try:
                await self._begin(stack, _STOPPED_ON_ITS_WAY_BACK if again else _STOPPED_AT_THE_START)
                await self._guarded(self._train())
            except BaseException as error:
                if self._goes_back(error):
                    self.steering.enter("restarting", self.restarts.count(coming=1))
                else:
                    self.steering.enter("ending")
                    await self._rescue()
                raise
            if self.steering.stopped:
                await self._rescue()
            self.reason = self._how_it_ended()
            self.steering.enter("ending")
            progress.phase("closing")

    async def _begin(self, stack: AsyncExitStack, stopped: str) -> None:
        """Open the recorder and the doors; ``stack`` closes them."""
        progress, at = self._progress, self.resumed.state
        self._lag = await stack.enter_async_context(LoopLag())
        self.recorder = Recorder(
            self.run,
            progress,
            self._lag,
            self._decode,
            earlier=self.resumed.rows,
            traced=(at.trace_offset, at.trace_end_us),
            keep=self.data if self.prepared.cfg.run.keep_rollouts else None,
        )
        stack.callback(self.recorder.close)
        stack.callback(self.keeper.sweep)
        progress.phase(f"starting {'engine, learner and verifier' if self.rollouts is None else 'the learner'}")
        self.doors = await self.steering.unless_stopped(self._open(stack), stopped)
        self.restarts.begun = True
        self.keeper.kept = {}
        self._evaluator = self._evaluations(progress)

    async def _rescue(self) -> None:
        """Keep what this session has learned, if that can be."""
        if self.taken:
            await self.keeper.rescue(self._progress.report_line)

    async def _open(self, stack: AsyncExitStack) -> Doors:
        """Make the doors, start them side by side, and see to it that all are closed."""
        generator, verifier = self._sources()
        learner = learner_of(self.prepared, self.placement, self.scratch, log=self.run.log, sites=self.sites)
        self.generator, self.verifier, self.learner = generator, verifier, learner
        doors: dict[str, Door] = {"verifier": verifier, "engine": generator, "learner": learner}
        await open_doors(doors, stack, self.reaper, self.console.note, before_starts(generator, self.placement))
        if self.resumed.folder is not None:
            await learner.restore(self.resumed.folder / LEARNER)
        assert self.recorder is not None
        traffic = self.recorder.traffic
        sent: Learner = learner if self.rollouts is None else cast(Learner, UnpublishedLearner(learner))
        return Doors(traffic.generator(generator), traffic.verifier(verifier), sent)

    def _sources(self) -> tuple[Generator, Verifier]:
        """An engine and a verifier, or what a run has kept of theirs."""
        if self.rollouts is not None:
            return SavedGenerator(self.rollouts), SavedVerifier(self.rollouts)
        p, scratch, log, tell = self.prepared, self.scratch, self.run.log, self.console.print
        watch, went_on = self.reaper.watch_pid, self.outages.append
        engines = steady_engines(
            p, self.placement, scratch, log=log, tell=tell, watch=watch, went_on=went_on, sites=self.sites
        )
        verifier = sandbox_verifier(p, self.placement, scratch, log=log, tell=tell)
        return rolling(p, engines, verifier, scratch), verifier

    def _evaluations(self, progress: Progress) -> Evaluator:
        doors = self.generator, self.verifier  # not the counted ones: these samples are no part of a step
        p, run = self.prepared, self.run
        return Evaluator(p.cfg, p.heldout, doors, self._save_policy, run.best, progress, self.course, run.failures.add)

    def _about(self) -> dict[str, Any]:
        return {
            "run": str(self.run.path),
            "step": self._step,
            "steps": self.prepared.cfg.run.steps,
            "version": self._version,
            "seconds": round(self.seconds, 1),
            "checkpoint": self.restarts.goal,
            "restarts": len(self.restarts.told),
            "not_written": list(self.run.failures),
        }

    def _how_it_ended(self) -> str:
        if self.steering.stopped:
            return "stopped"
        early = ALL_SOLVED if self._prompts.ended else "drained"
        return early if self._step < self.prepared.cfg.run.steps else "finished"

    async def _save_policy(self, path: Path) -> int:
        return await self.learner.save(path, kind="policy")

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; the death of the engine or of a learner rank ends it at once, wherever it stands."""
        main = asyncio.create_task(work, name="train")
        watchers = [asyncio.create_task(door.wait_dead()) for door in (self.generator, self.learner)]
        watchers.append(asyncio.create_task(self.steering.wanted_end()))
        try:
            await asyncio.wait([main, *watchers], return_when=asyncio.FIRST_COMPLETED)
            if not main.done() and not self.steering.stopped:
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
        p, at = self.prepared, self.resumed.state
        if given_up := self.resumed.given_up:
            self.console.print(f"{given_up} samples of the checkpoint are made again, for another run made them")
        carried = await asyncio.to_thread(self.resumed.carried.scored, self._prompts.at, now())
        self.resumed = replace(self.resumed, carried=Carryover())  # tens of MB, which nobody needs any more
        position = Position(at.step, at.version, at.groups, carried)
        await overlapped(
            self.doors,
            self.placement.counted(p.cfg),
            self._prompts,
            self._on_step,
            position,
            self._on_ready,
            self._on_weights,
            self.steering.control,
            self._on_stall,
        )
        self._progress.phase("saving the policy")
        await self.keeper.save()
        await self._evaluator.end(self._step)

    def _on_stall(self, pending: list[Pending], given_up: bool) -> None:
        self.console.print(stall_line(pending, self.prepared.cfg.run.stall_s, given_up))

    async def _on_ready(self) -> None:
        self.steering.enter("running")
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
        step, every = result.batch.step, self.prepared.cfg.run.save_every
        await self._note(result)
        if every and step % every == 0:
            await self._checkpoint(result.carried)

    async def _note(self, result: StepResult) -> None:
        assert self.recorder is not None
        batch = result.batch
        self._consumed += len(batch.groups) + len(batch.dropped)
        self._version = result.report.version if result.report else self._version
        self._step = batch.step
        self.taken += 1
        beside = {"rollout/parity_gap": math.nan} if self.rollouts is not None and result.report else {}
        beside |= {f"rollout/prompts_{name}": count for name, count in self._prompts.figures.items()}
        await self.recorder.step(result, self._evaluated | beside)

    async def _on_save(self, carried: tuple[Scored, ...]) -> None:
        """A checkpoint that was asked for, between two steps."""
        self.data = self.data or await asyncio.to_thread(data_digest, self.prepared.train)
        await self._checkpoint(carried)

    async def _checkpoint(self, carried: tuple[Scored, ...]) -> None:
        """Written while the loop's other tasks run. One that cannot be written is none, and costs no training. Raises
        LearnerError.
        """
        root, step, best = self.run.checkpoints, self._step, self.course.best
        state = self._state(len(carried))
        spare = {best["step"]} if best else set()
        with self.run.failures.tolerate_write_errors(RunFile.CHECKPOINTS):
            if is_complete(folder := path_of(root, step)):  # the learner stands where it stood
                await to_its_end(save_carryover, folder, carried, now())
                await to_its_end(save_state, folder, state)
            else:
                made = writing(root, step, keep=self.prepared.cfg.run.keep_last, spare=spare)
                async with threaded(made) as folder:
                    await to_its_end(save_carryover, folder, carried, now())
                    await self.doors.learner.save(folder / LEARNER, kind="state")
                    await to_its_end(save_state, folder, state)
            self.run.failures.recovered(str(RunFile.CHECKPOINTS))

    def _state(self, carried: int) -> RunState:
        assert self.recorder is not None
        traced, traced_us = self.recorder.traced
        return RunState(
            step=self._step,
            version=self._version,
            groups=self._consumed,
            trace_offset=traced,
            trace_end_us=traced_us,
            config=self.prepared.cfg.to_dict(),
            data=self.data,
            seconds=self.seconds,
            evaluation=self.course.to_dict(),
            carried=carried,
            **self.run.offsets,
            solved=self._prompts.known,
        )

    @property
    def seconds(self) -> float:
        """Wall time of the run, that before it was resumed included, s."""
        return self._earlier_s + time.monotonic() - self._began_s

    def _decode(self, prompt: Prompt) -> str:
        return str(self.prepared.tokenizer.decode(list(prompt.token_ids)))

    def summarize(self, seconds: float) -> dict[str, Any]:
        """Figures of the whole run, ``seconds`` being those of this session. Written down, and then drawn, when a step
        was taken: a start that failed leaves its directory free.
        """
        rows = self.recorder.rows if self.recorder else []
        figures = summary(
            rows,
            reason=self.reason,
            seconds=self._earlier_s + seconds,
            run_dir=self.run.path,
            lag=self._lag.run() if self.recorder else None,
            pass_at_1=self.course.summary(self._step if self.reason in ENDS else None),
            extra=self._extra(),
        )
        if self.taken:
            self.run.finish(figures)
            lost = len(figures["not_written"])
            with self.run.failures.tolerate_write_errors(RunFile.PICTURE):
                title = f"{self.prepared.cfg.model.policy}, {len(rows)} steps"
                write_picture(rows, self.run.picture, title=title, evaluations=self.course.curve())
            figures["not_written"] = list(self.run.failures)
            if len(figures["not_written"]) > lost:
                self.run.finish(figures)
        return figures

    def _extra(self) -> dict[str, Any]:
        p, solved = self.prepared, self._prompts.figures if self.recorder else {}
        return {
            "prompts": {"train": len(p.train), "heldout": len(p.heldout), **solved},
            "data": {split: intake.to_json() for split, intake in p.intakes.items()},
            "policy": self.keeper.figures(),
            "restarts": self.restarts.told,
            "engine_outages_s": self.outages,
            "not_written": list(self.run.failures),
        }
