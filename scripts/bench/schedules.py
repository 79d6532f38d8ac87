"""Seconds per step of serial, overlapped and asynchronous training on the fakes and a virtual clock.

Generation, verification and learning have resources of their own and take 180 : 140 : 120 s a step, generation with a
long tail. A load takes 2 s; recomputing what is in flight 20 ms a sequence. The best possible schedule is bounded by a
step's own chain over the steps that may be on their way, and by the busiest part; loads are left out of it. Where
engine and learner share devices, no more responses decode at once than a step has, and none while the learner learns.
Nothing here depends on the machine: the clock is virtual, every figure is the median over seeds.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal, cast, get_args

from _shared import argument_parser
from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from virtual_clock import run_virtual

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core.clock import now
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import overlapped, serial
from overlap.pipeline.prompts import PromptStream

GENERATE_S, REWARD_S = 180.0, 140.0
GROUPS, SAMPLES, WORKERS = 16, 8, 8
VERIFY_S = REWARD_S * WORKERS / (GROUPS * SAMPLES)
"""Mean seconds of a verification, so that a step keeps ``WORKERS`` busy for ``REWARD_S``."""
LEARN_S, LOAD_S, RECOMPUTE_S = 120.0, 2.0, 0.02
Landing = Literal["keep", "recompute", "drain"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the loop, with so many verifiers."""

    name: str
    loop: Callable[..., Any]
    workers: int
    staleness: int = 0
    landing: Landing = "recompute"
    shares: bool = False
    """Engine and learner take turns on their devices, where as many sequences decode at once as a step has."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds that a step takes of each part, whatever the others do."""

    generate_s: float
    """All responses, side by side, for an engine that decodes those of any number of steps as fast as of one."""
    longest_s: float
    """Until the last verdict where each follows its response: the longest response and its judgement."""
    reward_s: float
    """For which the verifiers are busy."""
    learn_s: float
    decode_s: float = 0.0
    """All responses for an engine that always decodes as many at once as a step has."""


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds from step to step once the pipeline is full, ages in versions, and what no schedule beats."""

    step_s: float
    best_s: float
    age_mean: float
    age_max: float


def long_tail(rng: random.Random) -> float:
    """Return seconds of generation: log-normal lengths, cut at the longest response."""
    return min(GENERATE_S, GENERATE_S * 0.22 * math.exp(0.75 * rng.gauss(0.0, 1.0)))


def mean_generation_s(draws: int = 100_000) -> float:
    """Return the mean of ``long_tail``."""
    rng = random.Random(0)
    return math.fsum(long_tail(rng) for _ in range(draws)) / draws


def verify_time(rng: random.Random) -> float:
    """Return seconds of verification, ``VERIFY_S`` in the mean."""
    return VERIFY_S * (0.5 + rng.random())


def fake_config(steps: int, *more: str, groups: int = GROUPS, samples: int = SAMPLES) -> Config:
    """Return the configuration of a run on the fakes and a virtual clock; ``more`` are further settings."""
    shape = [f"rollout.groups_per_step={groups}", f"rollout.samples_per_group={samples}", f"run.steps={steps}"]
    return load_config(None, [*shape, "run.stall_s=100000", *more])


def arms(workers: int) -> tuple[Arm, ...]:
    """Serial with one verifier and with as many as the others, overlapped, and asynchronous by landing."""
    return (
        Arm("serial, one verifier", serial, 1),
        Arm(f"serial, {workers} verifiers", serial, workers),
        Arm("overlapped", overlapped, workers),
        *(
            Arm(f"staleness {k}, {landing}", overlapped, workers, k, cast(Landing, landing))
            for k in (1, 2, 4)
            for landing in get_args(Landing)
        ),
        *(Arm(f"shared, staleness {k}", overlapped, workers, k, shares=True) for k in (0, 1, 2)),
        Arm("shared, staleness 1, drain", overlapped, workers, 1, "drain", shares=True),
    )


def best_s(arm: Arm, stages: Stages) -> float:
    """Return the seconds a step that no schedule of these stages beats: one after the other where the arm is serial;
    else a step's own chain over the steps that may be on their way, or the busiest part. On
    shared devices responses have what the learner leaves of so many steps.
    """
    if arm.loop is serial:
        return stages.generate_s + stages.reward_s + stages.learn_s
    steps = arm.staleness + 1
    if arm.shares:
        return max(max(stages.longest_s / steps, stages.decode_s) + stages.learn_s, stages.reward_s)
    return max((stages.longest_s + stages.learn_s) / steps, stages.reward_s, stages.learn_s)


def table(found: Mapping[str, Found], base: str) -> list[str]:
    """Return a line for each arm by its name, with the speed-up over ``base``."""
    lines = [f"{'':24s} {'s/step':>8s} {'speed-up':>9s} {'of best':>8s} {'mean age':>9s} {'max age':>8s}"]
    for name, f in found.items():
        ratios = f"{found[base].step_s / f.step_s:8.2f}x {f.best_s / f.step_s:8.3f}"
        lines.append(f"{name:24s} {f.step_s:8.1f} {ratios} {f.age_mean:9.2f} {f.age_max:8g}")
    return lines


ARMS = arms(WORKERS)
STAGES = Stages(
    GENERATE_S, longest_s=GENERATE_S + VERIFY_S, reward_s=REWARD_S, learn_s=LEARN_S, decode_s=mean_generation_s()
)


def config(arm: Arm, steps: int) -> Config:
    sequences = f"rollout.max_sequences={GROUPS * SAMPLES * (1 if arm.shares else 8)}"
    cfg = fake_config(steps, f"rollout.max_staleness={arm.staleness}", sequences)
    object.__setattr__(cfg.verify, "workers", arm.workers)  # simulated: more than this machine may have cores
    return cfg


def measure(arm: Arm, steps: int, seed: int) -> Found:
    """Run an arm; the first third of the steps fills the pipeline."""
    cfg = config(arm, steps)
    generator = FakeGenerator(
        seed=seed,
        seconds=long_tail,
        slots=cfg.rollout.sequences,
        landing=arm.landing,
        load_s=LOAD_S,
        recompute_s=RECOMPUTE_S,
    )
    verifier = FakeVerifier(seed=seed, seconds=verify_time, workers=arm.workers)
    components = Components(generator, verifier, FakeLearner(seconds=lambda _: LEARN_S, shares=arm.shares))
    ends, means, most = list[float](), list[float](), list[int]()

    async def on_step(result: StepResult) -> None:
        ends.append(now())
        means.append(statistics.mean(result.batch.staleness))
        most.append(max(result.batch.staleness))

    run_virtual(arm.loop(components, cfg, PromptStream(fake_prompts(GROUPS), seed), on_step))
    full = len(ends) // 3
    step_s = (ends[-1] - ends[full]) / (len(ends) - 1 - full)
    stages = replace(STAGES, reward_s=REWARD_S * WORKERS / arm.workers)
    return Found(step_s, best_s(arm, stages), statistics.mean(means[full:]), max(most))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--steps", type=int, default=45, help="steps per arm and seed (45)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds (3)")
    args = parser.parse_args()
    found = dict[str, Found]()
    for arm in ARMS:
        runs = [measure(arm, args.steps, seed) for seed in range(args.seeds)]
        found[arm.name] = Found(*map(statistics.median, zip(*map(astuple, runs), strict=True)))
    parts = f"generation {GENERATE_S:g} : reward {REWARD_S:g} : learning {LEARN_S:g} s"
    print(f"{parts}, {GROUPS * SAMPLES} samples a step, {WORKERS} verifiers, {args.seeds} seeds, {args.steps} steps")
    print("\n".join(table(found, ARMS[1].name)))


if __name__ == "__main__":
    main()
