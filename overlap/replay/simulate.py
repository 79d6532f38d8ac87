"""``overlap replay``: the schedule that a run had, or would have had by another configuration, on a virtual clock.

RUN ──▶ recorded ──▶ fakes that take as long as its parts did ──▶ pipeline.overlapped ──▶ a table, a trace

The loop is the one that trains; what it waits for are the run's own durations, by group and sample. Where more are
needed than were recorded, they are drawn from those, seeded. Learning takes its time by the samples of the step.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

from overlap.clock import now, run_virtual
from overlap.config.fields import Config
from overlap.core import Batch, Finish, Packed, Request, Trajectory, WeightUpdate
from overlap.fakes import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import overlapped
from overlap.pipeline.prompts import PromptStream
from overlap.record.metrics import step_row
from overlap.record.out_file import OutFile
from overlap.record.run_files import RunFile
from overlap.record.timing import judged, mean, result_timing
from overlap.record.trace import Tracer
from overlap.record.traffic import BusyClock
from overlap.replay.durations import RecordedRun, SampleTimes, config_of_run, read_recorded_run

T = TypeVar("T")
CAVEAT = (
    "every part takes as long as it did in the run; where parts shared cores, this includes how they slowed each other"
)
Span = tuple[float, float]
LONGEST = 1 << 16
"""Tokens of a simulated response at most: their number is shown, and nothing is computed of it."""


Schedule = dict[str, float]
"""What a run had of its parts, over all of its steps, by the names of ``FIGURES``; NaN: not known."""
FIGURES = {
    "steps": ".0f",
    "s/step": ".2f",
    "speed-up": ".2f",
    "generator idle": ".0%",
    "verifiers idle": ".0%",
    "learner idle": ".0%",
    "age, mean": ".2f",
    "age, most": ".0f",
    "exposed reward, s/step": ".2f",
}
"""How each is shown. Ages are in versions; exposed are the reward seconds that nothing hid."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """The steps of a simulation, on its virtual clock."""

    cfg: Config
    began_s: float
    engine: Sequence[Span]
    results: Sequence[StepResult]


def replay(run: str, overrides: Sequence[str] = (), trace: Path | None = None) -> list[str]:
    """Lines for a person: the run as it was, as it is simulated, and as it would have been with ``overrides``.

    ``trace`` gets the last of these schedules, as a run's ``trace.json``. Raises ConfigError, and what the loop raises.
    """
    out = None if trace is None else OutFile(trace, field="--trace")
    found = read_recorded_run(run)
    asked = config_of_run(run, [f"run.steps={found.cfg.run.steps}", *overrides])
    own = simulate(found, found.cfg)
    schedules = {"recorded": measured(found), "simulated": schedule(own)}
    last = own
    if overrides:
        last = simulate(found, asked)
        schedules["asked"] = schedule(last)
    if out is not None:
        out.write(trace_of(last))
    rollout = found.cfg.rollout
    lines = [
        f"{run}: {len(found.rows)} steps of {rollout.groups_per_step} groups x {rollout.samples_per_group} samples, "
        f"rollout.max_staleness={rollout.max_staleness}, {rollout.sequences} sequences at once, "
        f"{found.cfg.verify.workers} verifier(s)"
    ]
    asked_line = [f"asked: {' '.join(overrides)}"] if overrides else []
    return [*lines, *asked_line, *comparison_table(schedules), CAVEAT, *left_out_note(found, schedules)]


def left_out_note(found: RecordedRun, schedules: Mapping[str, Schedule]) -> list[str]:
    """A warning where the run saved or evaluated between its steps, which no simulation does."""
    run, recorded, simulated = found.cfg.run, schedules["recorded"]["s/step"], schedules["simulated"]["s/step"]
    names = ("save_every", "eval_every", "keep_rollouts")
    done = [f"run.{name}={value}" for name in names if (value := getattr(run, name))]
    if not done:
        return []
    less = f", {1 - simulated / recorded:.0%} less than the run took" if 0 < simulated < recorded else ""
    what = f"saving and evaluations ({', '.join(done).lower()}) are left out of what is simulated"
    return [f"WARNING: {what}: its steps take {simulated:.2f} s{less}"]


def simulate(found: RecordedRun, cfg: Config) -> Simulation:
    """The loop by ``cfg`` with the durations of a run. Raises what the loop raises, as EmptyBatchesError."""
    generator = _Generator(found, cfg)
    components = Components(generator, _Verifier(found, cfg), _Learner(found, cfg))
    began, results = [0.0], list[StepResult]()

    async def on_ready() -> None:
        began[0] = now()

    async def on_step(result: StepResult) -> None:
        results.append(result)

    run_virtual(overlapped(components, cfg, PromptStream(fake_prompts(1), 0), on_step, on_ready=on_ready))
    return Simulation(cfg, began[0], generator.busy.pop_spans(0.0), results)


def schedule(simulated: Simulation) -> Schedule:
    """The figures of a simulation, by the definitions of a run's ``metrics.jsonl``."""
    rows, began, busy_s = list[Mapping[str, float]](), simulated.began_s, 0.0
    for result in simulated.results:
        ended = result.parity_span[1]
        rows.append(step_row(result, result_timing(result, (began, ended), engine_spans=simulated.engine)))
        busy_s += math.fsum(s.finished_s - s.started_s for s in judged(result.batch.all_samples))
        began = ended
    return _schedule(rows, busy_s, simulated.cfg)


