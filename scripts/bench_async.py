"""Schedules beside each other, on the fakes and a virtual clock: serial, overlapped, and asynchronous by landing.

Generation, verification and learning have resources of their own and take 180 : 140 : 120 s a step, generation with a
long tail. A load takes 2 s; recomputing what is in flight 20 ms a sequence. The best possible schedule is bounded by a
step's own chain over the steps that may be on their way, and by the busiest part; loads are left out of it.
Nothing here depends on the machine: the clock is virtual, every figure is the median over seeds.

With ``--driver`` it tells what does: the CPU that the loop itself takes for a trajectory, by how many are in flight.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from overlap.clock import now, run_virtual
from overlap.config import Config, load_config
from overlap.core import Request, Trajectory
from overlap.fakes import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from overlap.pipeline import Doors, PromptStream, StepResult, overlapped, serial

GENERATE_S, REWARD_S, LEARN_S, LOAD_S, RECOMPUTE_S = 180.0, 140.0, 120.0, 2.0, 0.02
GROUPS, SAMPLES, WORKERS = 16, 8, 8
Landing = Literal["keep", "recompute", "drain"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the loop."""

    name: str
    loop: Callable[..., Any]
    staleness: int = 0
    landing: Landing = "recompute"
    workers: int = WORKERS


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds from step to step, and ages in versions, once the pipeline is full."""

    step_s: float
    age_mean: float
    age_max: float


ARMS = (
    Arm("serial, one verifier", serial, workers=1),
    Arm(f"serial, {WORKERS} verifiers", serial),
    Arm("overlapped", overlapped),
    *(
        Arm(f"staleness {k}, {landing}", overlapped, k, cast(Landing, landing))
        for k in (1, 2, 4)
        for landing in ("keep", "recompute", "drain")
    ),
)


def long_tail(rng: random.Random) -> float:
    """Seconds of generation: log-normal lengths, cut at the longest response."""
    return min(GENERATE_S, GENERATE_S * 0.22 * math.exp(0.75 * rng.gauss(0.0, 1.0)))


def verify_time(rng: random.Random) -> float:
    """Seconds of verification, so that a step keeps ``WORKERS`` busy for ``REWARD_S``."""
    return REWARD_S * WORKERS / (GROUPS * SAMPLES) * (0.5 + rng.random())


def config(arm: Arm, steps: int) -> Config:
    cfg = load_config(
        None,
        [
            f"rollout.groups_per_step={GROUPS}",
            f"rollout.samples_per_group={SAMPLES}",
            f"rollout.max_staleness={arm.staleness}",
            f"rollout.max_sequences={GROUPS * SAMPLES * 8}",
            f"run.steps={steps}",
            "run.stall_s=100000",
        ],
    )
    object.__setattr__(cfg.verify, "workers", arm.workers)  # simulated: more than this machine may have cores
    return cfg


def measure(arm: Arm, steps: int, seed: int) -> Found:
    """Run an arm; the first third of the steps fills the pipeline."""
    generator = FakeGenerator(seed=seed, seconds=long_tail, landing=arm.landing, load_s=LOAD_S, recompute_s=RECOMPUTE_S)
    verifier = FakeVerifier(seed=seed, seconds=verify_time, workers=arm.workers)
    doors = Doors(generator, verifier, FakeLearner(seconds=lambda _: LEARN_S))
    ends, means, most = list[float](), list[float](), list[int]()

    async def on_step(result: StepResult) -> None:
        ends.append(now())
        means.append(statistics.mean(result.batch.staleness))
        most.append(max(result.batch.staleness))

    run_virtual(arm.loop(doors, config(arm, steps), PromptStream(fake_prompts(GROUPS), seed), on_step))
    full = len(ends) // 3
    return Found((ends[-1] - ends[full]) / (len(ends) - 1 - full), statistics.mean(means[full:]), max(most))


def best_s(arm: Arm) -> float:
    """Seconds a step that no schedule beats."""
    verify_s = REWARD_S * WORKERS / (GROUPS * SAMPLES)
    chain = GENERATE_S + verify_s + LEARN_S
    reward_s = REWARD_S * WORKERS / arm.workers
    if arm.loop is serial:
        return GENERATE_S + reward_s + LEARN_S
    return max(chain / (arm.staleness + 1), reward_s, LEARN_S)


class Counted(FakeGenerator):
    """Knows how many samples it was asked for at once, at most."""

    asked = most = 0

    async def generate(self, request: Request) -> Trajectory:
        self.asked += 1
        self.most = max(self.most, self.asked)
        try:
            return await super().generate(request)
        finally:
            self.asked -= 1


def driver_us(groups: int, samples: int, steps: int = 3) -> tuple[int, float]:
    """Samples in flight at once, and microseconds of CPU for each of all that are learned from; fakes included."""
    cfg = load_config(
        None,
        [
            f"rollout.groups_per_step={groups}",
            f"rollout.samples_per_group={samples}",
            "rollout.max_staleness=1",
            f"rollout.max_sequences={2 * groups * samples}",
            f"run.steps={steps}",
            "run.stall_s=100000",
        ],
    )
    generator = Counted(seconds=lambda rng: 100.0 * rng.random())
    doors = Doors(generator, FakeVerifier(), FakeLearner(seconds=lambda _: 100.0))

    async def on_step(result: StepResult) -> None:
        pass

    began = time.process_time()
    run_virtual(overlapped(doors, cfg, PromptStream(fake_prompts(groups), 0), on_step))
    return generator.most, (time.process_time() - began) * 1e6 / (groups * samples * steps)


def driver(rounds: int) -> None:
    """Print the driver's CPU, the median of ``rounds``, and the most memory that it has held by then."""
    print(f"{'in flight':>10s} {'us a trajectory':>16s} {'MiB':>8s}")
    for in_flight in (1000, 5000, 10_000):
        found = [driver_us(in_flight // 16, 8) for _ in range(rounds)]
        most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{max(most for most, _ in found):10d} {statistics.median(us for _, us in found):16.0f} {most_mib:8.0f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=45, help="steps per arm and seed (45)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds (3)")
    parser.add_argument("--driver", action="store_true", help="measure the loop's own CPU instead")
    args = parser.parse_args()
    if args.driver:
        return driver(args.seeds)
    found = {arm.name: [measure(arm, args.steps, seed) for seed in range(args.seeds)] for arm in ARMS}
    base = statistics.median(f.step_s for f in found[ARMS[1].name])
    parts = f"generation {GENERATE_S:g} : reward {REWARD_S:g} : learning {LEARN_S:g} s"
    print(f"{parts}, {GROUPS * SAMPLES} samples a step, {WORKERS} verifiers, {args.seeds} seeds, {args.steps} steps")
    print(f"{'':24s} {'s/step':>8s} {'speed-up':>9s} {'of best':>8s} {'mean age':>9s} {'max age':>8s}")
    for arm in ARMS:
        step_s, age, most = (
            statistics.median(getattr(f, name) for f in found[arm.name]) for name in ("step_s", "age_mean", "age_max")
        )
        print(f"{arm.name:24s} {step_s:8.1f} {base / step_s:8.2f}x {best_s(arm) / step_s:8.3f} {age:9.2f} {most:8g}")


if __name__ == "__main__":
    main()
