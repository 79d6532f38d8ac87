"""The same comparison on the real engine and the real sandbox: serial with the same pool against overlapped.

Both loops answer the same prompts of the default recipe with the untrained policy, in one engine, in turns. The learner
is a double that takes no time, so that a step is generation and verification alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from overlap.commands import ServingParts, run_standalone
from overlap.config import Config, load_config
from overlap.core import Generator, ProcesslessEngine, Request, Trajectory, WeightUpdate
from overlap.fakes import FakeLearner
from overlap.pipeline import Doors, PromptStream, StepResult, overlapped, serial
from overlap.record import result_timing


class Frozen(ProcesslessEngine):
    """A standalone engine behind the generator door: it never changes its weights, so syncs are no-ops."""

    def __init__(self, inner: Generator) -> None:
        super().__init__()
        self._inner = inner

    async def generate(self, request: Request) -> Trajectory:
        return await self._inner.generate(request)

    async def load(self, update: WeightUpdate) -> None:
        return None

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return [0.0]


class Idle(FakeLearner):
    """Learns nothing, and stays at version 0, which is the one that the engine serves."""

    async def step(self, batch):  # type: ignore[no-untyped-def]
        report = await super().step(batch)
        return type(report)(report.step, 0, report.seconds, report.metrics)

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return [0.0]


async def measure(loop, parts: ServingParts, cfg: Config, seed: int) -> list[tuple[float, float, float, float]]:  # type: ignore[no-untyped-def]
    """(wall, exposed, efficiency, reward) of each step, seconds."""
    rows = []

    async def on_step(result: StepResult) -> None:
        samples = result.batch.all_samples
        begin = min(s.trajectory.started_s for s in samples)
        timing = result_timing(result, (begin, time.monotonic()))
        wall = max(s.finished_s for s in samples) - begin
        rows.append((wall, timing.exposed_reward_s, timing.overlap_efficiency, timing.reward_s))

    doors = Doors(Frozen(parts.generator), parts.verifier, Idle())  # type: ignore[arg-type]
    await loop(doors, cfg, PromptStream(parts.inputs.train, seed), on_step)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2, help="steps per loop and round (2)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with both loops (3)")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    cfg = load_config(args.config, [*args.overrides, f"run.steps={args.steps}"])

    async def work(parts: ServingParts) -> None:
        await measure(overlapped, parts, cfg, 0)  # warm-up: the engine's first batch is slow
        found: dict[str, list[tuple[float, float, float, float]]] = {"serial": [], "overlapped": []}
        for seed in range(1, args.rounds + 1):
            found["serial"] += await measure(serial, parts, cfg, seed)
            found["overlapped"] += await measure(overlapped, parts, cfg, seed)
        report(parts, found)

    run_standalone(cfg, work)


def report(parts: ServingParts, found: dict[str, list[tuple[float, float, float, float]]]) -> None:
    median = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    say = parts.console.print
    say(f"real engine, {parts.inputs.cfg.samples_per_step} samples a step, medians of {len(found['serial'])} steps")
    for name, (wall, exposed, efficiency, reward) in median.items():
        figures = f"wall {wall:6.2f} s  reward {reward:5.2f} s  exposed {exposed:5.2f} s  efficiency {efficiency:.3f}"
        say(f"  {name:<10} {figures}")
    say(f"  speed-up serial / overlapped  {median['serial'][0] / median['overlapped'][0]:.2f} x")


if __name__ == "__main__":
    main()