def measured(found: RecordedRun) -> Schedule:
    """The figures of the run itself."""
    taken = [taken.verify_s for group in found.groups.values() for taken in group.values()]
    whole = math.fsum(_column(found.rows, "rollout/samples")) or len(taken)  # the trace of a long run has not all
    return _schedule(found.rows, math.fsum(taken) * max(1.0, whole / max(1, len(taken))), found.cfg)


def _schedule(rows: Sequence[Mapping[str, float | None]], verified_s: float, cfg: Config) -> Schedule:
    step_s = math.fsum(_column(rows, "time/step_s"))
    learned = [row for row in rows if row.get("rollout/groups_kept")]

    def idle(name: str) -> float:
        """Each step counts by its length."""
        known = [(row["time/step_s"] or 0.0, share) for row in rows if (share := row.get(name)) is not None]
        known = [(length, share) for length, share in known if math.isfinite(share)]
        whole = math.fsum(length for length, _ in known)
        return math.fsum(length * share for length, share in known) / whole if whole else math.nan

    return {
        "steps": len(rows),
        "s/step": step_s / len(rows) if rows else math.nan,
        "generator idle": idle("time/generator_idle_share"),
        "verifiers idle": max(0.0, 1 - verified_s / (cfg.verify.workers * step_s)) if step_s else math.nan,
        "learner idle": idle("time/learner_idle_share"),
        "age, mean": mean(_column(learned, "rollout/staleness_mean")),
        "age, most": max(_column(learned, "rollout/staleness_max"), default=math.nan),
        "exposed reward, s/step": mean(_column(rows, "time/exposed_reward_s")),
    }


def _column(rows: Sequence[Mapping[str, float | None]], name: str) -> list[float]:
    return [value for row in rows if (value := row.get(name)) is not None and math.isfinite(value)]


def comparison_table(schedules: Mapping[str, Schedule]) -> list[str]:
    """Schedules beside each other; the speed-up is over the one that is called "simulated"."""
    base = schedules["simulated"]["s/step"]
    columns = [s | {"speed-up": base / s["s/step"] if s["s/step"] else math.nan} for s in schedules.values()]
    rows = [(name, [_shown(column[name], spec) for column in columns]) for name, spec in FIGURES.items()]
    return [f"{name:<24}" + "".join(f"{cell:>12}" for cell in cells) for name, cells in [("", [*schedules]), *rows]]


def _shown(value: float, spec: str) -> str:
    return format(value, spec) if math.isfinite(value) else "-"


def trace_of(simulated: Simulation) -> bytes:
    """The simulated schedule, as the trace of a run."""
    with TemporaryDirectory() as folder:
        path = RunFile.TRACE.of(Path(folder))
        with closing(Tracer(path, origin_s=0.0)) as tracer:
            for result in simulated.results:
                tracer.step(result)
        return path.read_bytes()


