"""One training session: doors open, the pipeline runs between two evaluations, doors close in reverse order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overlap.config import Config
from overlap.core import Generator, Learner, Prompt, Task, Verifier
from overlap.errors import OverlapError
from overlap.evaluation import Course, Evaluator
from overlap.pipeline import Doors, Intake, Position, PromptStream, StepResult, overlapped
from overlap.process import Warden
from overlap.record import (
    BEGINNING,
    LEARNER,
    Console,
    LoopLag,
    Progress,
    Recorder,
    Resumed,
    RunDir,
    RunState,
    latest,
    save_state,
    summary,
    write_picture,
    writing,
)

CLOSE_S = 25.0  # a door that has not closed by then is left to the warden, which kills
KEEP_S = 30.0  # for an interrupted run to save its policy; larger policies get the time of KEEP_BYTES_PER_S
KEEP_BYTES_PER_S = 50e6


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that bad input could spoil, checked before anything is started."""

    cfg: Config
    task: Task
    policy: Path
    tokenizer: Any
    train: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    intakes: Mapping[str, Intake] = field(default_factory=dict)
    """By split: what the task's data gave, with the rows that are left out."""
    references: str = ""
    """What is known of the training set's reference solutions; "" where it has none."""


@dataclass
class Session:
    """One run of the pipeline on real parts. ``reason`` says how it ended, ``kept`` where its policy is."""

    prepared: Prepared
    run: RunDir
    scratch: Path
    console: Console
    warden: Warden
    resumed: Resumed = BEGINNING
    data: str = ""
    """Digest of the prompts, for checkpoints."""
    reason: str = "interrupted"
    course: Course = field(init=False)
    recorder: Recorder | None = None
    taken: int = 0
    """Steps taken by this session."""
    kept: dict[str, Any] = field(default_factory=dict)
    """``path`` and ``version`` of the policy that was saved, or ``failure``, why it was not."""
    _saving: asyncio.Task[None] | None = None
    _skipped: bool = False

    def __post_init__(self) -> None:
        self.course = Course.from_dict(self.resumed.state.evaluation)

    async def __call__(self) -> None:
        """Train. Raises OverlapErrors; cancelling it saves what was learned and closes everything."""
        cfg, at = self.prepared.cfg, self.resumed.state
        self._consumed, self._version = at.groups, at.version
        self._began_s = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self.run.losses.say_to(self.console.print)
        async with AsyncExitStack() as stack:
            progress = stack.enter_context(Progress(self.console, cfg.run.steps, done=at.step))
            self._progress = progress
            self._lag = await stack.enter_async_context(LoopLag())
            self.recorder = Recorder(
                self.run,
                progress,
                self._lag,
                self._decode,
                earlier=self.resumed.rows,
                traced=(at.trace_offset, at.trace_end_us),
            )
            stack.callback(self.recorder.close)
            stack.callback(self._sweep)
            progress.phase("starting engine, learner and verifier")
            self.doors = await self._open(stack)
            self._evaluator = self._evaluations(progress)
            try:
                await self._guarded(self._train())
            except BaseException:
                await self._keep_policy()
                raise
            self.reason = "finished"
            progress.phase("closing")

    async def _open(self, stack: AsyncExitStack) -> Doors:
        """Make the doors, start them side by side, and see to it that all are closed."""
        from overlap.generate import VllmGenerator
        from overlap.learner import DeepSpeedLearner
        from overlap.verify import SandboxVerifier

        p, log = self.prepared, self.run.log
        updates = p.cfg.run.steps * p.cfg.learn.updates_per_step
        verifier = SandboxVerifier(p.cfg, p.task, log=log, scratch=self.scratch, tell=self.console.print)
        generator = VllmGenerator(p.cfg, p.policy, self.scratch, log=log)
        learner = DeepSpeedLearner(p.cfg, p.policy, self.scratch, log=log, total_updates=updates)
        self.generator, self.verifier, self.learner = generator, verifier, learner
        for name, door in (("verifier", verifier), ("engine", generator), ("learner", learner)):
            stack.push_async_callback(self._close, name, door.close)
        try:
            await _start_all(verifier, generator, learner)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors.exceptions[0].__cause__
        finally:
            for pid in (*verifier.pids(), *generator.pids(), *learner.pids()):
                self.warden.watch_pid(pid)
        if self.resumed.folder is not None:
            await learner.restore(self.resumed.folder / LEARNER)
        assert self.recorder is not None
        traffic = self.recorder.traffic
        return Doors(traffic.generator(generator), traffic.verifier(verifier), learner)

    def _evaluations(self, progress: Progress) -> Evaluator:
        async def save(path: Path) -> None:
            await self.learner.save(path, kind="policy")

        doors = self.generator, self.verifier  # not the counted ones: these samples are no part of a step
        p, run = self.prepared, self.run
        return Evaluator(p.cfg, p.heldout, doors, save, run.best, progress, self.course, run.losses.add)

    async def _close(self, name: str, close: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await close()
        except TimeoutError:
            self.console.note(f"the {name} did not close within {CLOSE_S:g} s; its processes are killed")

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work; the death of the engine or of a learner rank ends it at once, wherever it stands."""
        main = asyncio.create_task(work, name="train")
        watchers = [asyncio.create_task(door.wait_dead()) for door in (self.generator, self.learner)]
        try:
            await asyncio.wait([main, *watchers], return_when=asyncio.FIRST_COMPLETED)
            if not main.done():
                await asyncio.wait([main], timeout=2.0)  # its own error names the stage and the sample
            for task in (main, *watchers):
                if task.done():
                    await task
                    return
        finally:
            for task in (main, *watchers):
                task.cancel()
            await asyncio.gather(main, *watchers, return_exceptions=True)

    async def _train(self) -> None:
        p, at = self.prepared, self.resumed.state
        prompts = PromptStream(p.train, p.cfg.run.seed, at.groups)
        position = Position(at.step, at.version, at.groups)
        await overlapped(self.doors, p.cfg, prompts, self._on_step, position, self._on_ready, self._on_weights)
        self._progress.phase("saving the policy")
        await self._save_policy()
        await self._evaluator.end(p.cfg.run.steps)

    async def _save_policy(self) -> None:
        try:
            version = await self.doors.learner.save(self.run.policy, kind="policy")
        except OverlapError as error:
            self.kept = {"failure": " ".join(str(error).split())}
            raise
        self.kept = {"path": str(self.run.policy), "version": version}

    async def _keep_policy(self) -> None:
        """The run ends early: save what the learner knows, while it lives and within a bound. Raises nothing."""
        if not self.taken or self.kept:
            return
        limit = max(KEEP_S, _weight_bytes(self.prepared.policy) / KEEP_BYTES_PER_S)
        self._progress.say(f"saving the policy (at most {limit:.0f} s; Ctrl-C skips it)")
        saving = self._saving = asyncio.create_task(self._save_policy(), name="keep the policy")
        why = f"it took more than {limit:.0f} s"
        try:
            await asyncio.wait([saving], timeout=limit)
        except asyncio.CancelledError:
            why = "skipped"
        saving.cancel()
        (error,) = await asyncio.gather(saving, return_exceptions=True)
        if saving.cancelled():
            self.kept = {"failure": "skipped" if self._skipped else why}
        elif error is not None and not self.kept:
            self.kept = {"failure": f"{type(error).__name__}: {error}"}

    def skip(self) -> bool:
        """A second Ctrl-C: do without the policy that is being saved. False when there is nothing to skip.

        May be called from a signal handler.
        """
        if self._saving is None or self._saving.done() or self._skipped:
            return False
        self._skipped = True
        self._loop.call_soon_threadsafe(self._saving.cancel)
        return True

    def _sweep(self) -> None:
        """What a save that was cut off has left; its ranks are gone by now."""
        with self.run.losses.spared("policy/"):
            self.run.settle()

    async def _on_ready(self) -> None:
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
            await self._checkpoint(step)

    async def _note(self, result: StepResult) -> None:
        assert self.recorder is not None
        batch = result.batch
        self._consumed += len(batch.groups) + len(batch.dropped)
        self._version = result.report.version if result.report else self._version
        self.taken += 1
        await self.recorder.step(result, self._evaluated)

    async def _checkpoint(self, step: int) -> None:
        """A checkpoint that cannot be written is none, and costs no training. Raises LearnerError."""
        assert self.recorder is not None
        cfg = self.prepared.cfg
        metrics, trajectories = self.run.offsets
        traced, traced_us = self.recorder.traced
        state = RunState(
            step=step,
            version=self._version,
            groups=self._consumed,
            metrics_offset=metrics,
            trajectories_offset=trajectories,
            trace_offset=traced,
            trace_end_us=traced_us,
            config=cfg.to_dict(),
            data=self.data,
            seconds=self.seconds,
            evaluation=self.course.to_dict(),
        )
        best = {self.course.best["step"]} if self.course.best else set()
        with (
            self.run.losses.spared("checkpoints"),
            writing(self.run.checkpoints, step, keep=cfg.run.keep_last, spare=best) as folder,
        ):
            await self.doors.learner.save(folder / LEARNER, kind="state")
            save_state(folder, state)

    @property
    def seconds(self) -> float:
        """Wall time of the run, that before it was resumed included, s."""
        return self.resumed.state.seconds + time.monotonic() - self._began_s

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
            seconds=self.resumed.state.seconds + seconds,
            run_dir=self.run.path,
            lag=self._lag.run() if self.recorder else None,
            pass_at_1=self.course.summary(self.prepared.cfg.run.steps if self.reason == "finished" else None),
            extra=self._extra(),
        )
        if self.taken:
            self.run.finish(figures)
            lost = len(figures["not_written"])
            with self.run.losses.spared("picture.png"):
                title = f"{self.prepared.cfg.model.policy}, {len(rows)} steps"
                write_picture(rows, self.run.picture, title=title, evaluations=self.course.curve())
            figures["not_written"] = list(self.run.losses)
            if len(figures["not_written"]) > lost:
                self.run.finish(figures)
        return figures

    def _extra(self) -> dict[str, Any]:
        return {
            "prompts": {"train": len(self.prepared.train), "heldout": len(self.prepared.heldout)},
            "data": {split: intake.to_json() for split, intake in self.prepared.intakes.items()},
            "policy": self._policy_figures(),
            "not_written": list(self.run.losses),
        }

    def _policy_figures(self) -> dict[str, Any]:
        """Where the policy is, or why not, and then the checkpoint that has the most of it."""
        if not self.kept.get("failure"):
            return self.kept
        newest = latest(self.run.checkpoints)
        return self.kept | {"checkpoint": str(newest) if newest else None}


async def _start_all(verifier: Verifier, generator: Generator, learner: Learner) -> None:
    """Start the doors side by side; one that dies while another still starts ends it at once."""
    left, watchers = 3, list[asyncio.Task[None]]()

    async def start(door: Verifier | Generator | Learner) -> None:
        nonlocal left
        await door.start()
        left -= 1
        if left and door is not verifier:
            watchers.append(tasks.create_task(door.wait_dead()))  # type: ignore[union-attr]
        for watcher in watchers if not left else ():
            watcher.cancel()

    async with asyncio.TaskGroup() as tasks:
        for door in (verifier, generator, learner):
            tasks.create_task(start(door))


def _weight_bytes(policy: Path) -> int:
    return sum(file.stat().st_size for file in policy.glob("*.safetensors"))
