"""CPU time that the loop itself takes for a trajectory, by the number in flight (on the fakes)."""

from __future__ import annotations

import resource
import statistics
import time

from _shared import argument_parser
from fake_parts import FakeGenerator, FakeLearner, FakeVerifier, fake_prompts
from schedules import fake_config
from virtual_clock import run_virtual

from overlap.core import Request, Trajectory
from overlap.pipeline.learning import Components, StepResult
from overlap.pipeline.loop import overlapped
from overlap.pipeline.prompts import PromptStream


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
    sequences = f"rollout.max_sequences={2 * groups * samples}"
    cfg = fake_config(steps, "rollout.max_staleness=1", sequences, groups=groups, samples=samples)
    generator = Counted(seconds=lambda rng: 100.0 * rng.random())
    components = Components(generator, FakeVerifier(), FakeLearner(seconds=lambda _: 100.0))

    async def on_step(result: StepResult) -> None:
        pass

    began = time.process_time()
    run_virtual(overlapped(components, cfg, PromptStream(fake_prompts(groups), 0), on_step))
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
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken (3)")
    driver(parser.parse_args().rounds)


if __name__ == "__main__":
    main()
