"""The arms of ``bench_async.py`` on real parts, in one run: engine, sandbox and learner with the default recipe.

Engine and learner have cores of their own; the verifiers, at their lower priority, take what is left of all, as in
every run. Each arm begins with the same weights, prompts and order, takes ``--fill`` steps to fill the pipeline, and is
measured for ``--steps`` more, of which the medians are told; it is cut off then, so that no step is learned without
others behind it. One learner and both verifiers serve all arms; each landing has an engine of its own.

Each arm is compared with the best possible schedule of its own measured stages (``bench_schedule.best_s``). Where parts
share cores, what one takes is also what it lost to the others: the best is then that of parts that are as slow. Of the
stages, "generate" is from the first request of a step to its last response, "engine" the part of a step's time in which
the engine had requests, "load" publishing, loading and checking the new weights; the wait of "drain" for an empty
engine is in neither of these two, for it is what the schedule costs.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench_schedule import Arm, Found, Landing, Stages, arms, best_s, table

from overlap.config import Config, load_config
from overlap.core import Generator, Learner, Prompt, Scored, Verifier
from overlap.generate import VllmGenerator
from overlap.learner import DeepSpeedLearner
from overlap.pipeline import Doors, PromptStream, StepResult, overlapped
from overlap.prepare import Prepared, prepare
from overlap.process import Reaper, handle_interrupts, run_to_end, scratch_directory
from overlap.record import Console, StepTiming, judged, merge, quiet, result_timing
from overlap.run import Door, open_doors
from overlap.verify import SandboxVerifier

STALEST = 4
CORES = sorted(os.sched_getaffinity(0))
HALF = max(1, len(CORES) // 2)
WARM_UP = Arm("warm-up", overlapped, len(CORES))
"""An engine's first batch is slow."""


class Enough(Exception):
    """The arm has taken its steps."""


@dataclass(frozen=True, slots=True)
class Measured:
    """An arm's steps, those that filled the pipeline left out, and the timing of each."""

    arm: Arm
    steps: tuple[tuple[StepResult, StepTiming], ...]
    decoded_s: dict[str, float]
    """By sample, from when the engine had room for it."""
    ends: tuple[float, ...]
    """When a response ended, for all of the arm."""

    def median(self, name: str) -> float:
        """Of a field of the timing."""
        return statistics.median(float(getattr(timing, name)) for _, timing in self.steps)

    def idle(self, name: str) -> float:
        """Share of all the steps' time."""
        whole = sum(timing.step_s for _, timing in self.steps)
        return sum(float(getattr(timing, name)) * timing.step_s for _, timing in self.steps) / whole

    def stages(self) -> Stages:
        """Medians over the steps."""
        busy = [t.step_s * (1 - t.generator_idle_share) - self._drain_s(result) for result, t in self.steps]
        loads = [t.sync_s + t.parity_s - self._drain_s(result) for result, t in self.steps]
        return Stages(
            generate_s=self.median("generate_s"),
            engine_s=statistics.median(busy),
            longest_s=statistics.median(self._longest_s(result) for result, _ in self.steps),
            reward_s=statistics.median(self._reward_s(result) for result, _ in self.steps),
            learn_s=self.median("learn_s"),
            load_s=statistics.median(loads),
        )

    def _drain_s(self, result: StepResult) -> float:
        """For which the load waited for the engine to be empty: a choice of the schedule, and no stage."""
        began, ended = result.sync_span
        last = max((end for end in self.ends if began < end < ended), default=began)
        return last - began if self.arm.landing == "drain" else 0.0

    def _longest_s(self, result: StepResult) -> float:
        """Until the last verdict, where nothing else is in the way of the step."""
        samples = result.batch.all_samples
        first_s = min(self.decoded_s[s.id] for s in samples)
        return max(max(self.decoded_s[s.id] + verified_s(s) for s in samples), first_s + self._reward_s(result))

    def _reward_s(self, result: StepResult) -> float:
        return sum(map(verified_s, judged(result.batch.all_samples))) / self.arm.workers

    def found(self) -> Found:
        ages = [age for result, _ in self.steps for age in result.batch.staleness]
        return Found(self.median("step_s"), best_s(self.arm, self.stages()), statistics.fmean(ages), max(ages))


def verified_s(scored: Scored) -> float:
    return max(0.0, scored.finished_s - scored.started_s)


