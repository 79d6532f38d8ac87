"""How much reward time the overlapped loop hides, beside the serial loop with the same pool.

On the fakes and a virtual clock: a step of 180 s of generation with a long tail next to 140 s of verification. With
``--real``: the prompts of the default recipe, answered by the untrained policy in one engine, judged in the sandbox;
the loops take turns. The learner is a double that takes no time, so that a step is generation and verification alone.
The ceiling is what no schedule can beat: generation cannot be shortened, and the last trajectory must be verified
after its last token.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _load import GENERATE_S, GROUPS, REWARD_S, WORKERS, fake_config, long_tail, verify_time
from _shared import CONFIG, argument_parser

from overlap.clock import now, run_virtual
from overlap.commands.standalone import ServingParts, run_standalone
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import (
    Batch,
    Generator,
    ProcesslessEngine,
    Prompt,
    Request,
    Scored,
    StepReport,
    Trajectory,
    WeightUpdate,
)
from overlap.fakes import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import overlapped, serial
from overlap.pipeline.prompts import PromptStream
from overlap.record.timing import result_timing

LOOPS: dict[str, Callable[..., Any]] = {"serial": serial, "overlapped": overlapped}


class Row(NamedTuple):
    """A step, in seconds, and the share of the shorter part that is hidden: by the loop, and by the best schedule."""

    wall: float
    ceiling: float
    reward: float
    exposed: float
    efficiency: float
    best: float


class Frozen(ProcesslessEngine):
    """A standalone engine as a run's generator: it never changes its weights, so syncs do nothing."""

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

    async def step(self, batch: Batch) -> StepReport:
        report = await super().step(batch)
        return StepReport(report.step, 0, report.seconds, report.metrics)

    async def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        return [0.0]


def ceiling(samples: list[Scored], workers: int) -> float:
    """Return the seconds that no schedule can beat, given each sample's generation end and verification time.

    Verification of a sample starts after its last token; ``workers`` of them run at once. For every point in time, the
    work that becomes ready after it has to be done after it.
    """
    begin = min(s.trajectory.started_s for s in samples)
    ready = sorted((s.trajectory.finished_s - begin, s.finished_s - s.started_s) for s in samples)
    best = ready[-1][0]
    for i, (at, _) in enumerate(ready):
        rest = [cost for _, cost in ready[i:]]
        best = max(best, at + sum(rest) / workers, at + ready[i][1])
    return best


async def played(
    loop: Any, components: Components, cfg: Config, prompts: Sequence[Prompt], seed: int, workers: int
) -> list[Row]:
    """Return the rows of a loop's steps."""
    rows = []

    async def on_step(result: StepResult) -> None:
        samples = result.batch.all_samples
        begin = min(s.trajectory.started_s for s in samples)
        timing = result_timing(result, (begin, now()))
        wall = max(s.finished_s for s in samples) - begin
        least = ceiling(samples, workers)
        best = (timing.generate_s + timing.reward_s - least) / min(timing.generate_s, timing.reward_s)
        rows.append(Row(wall, least, timing.reward_s, timing.exposed_reward_s, timing.overlap_efficiency, best))

    await loop(components, cfg, PromptStream(prompts, seed), on_step)
    return rows


def on_fakes(steps: int, rounds: int) -> list[str]:
    cfg, found = fake_config(steps), dict[str, list[Row]]()
    for seed in range(rounds):
        for name, loop in LOOPS.items():
            generator = FakeGenerator(seed=seed, seconds=long_tail)
            verifier = FakeVerifier(seed=seed, seconds=verify_time, workers=WORKERS)
            components = Components(generator, verifier, FakeLearner(seconds=lambda _: 20.0))
            rows = run_virtual(played(loop, components, cfg, fake_prompts(GROUPS), seed, WORKERS))
            found.setdefault(name, []).extend(rows)
    what = f"fakes, generation {GENERATE_S:g} s : reward {REWARD_S:g} s, {WORKERS} verifiers"
    return report(f"{what}, {cfg.samples_per_step} samples a step", found)


async def on_real_parts(parts: ServingParts, cfg: Config, rounds: int) -> list[str]:
    found = dict[str, list[Row]]()
    for seed in range(rounds + 1):
        for name, loop in LOOPS.items():
            components = Components(Frozen(parts.generator), parts.verifier, Idle())  # type: ignore[arg-type]
            rows = await played(loop, components, cfg, parts.inputs.train, seed, cfg.verify.workers)
            if seed:  # the engine's first batches are slow
                found.setdefault(name, []).extend(rows)
    return report(f"real engine, {parts.inputs.cfg.samples_per_step} samples a step", found)


def report(what: str, found: dict[str, list[Row]]) -> list[str]:
    """Return the lines of the table: medians over all steps of a loop."""
    medians = {name: Row(*map(statistics.median, zip(*rows, strict=True))) for name, rows in found.items()}
    lines = [f"{what}, medians of {len(found['serial'])} steps"]
    lines.append(
        f"{'':12s}" + "".join(f"{title:>12s}" for title in (*(f"{n}, s" for n in Row._fields[:4]), *Row._fields[4:]))
    )
    lines += [f"{name:12s}" + "".join(f"{value:12.3f}" for value in row) for name, row in medians.items()]
    hidden = medians["overlapped"].efficiency / medians["overlapped"].best
    ratio = medians["serial"].wall / medians["overlapped"].wall
    return [*lines, f"speed-up of overlapped {ratio:.2f} x; its efficiency is {hidden:.3f} of the best"]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--real", action="store_true", help="engine and sandbox instead of the fakes")
    parser.add_argument("--config", type=Path, default=Path(CONFIG), help=f"with --real ({CONFIG})")
    parser.add_argument("--steps", type=int, help="steps per loop and round (5; 2 with --real)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, each with both loops (3)")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value", help="with --real")
    args = parser.parse_args()
    if not args.real:
        print("\n".join(on_fakes(args.steps or 5, args.rounds)))
        return
    cfg = load_config(args.config, [*args.overrides, f"run.steps={args.steps or 2}"])

    async def work(parts: ServingParts) -> None:
        for line in await on_real_parts(parts, cfg, args.rounds):
            parts.console.print(line)

    run_standalone(cfg, work)


if __name__ == "__main__":
    main()
