"""One attempt at a run: its parts start, the loop runs between two evaluations, and all parts close again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from overlap.core import Learner
from overlap.core.aio import race
from overlap.core.clock import now
from overlap.core.errors import LearnerDiedError
from overlap.evaluation.history import EvaluationHistory, Evaluator
from overlap.pipeline.learning import Components
from overlap.pipeline.loop import Position, overlapped
from overlap.pipeline.prompts import PromptStream
from overlap.record.checkpoint import LEARNER
from overlap.record.kept_samples import Carryover
from overlap.record.progress import Progress, stall_line
from overlap.record.recorder import Recorder
from overlap.record.resume import Resumed
from overlap.record.sample_writer import SampleWriter
from overlap.run.kept_rollouts import UnpublishedLearner
from overlap.run.open_close import Component, open_components
from overlap.run.parts import PartFactory, before_starts
from overlap.run.run_events import RunEvents
from overlap.run.run_inputs import RunSetup
from overlap.run.save_policy import PolicySaver
from overlap.run.step_log import StepLog


@dataclass(frozen=True, slots=True)
class RunMemory:
    """Data that outlive an attempt. ``outages``: seconds from each death of an engine to the next response;
    ``seconds``: wall time of the run so far.
    """

    history: EvaluationHistory
    events: RunEvents
    policy: PolicySaver
    outages: list[float]
    seconds: Callable[[], float]


class Attempt:
    """An async context, in which parts are up from ``start`` on. ``recorder`` and ``steps`` are None until then."""

    def __init__(self, setup: RunSetup, begins: Resumed, memory: RunMemory) -> None:
        cfg, at = setup.inputs.cfg, begins.state
        self._setup, self._begins, self._memory = setup, begins, memory
        self.prompts = PromptStream.of(cfg, setup.inputs.train, at.groups, at.solved, setup.console.print)
        self.progress = Progress(setup.console, cfg.run.steps, done=at.step)
        self.recorder: Recorder | None = None
        self.steps: StepLog | None = None
        self.death: LearnerDiedError | None = None
        """The learner's, which may have ended this attempt."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Attempt:
        self._stack.enter_context(self.progress)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.__aexit__(*exc)

    @property
    def at(self) -> Position:
        """Position of the run, without the results that no step has taken."""
        begins = self._begins.state
        return self.steps.at if self.steps else Position(begins.step, begins.version, begins.groups)

    @property
    def taken(self) -> int:
        """Steps of this attempt."""
        return self.at.step - self._begins.state.step

    # --- the parts ------------------------------------------------------------------------------------------

    async def start(self, stopped: str) -> None:
        """Open the recorder and start the parts; a stop raises StoppedError with ``stopped``."""
        setup, memory, at = self._setup, self._memory, self._begins.state
        run, inputs, cfg = setup.run, setup.inputs, setup.inputs.cfg
        recorder = self.recorder = Recorder(
            run,
            self.progress,
            SampleWriter(
                run,
                setup.text_of,
                lambda prompt, answer: inputs.task.program(prompt, answer),
                cfg.run.samples,
                critic=cfg.learn.advantage == "gae",
                data=setup.data,
            ),
            earlier=self._begins.rows,
            traced=(at.trace_offset, at.trace_end_us),
            max_staleness=cfg.rollout.max_staleness,
        )
        self._stack.callback(recorder.close)
        self._stack.callback(memory.policy.clean_up)
        self.progress.phase(f"starting {'engine, learner and verifier' if setup.rollouts is None else 'the learner'}")
        self._components = await setup.control.unless_stopped(self._open(recorder), stopped)
        evaluator = Evaluator(
            cfg,
            inputs.heldout,
            (self.parts.generator, self.parts.verifier),  # uncounted: samples of evaluations are no part of a step
            self.save_policy,
            run.best,
            self.progress,
            memory.history,
            run.failures.add,
            recorder.evaluation,
        )
        parts = recorder, self.prompts, evaluator, memory.events, self.parts.learner
        self.steps = StepLog(setup, self.at, *parts, memory.seconds)

    async def _open(self, recorder: Recorder) -> Components:
        """Make the parts, start them concurrently, and make sure that all are closed. Returns what the loop uses."""
        setup, console = self._setup, self._setup.console
        factory = PartFactory(
            setup.inputs, setup.placement, setup.scratch, setup.run.log, console.print, setup.reaper.watch_pid
        )
        made = self.parts = factory.training_parts(setup.rollouts, self._memory.outages.append)
        named: dict[str, Component] = {"verifier": made.verifier, "engine": made.generator, "learner": made.learner}
        waits = before_starts(made.generator, setup.placement)
        await open_components(named, self._stack, setup.reaper, console.note, waits)
        if self._begins.folder is not None:
            await made.learner.restore(self._begins.folder / LEARNER)
        learner = made.learner if setup.rollouts is None else cast(Learner, UnpublishedLearner(made.learner))
        traffic = recorder.traffic
        return Components(traffic.generator(made.generator), traffic.verifier(made.verifier), learner)

    async def save_policy(self, path: Path) -> int:
        """Write the learner's policy; returns its version."""
        return await self.parts.learner.save(path, kind="policy")

    # --- training -------------------------------------------------------------------------------------------

    async def train(self) -> None:
        """Take the steps, and save the policy. The death of the engine or of a learner rank ends it at once."""
        control = self._setup.control
        main = asyncio.create_task(self._train(), name="train")
        watchers = [asyncio.create_task(part.wait_dead()) for part in (self.parts.generator, self.parts.learner)]
        watchers.append(asyncio.create_task(control.wait_stopped()))
        try:
            await race(main, *watchers)
            if not main.done() and not control.stopped:
                await asyncio.wait([main], timeout=2.0)  # its own error names the stage and the sample
            for task in (main, *watchers):
                if task.done():
                    await task
                    return
        finally:
            for task in (main, *watchers):
                task.cancel()
            ends = await asyncio.gather(main, *watchers, return_exceptions=True)
            self.death = next((end for end in ends if isinstance(end, LearnerDiedError)), None)

    async def _train(self) -> None:
        setup, steps, begins = self._setup, self.steps, self._begins
        assert steps is not None
        if begins.given_up:
            setup.console.print(f"{begins.given_up} samples of the checkpoint are made again: {begins.why_given_up}")
        carried = await asyncio.to_thread(begins.carried.scored, self.prompts.at, now())
        self._begins = replace(begins, carried=Carryover())  # tens of MB, which are not needed any more

        async def on_ready() -> None:
            setup.control.enter("running")
            await steps.begin()

        await overlapped(
            self._components,
            setup.placement.counted(setup.inputs.cfg),
            self.prompts,
            steps.on_step,
            replace(self.at, carried=carried),
            on_ready,
            steps.on_weights,
            setup.control.loop_control,
            lambda pending, given_up: setup.console.print(stall_line(pending, setup.inputs.cfg.run.stall_s, given_up)),
        )
        self.progress.phase("saving the policy")
        await self._memory.policy.save()
        await steps.end()
