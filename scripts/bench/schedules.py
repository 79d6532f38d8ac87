"""Seconds per step of serial, overlapped and asynchronous training on the fakes and a virtual clock.

Generation, verification and learning have resources of their own and take 180 : 140 : 120 s a step, generation with a
long tail. A load takes 2 s; recomputing what is in flight 20 ms a sequence. The best possible schedule is bounded by a
step's own chain over the steps that may be on their way, and by the busiest part; loads are left out of it.
Nothing here depends on the machine: the clock is virtual, every figure is the median over seeds.
"""

from __future__ import annotations

import statistics
from dataclasses import astuple, replace

from _schedules import (
    GENERATE_S,
    GROUPS,
    REWARD_S,
    SAMPLES,
    VERIFY_S,
    WORKERS,
    Arm,
    Found,
    Stages,
    arms,
    best_s,
    fake_config,
    long_tail,
    table,
    verify_time,
)
from _shared import argument_parser

from overlap.clock import now, run_virtual
from overlap.config import Config
from overlap.fakes import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from overlap.pipeline import Doors, PromptStream, StepResult

LEARN_S, LOAD_S, RECOMPUTE_S = 120.0, 2.0, 0.02
ARMS = arms(WORKERS)
STAGES = Stages(
    GENERATE_S, engine_s=0.0, longest_s=GENERATE_S + VERIFY_S, reward_s=REWARD_S, learn_s=LEARN_S, load_s=0.0
)


def config(arm: Arm, steps: int) -> Config:
    sequences = f"rollout.max_sequences={GROUPS * SAMPLES * 8}"
    cfg = fake_config(steps, f"rollout.max_staleness={arm.staleness}", sequences)
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