def decoded_s(samples: Sequence[Scored], sequences: int) -> dict[str, float]:
    """Seconds of generation by sample, from when the engine had room for it: it takes older groups first."""
    ordered = sorted((s.trajectory for s in samples), key=lambda t: t.request.place)
    ends = sorted(t.finished_s for t in ordered)
    rooms = [0.0] * sequences + ends
    return {t.id: max(0.0, t.finished_s - max(t.started_s, room)) for t, room in zip(ordered, rooms, strict=False)}


def measured(arm: Arm, cfg: Config, results: Sequence[StepResult], fill: int) -> Measured:
    samples = [s for result in results for s in result.batch.all_samples]
    busy = merge((s.trajectory.started_s, s.trajectory.finished_s) for s in samples)
    ends = [result.parity_span[1] for result in results]
    spans = zip(ends[fill - 1 :], ends[fill:], strict=False)
    timed = [(r, result_timing(r, span, engine_spans=busy)) for r, span in zip(results[fill:], spans, strict=True)]
    responses = tuple(s.trajectory.finished_s for s in samples)
    return Measured(arm, tuple(timed), decoded_s(samples, cfg.rollout.max_sequences), responses)


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What is started inside runs there; we do not."""
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), CORES)


@dataclass
class Bench:
    """All arms, on doors that are opened as seldom as can be. ``cfg`` is that of the stalest arm."""

    options: argparse.Namespace
    cfg: Config
    prepared: Prepared
    scratch: Path
    console: Console
    reaper: Reaper
    found: list[Measured] = field(default_factory=list)

    async def __call__(self) -> None:
        chosen = [arm for arm in arms(len(CORES)) if self.options.arms in arm.name]
        async with AsyncExitStack() as stack:
            self._learner = await self._open_learner(stack)
            self._verifiers = {workers: await self._open_verifier(workers, stack) for workers in (1, len(CORES))}
            for landing in dict.fromkeys(arm.landing for arm in sorted(chosen, key=lambda arm: arm.staleness)):
                async with AsyncExitStack() as inner:
                    engine = await self._open_engine(landing, inner)
                    await self._play(replace(WARM_UP, landing=landing), engine, 1)
                    for arm in (arm for arm in chosen if arm.landing == landing):
                        self.found.append(await self._measure(arm, engine))

    async def _open_learner(self, stack: AsyncExitStack) -> Learner:
        p = self.prepared
        learner = DeepSpeedLearner(self.cfg, p.policy, self.scratch, log=self._log, total_updates=10**6)
        with on_cores(self.options.learner_cores):
            await self._open("learner", learner, stack)
        await learner.save(self.scratch / "beginning", kind="state")
        return learner

    async def _open_verifier(self, workers: int, stack: AsyncExitStack) -> Verifier:
        cfg = replace(self.cfg, verify=replace(self.cfg.verify, workers=workers))
        verifier = SandboxVerifier(cfg, self.prepared.task, log=self._log, scratch=self.scratch)
        await self._open("verifier", verifier, stack)
        return verifier

    async def _open_engine(self, landing: Landing, stack: AsyncExitStack) -> Generator:
        cfg = replace(self.cfg, rollout=replace(self.cfg.rollout, landing=landing))
        engine = VllmGenerator(cfg, self.prepared.policy, self.scratch, log=self._log)
        with on_cores(self.options.engine_cores):
            await self._open("engine", engine, stack)
        return engine

    async def _open(self, name: str, door: Door, stack: AsyncExitStack) -> None:
        self.console.print(f"starting the {name}")
        await open_doors({name: door}, stack, self.reaper, self.console.print)

    @property
    def _log(self) -> Path:
        return self.scratch / "run.log"

    async def _measure(self, arm: Arm, engine: Generator) -> Measured:
        fill = self.options.fill
        cfg, results = await self._play(arm, engine, fill + self.options.steps)
        done = measured(arm, cfg, results, fill)
        steps = " ".join(f"{timing.step_s:.1f}" for _, timing in done.steps)
        self.console.print(f"{arm.name}: {done.median('step_s'):.1f} s a step ({steps})")
        return done

    async def _play(self, arm: Arm, engine: Generator, steps: int) -> tuple[Config, list[StepResult]]:
        """The arm's first ``steps``, with others on their way behind them."""
        cfg = configured(self.cfg, arm, steps + arm.staleness + 1)
        results: list[StepResult] = []

        async def on_step(result: StepResult) -> None:
            results.append(result)
            if len(results) == steps:
                raise Enough

        await self._learner.restore(self.scratch / "beginning")
        doors = Doors(engine, self._verifiers[arm.workers], self._learner)
        with suppress(Enough):
            await arm.loop(doors, cfg, PromptStream(self.prepared.train, cfg.run.seed), on_step)
        return cfg, results


