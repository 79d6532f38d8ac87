"""Real model programs through one pool, twice: none may be lost, left over, or judged otherwise.

consumes  ../shared/data/llm_samples (completions) and ../shared/data/humaneval (prompts and tests, as assert problems)
produces  per run: programs per second, delays, verdicts, what was lost; descriptors and memory after 1,000 programs and
          at the end, both at rest; zombies and files left; and the programs that the two runs judged differently
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from _shared import ROOT, argument_parser

from sandbox import Case, Judgement, Limits, Pool, PoolStats, Problem, Program, SandboxError

DATA: Final = ROOT.parent / "shared" / "data"
MIB: Final = 1 << 20
# A list that grows for ever fills 512 MiB in 4 s of CPU time, so that either limit may come first: keep them apart.
LIMITS: Final = Limits(wall_s=60, memory_bytes=256 * MIB)
WARM: Final = 1000

Pair = tuple[Problem, Program]


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise SystemExit(f"stream: {path} is missing: give its folder with --data")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def stream(data: Path, count: int) -> list[Pair]:
    """`count` completions of all problems, in an order that is the same every time."""
    problems = {}
    for row in read(data / "humaneval/HumanEval.jsonl.gz"):
        test = f"{row['test']}\ncheck({row['entry_point']})"
        problems[row["entry_point"]] = Problem(row["task_id"], "assert", (Case(test),), limits=LIMITS)
    pairs = []
    for row in read(data / "llm_samples/humaneval_codegen16b_100samples.jsonl.gz"):
        asked = re.findall(r"^def (\w+)\(", row["prompt"], re.MULTILINE)[-1]  # the prompts are not the published ones
        pairs += [(problems[asked], Program(row["prompt"] + sample)) for sample in row["samples"]]
    random.Random(0).shuffle(pairs)
    return pairs[:count]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the caller, and all processes below it, hold."""

    processes: int
    zombies: int
    descriptors: int
    memory_mib: float

    @classmethod
    def now(cls) -> Footprint:
        me = psutil.Process()
        family = [me, *me.children(recursive=True)]
        zombies = sum(process.status() == psutil.STATUS_ZOMBIE for process in family)
        alive = [process for process in family if process.status() != psutil.STATUS_ZOMBIE]
        memory = sum(process.memory_full_info().pss for process in alive) / MIB
        return cls(len(alive), zombies, sum(process.num_fds() for process in alive), round(memory, 1))


@dataclass(slots=True)
class Outcome:
    """One run of the stream."""

    verdicts: list[str]
    seconds: float = 0.0
    warm: Footprint | None = None
    end: Footprint | None = None
    stats: PoolStats | None = None
    lost: list[str] = field(default_factory=list)


async def run(pairs: Sequence[Pair], workers: int | None, *, judge_once: bool) -> Outcome:
    outcome = Outcome([""] * len(pairs))

    async def feed(indices: Sequence[int]) -> None:
        rest = iter(indices)

        async def one_after_the_other() -> None:
            for index in rest:
                try:
                    done: Judgement = await pool.judge(*pairs[index])
                    outcome.verdicts[index] = done.verdict.value
                except SandboxError as error:
                    outcome.lost.append(f"{index}: {type(error).__name__}: {error}")

        await asyncio.gather(*(one_after_the_other() for _ in range(8 * pool.workers)))

    async with Pool(workers, judge_once=judge_once) as pool:
        start = time.monotonic()
        await feed(range(min(WARM, len(pairs))))
        outcome.seconds = time.monotonic() - start
        outcome.warm = Footprint.now()
        start = time.monotonic()
        await feed(range(WARM, len(pairs)))
        outcome.seconds += time.monotonic() - start
        outcome.end = Footprint.now()
        outcome.stats = pool.stats()
    outcome.lost += [f"{index}: no answer" for index, verdict in enumerate(outcome.verdicts) if not verdict]
    return outcome


def show(name: str, outcome: Outcome, files: list[str], after: Footprint) -> None:
    stats = outcome.stats
    assert stats is not None
    count = len(outcome.verdicts)
    print(f"{name}: {count} programs in {outcome.seconds:.1f} s, {count / outcome.seconds:.0f} per second")
    for label, delay in (("run time", stats.run_time), ("queue delay", stats.queue_delay)):
        values = "  ".join(f"{key} {getattr(delay, f'{key}_s') * 1e3:.2f}" for key in ("p50", "p95", "p99"))
        print(f"  {label:22} {values} ms")
    print(f"  verdicts               {dict(sorted(stats.verdicts.items()))}")
    print(f"  lost                   {len(outcome.lost)} {outcome.lost[:3] or ''}")
    print(f"  infrastructure, cached {stats.infrastructure_failures}, {stats.cache_hits}; recycled {stats.recycled}")
    print(f"  after {WARM:5}            {outcome.warm}")
    print(f"  at the end             {outcome.end}")
    print(f"  after close            {after}, files left {len(files)} {files[:3] or ''}", flush=True)


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("count", type=int, nargs="?", default=10_000)
    parser.add_argument("--workers", type=int, help="default: one per core")
    parser.add_argument("--data", type=Path, default=DATA, help="default: %(default)s")
    parser.add_argument("--once", action="store_true", help="judge equal programs once")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"{options.count} programs show nothing: give at least 1")
    pairs = stream(options.data, options.count)
    faults = 0
    outcomes = []
    with tempfile.TemporaryDirectory() as directory:
        os.environ["TMPDIR"] = tempfile.tempdir = directory
        for name in ("run 1", "run 2"):
            outcome = asyncio.run(run(pairs, options.workers, judge_once=options.once))
            files, after = os.listdir(directory), Footprint.now()
            show(name, outcome, files, after)
            faults += len(outcome.lost) + len(files) + after.zombies + after.processes - 1
            outcomes.append(outcome)
    both = zip(*(outcome.verdicts for outcome in outcomes), strict=True)
    different = [(index, *pair) for index, pair in enumerate(both) if len(set(pair)) > 1]
    named = [(pairs[index][0].id, index, *verdicts) for index, *verdicts in different[:20]]
    print(f"judged differently       {len(different)} {named or ''}")
    return 1 if faults or different else 0


if __name__ == "__main__":
    sys.exit(main())