class _Durations:
    """The durations of the run; where it has none, one drawn from them, the same for equal place and seed."""

    def __init__(self, found: RecordedRun, cfg: Config) -> None:
        self._found, self._seed = found, cfg.run.seed
        self._groups = dict(found.groups)

    def sample(self, request: Request) -> SampleTimes:
        if request.group not in self._groups:
            self._groups[request.group] = _own_or_drawn(self._found.groups, request.group, f"{self._seed}/group")
        return _own_or_drawn(self._groups[request.group], request.sample, f"{self._seed}/sample/{request.group}")

    def load_s(self, version: int) -> float:
        return _own_or_drawn(self._found.loads, version, f"{self._seed}/load")

    def parity_s(self, version: int) -> float:
        known = self._found.parities
        return _own_or_drawn(known, version, f"{self._seed}/parity") if known else 0.0

    def learn_s(self, batch: Batch) -> float:
        seconds, groups = _own_or_drawn(self._found.learned, batch.step, f"{self._seed}/learn")
        samples = groups * self._found.cfg.rollout.samples_per_group
        return seconds * len(batch.samples) / samples


def _own_or_drawn(table: Mapping[int, T], key: int, of: str) -> T:
    if key in table:
        return table[key]
    return table[random.Random(f"replay/{of}/{key}").choice(sorted(table))]


class BusyGenerator(FakeGenerator):
    """``busy`` tells when it had a sample, by whoever enters and leaves, and was awake."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.busy = BusyClock()

    async def sleep(self) -> None:
        await super().sleep()
        self.busy.pause(now())

    async def wake(self, part: str) -> None:
        await super().wake(part)
        if part == "cache":
            self.busy.resume(now())


class _Generator(BusyGenerator):
    """Decodes for as long as the engine did."""

    def __init__(self, found: RecordedRun, cfg: Config) -> None:
        super().__init__(slots=cfg.rollout.sequences, landing=cfg.rollout.in_flight)
        self._durations = _Durations(found, cfg)
        self._blank = {1: (Packed("i", (0,)), Packed("f", (0.0,)))}

    async def _sample(self, request: Request) -> Trajectory:
        self.busy.enter(now())
        try:
            return await super()._sample(request)
        finally:
            self.busy.leave(now())

    def _seconds_of(self, request: Request, rng: random.Random) -> float:
        return self._durations.sample(request).generate_s if request.group >= 0 else 0.0

    def _answer(self, request: Request, rng: random.Random) -> tuple[Packed[int], Packed[float], Finish]:
        """As many tokens as there were; those of equal length share their memory."""
        taken = self._durations.sample(request) if request.group >= 0 else SampleTimes(0.0)
        count = min(taken.tokens, LONGEST)
        if count not in self._blank:
            self._blank[count] = Packed("i", (0,) * count), Packed("f", (0.0,) * count)
        return *self._blank[count], cast(Finish, taken.finish)

    async def load(self, update: WeightUpdate) -> None:
        self._load_s = self._durations.load_s(update.version) if update.version else 0.0
        await super().load(update)


class _Verifier(FakeVerifier):
    """Judges for as long as the verifiers did, and as they did."""

    def __init__(self, found: RecordedRun, cfg: Config) -> None:
        super().__init__(workers=cfg.verify.workers)
        self._durations = _Durations(found, cfg)

    def _seconds_of(self, request: Request, rng: random.Random) -> float:
        return self._durations.sample(request).verify_s

    def _judged(self, request: Request, rng: random.Random) -> float | None:
        return self._durations.sample(request).reward


class _Learner(FakeLearner):
    """Learns for as long as the learner did; the parity check has its time from here, too."""

    def __init__(self, found: RecordedRun, cfg: Config) -> None:
        super().__init__(shares=found.turns)
        self._durations = _Durations(found, cfg)

    async def step(self, batch: Batch):  # type: ignore[no-untyped-def]
        report = await super().step(batch)
        self.batches.clear()  # whoever counts has the results
        return report

    def _seconds_of(self, batch: Batch) -> float:
        return self._durations.learn_s(batch)

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        if self.version:
            await asyncio.sleep(self._durations.parity_s(self.version))
        return await super().logprobs(token_ids)