def configured(cfg: Config, arm: Arm, steps: int) -> Config:
    rollout = replace(cfg.rollout, max_staleness=arm.staleness, landing=arm.landing)
    verify, run = replace(cfg.verify, workers=arm.workers), replace(cfg.run, steps=steps)
    return replace(cfg, rollout=rollout, verify=verify, run=run)


def lengthened(prompt: Prompt, times: int) -> Prompt:
    """Its problem has each test so many times."""
    problem = prompt.data.problem
    return replace(prompt, data=replace(prompt.data, problem=replace(problem, cases=problem.cases * times)))


def report(measurements: Sequence[Measured]) -> list[str]:
    """The table; idle shares of engine and learner; and the stages by which the best was computed, seconds."""
    names = [arm.name for arm in arms(len(CORES))]
    found = sorted(measurements, key=lambda m: names.index(m.arm.name))
    by_name = {m.arm.name: m.found() for m in found}
    base = names[1] if names[1] in by_name else next(iter(by_name))
    stages = [m.stages() for m in found]
    more = {
        "engine idle": [f"{m.idle('generator_idle_share'):.0%}" for m in found],
        "learner idle": [f"{m.idle('learner_idle_share'):.0%}" for m in found],
        "  best": [f"{f.best_s:.1f}" for f in by_name.values()],
        "generate": [f"{s.generate_s:.1f}" for s in stages],
        "engine": [f"{s.engine_s:.1f}" for s in stages],
        "reward": [f"{s.reward_s:.2f}" for s in stages],
        "learn": [f"{s.learn_s:.1f}" for s in stages],
        "load": [f"{s.load_s:.2f}" for s in stages],
    }
    return table(by_name, base, more)


def cores(text: str) -> list[int]:
    """As in "0,2"."""
    return [int(word) for word in text.split(",")]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5, help="steps of each arm that are measured (5)")
    parser.add_argument("--fill", type=int, default=2, help="steps of each arm before them, 1 or more (2)")
    parser.add_argument("--cases", type=int, default=1, help="each test of a problem is run so many times (1)")
    parser.add_argument("--arms", default="", help='only those whose name holds this, as "staleness 1"')
    half, rest = (",".join(map(str, part)) for part in (CORES[:HALF], CORES[HALF:] or CORES))
    parser.add_argument("--engine-cores", type=cores, default=half, help=f"cores of the engine ({half})")
    parser.add_argument("--learner-cores", type=cores, default=rest, help=f"cores of the learner ({rest})")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    options = parser.parse_args()
    if options.fill < 1 or options.steps < 1:
        parser.error("--fill and --steps: use 1 or more")
    return options


def main() -> None:
    options = parsed()
    widest = [f"rollout.max_staleness={STALEST}", f"verify.workers={len(CORES)}"]
    cfg = load_config(options.config, [*options.overrides, *widest])
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, options.engine_cores))
    with handle_interrupts() as interrupts, scratch_directory() as (scratch, reaper):
        prepared = prepare(cfg, None, scratch)
        prepared = replace(prepared, train=tuple(lengthened(p, options.cases) for p in prepared.train))
        with quiet(scratch / "run.log") as console:
            bench = Bench(options, cfg, prepared, scratch, console, reaper)
            try:
                run_to_end(bench, interrupts)
            finally:  # an arm that fails does not take the others' figures with it
                if bench.found:
                    say(console, bench)


def say(console: Console, bench: Bench) -> None:
    o, cfg = bench.options, bench.cfg
    at = f"engine on cores {listed(o.engine_cores)}, learner on {listed(o.learner_cores)}, verifiers on any"
    console.print(f"{cfg.samples_per_step} samples a step, tests x {o.cases}, {o.steps} steps after {o.fill}; {at}")
    for line in report(bench.found):
        console.print(line)


def listed(cores: Sequence[Any]) -> str:
    return ",".join(map(str, cores))


if __name__ == "__main__":
    main()
