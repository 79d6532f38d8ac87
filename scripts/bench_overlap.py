"""How much reward time does the pipeline hide? Serial with the same pool against overlapped, in one run.

The fake engine replays a step of 180 s of generation with a long tail next to 140 s of verification, at 1/100 scale.
The ceiling is what no schedule can beat: generation cannot be shortened, and the last trajectory must be verified
after its last token.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import time
from dataclasses import dataclass

from overlap.config import Config, load_config
from overlap.core import Scored
from overlap.fakes import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from overlap.pipeline import Doors, PromptStream, StepResult, overlapped, serial
from overlap.record import result_timing

GENERATE_S, REWARD_S, SCALE = 180.0, 140.0, 0.01
GROUPS, SAMPLES, WORKERS = 16, 8, 8


@dataclass(frozen=True, slots=True)
class Arm:
    """Medians over the steps of one loop, seconds at the scale of the replay."""

    step_s: float
    ceiling_s: float
    exposed_s: float
    efficiency: float
    ceiling_efficiency: float


def long_tail(rng: random.Random) -> float:
    """Seconds of generation: log-normal lengths, cut at the longest response, which takes the whole 180 s."""
    return min(GENERATE_S, GENERATE_S * 0.22 * math.exp(0.75 * rng.gauss(0.0, 1.0))) * SCALE


def verify_time(rng: random.Random) -> float:
    """Seconds of verification, so that 128 samples keep 8 workers busy for 140 s."""
    mean = REWARD_S * WORKERS / (GROUPS * SAMPLES)
    return mean * (0.5 + rng.random()) * SCALE


def ceiling(samples: list[Scored]) -> float:
    """Wall seconds that no schedule can beat, given each sample's generation end and verification time.

    Verification of a sample starts after its last token; ``WORKERS`` of them run at once. For every point in time, the
    work that becomes ready after it has to be done after it.
    """
    begin = min(s.trajectory.started_s for s in samples)
    ready = sorted((s.trajectory.finished_s - begin, s.finished_s - s.started_s) for s in samples)
    best = ready[-1][0]
    for i, (at, _) in enumerate(ready):
        rest = [cost for _, cost in ready[i:]]
        best = max(best, at + sum(rest) / WORKERS, at + ready[i][1])
    return best


async def measure(loop, cfg: Config, seed: int) -> Arm:  # type: ignore[no-untyped-def]
    doors = Doors(
        FakeGenerator(seed=seed, seconds=long_tail),
        FakeVerifier(seed=seed, seconds=verify_time, workers=WORKERS),
        FakeLearner(seconds=lambda _: 0.2),
    )
    results: list[StepResult] = []

    async def on_step(result: StepResult) -> None:
        results.append(result)

    await loop(doors, cfg, PromptStream(fake_prompts(GROUPS), seed), on_step)
    arms = []
    for result in results:
        samples = result.batch.all_samples
        begin = min(s.trajectory.started_s for s in samples)
        timing = result_timing(result, (begin, time.monotonic()))
        wall = max(s.finished_s for s in samples) - begin
        best = ceiling(samples)
        shorter = min(timing.generate_s, timing.reward_s)
        arms.append(
            (wall, best, timing.exposed_reward_s, timing.overlap_efficiency,
             (timing.generate_s + timing.reward_s - best) / shorter)
        )  # fmt: skip
    return Arm(*(statistics.median(column) for column in zip(*arms, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5, help="steps per loop and round (5)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with both loops (3)")
    args = parser.parse_args()
    overrides = [f"rollout.groups_per_step={GROUPS}", f"rollout.samples_per_group={SAMPLES}", f"run.steps={args.steps}"]
    cfg = load_config(None, overrides)
    rows = [
        (asyncio.run(measure(serial, cfg, seed)), asyncio.run(measure(overlapped, cfg, seed)))
        for seed in range(args.rounds)
    ]
    print(f"fake engine, generation {GENERATE_S:g} s : reward {REWARD_S:g} s at 1/{1 / SCALE:g} scale, "
          f"{GROUPS * SAMPLES} samples, {WORKERS} verifiers, {args.rounds} rounds of {args.steps} steps")  # fmt: skip
    report(rows)


def report(rows: list[tuple[Arm, Arm]]) -> None:
    def median(values: list[float]) -> float:
        return statistics.median(values)

    print(f"  serial, wall of generation and reward     {median([s.step_s for s, _ in rows]):6.3f} s")
    print(f"  overlapped, the same                      {median([o.step_s for _, o in rows]):6.3f} s")
    print(f"  ceiling (no schedule beats it)            {median([o.ceiling_s for _, o in rows]):6.3f} s")
    print(f"  speed-up serial / overlapped              {median([s.step_s / o.step_s for s, o in rows]):6.2f} x")
    print(f"  exposed reward seconds, serial            {median([s.exposed_s for s, _ in rows]):6.3f} s")
    print(f"  exposed reward seconds, overlapped        {median([o.exposed_s for _, o in rows]):6.3f} s")
    print(f"  overlap efficiency, overlapped            {median([o.efficiency for _, o in rows]):6.3f}")
    print(f"  overlap efficiency of the ceiling         {median([o.ceiling_efficiency for _, o in rows]):6.3f}")
    print(f"  efficiency / ceiling                      "
          f"{median([o.efficiency / o.ceiling_efficiency for _, o in rows]):6.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
