"""The default run beside TRL's GRPO: seconds a step with the same policy and problems.

Samples a step and learning rate are the same, too. TRL is installed in ``--folder`` above the torch, transformers and
datasets of this environment. All sides take turns, in one run on one machine; figures are medians, and also in
``--folder``/trainers.json. Each round of a side is a program of its own, ``--steps`` steps after ``--warm-up`` others.
TRL samples by its colocated vLLM, with the stop strings of the default run; its gradient checkpointing is off. Exit
code 1 where a step of the default run is not 4 times as fast as TRL's with our verifier.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from _peer_environment import make_environment, run_logged
from _shared import CONFIG, ROOT, argument_parser, rows_of

from overlap.placement.devices import bfloat16_is_fast

TRL = "trl==1.16.0"
BAR = 4.0
DTYPE = f"model.dtype={'bfloat16' if bfloat16_is_fast() else 'float32'}"
"""As ``scripts/train_deepcoder.sh`` chooses it."""
ROUND_S = 3600.0
"""Longest round of a side."""
Row = dict[str, float]
Round = Callable[[argparse.Namespace, int], list[Row]]


@dataclass
class Side:
    """One of the trainers: how a round is run, and what its steps took."""

    name: str
    run: Round
    rows: list[Row] = field(default_factory=list)

    def median(self, column: str) -> float:
        """Over the steps of all rounds."""
        return statistics.median(row[column] for row in self.rows)


def _shared_settings(options: argparse.Namespace) -> list[str]:
    """Settings that both trainers have besides the file."""
    return [DTYPE, *([f"rollout.groups_per_step={options.groups}"] if options.groups else [])]


def ours(*settings: str) -> Round:
    """A round of ``overlap train``."""

    def run(options: argparse.Namespace, number: int) -> list[Row]:
        out = options.folder / f"overlap-{number}"
        shutil.rmtree(out, ignore_errors=True)
        steps = f"run.steps={options.warm_up + options.steps}"
        words = [steps, "run.eval_samples=0", f"run.dir={out}", *_shared_settings(options), *settings]
        argv = [sys.executable, "-m", "overlap.cli", "train", "--config", CONFIG, *words]
        run_logged(argv, out.with_suffix(".log"), ROUND_S)
        return [
            {"step_s": row["time/step_s"], "length_mean": row["rollout/length_mean"], "reward": row["reward/mean"]}
            for row in rows_of(out)
        ]

    return run


def trl(options: argparse.Namespace, number: int) -> list[Row]:
    """A round of TRL's GRPOTrainer with our verifier as its reward function."""
    python, out = make_environment(options.folder / "trl", TRL), options.folder / f"trl-{number}.jsonl"
    out.unlink(missing_ok=True)
    program, steps = ROOT / "scripts/bench/_peer_trl_run.py", str(options.warm_up + options.steps)
    argv = [str(python), str(program), CONFIG, steps, str(out), *_shared_settings(options)]
    run_logged(argv, out.with_suffix(".log"), ROUND_S)
    return [json.loads(line) for line in out.read_text().splitlines()]


def compare_trainers(options: argparse.Namespace) -> int:
    """Run all sides in turns and print their table; returns the exit code."""
    sides = [
        Side("overlap, default", ours()),
        Side("overlap, on-policy", ours("rollout.max_staleness=0")),
        Side("TRL, our verifier", trl),
    ]
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.rows += side.run(options, number)[options.warm_up :]
            print(f"round {number + 1}: {side.name} {side.median('step_s'):.1f} s a step so far", flush=True)
    rows = {side.name: side.rows for side in sides}
    (options.folder / "trainers.json").write_text(json.dumps(rows, indent=1))
    first, rival = sides[0].median("step_s"), sides[2].median("step_s")
    print(f"\n{TRL}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {len(sides[0].rows)} steps")
    print(f"{'':<22}{'s a step':>10}{'times ours':>12}{'tokens a response':>20}")
    for side in sides:
        seconds = side.median("step_s")
        print(f"{side.name:<22}{seconds:>10.1f}{seconds / first:>12.2f}{side.median('length_mean'):>20.1f}")
    print(f"a step is {rival / first:.2f} times as fast as TRL's with our verifier (bar {BAR:g})")
    return 0 if rival >= BAR * first else 1


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"), help="environment and logs (runs/peers)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a round that count (5)")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before them (2)")
    parser.add_argument("--rounds", type=int, default=2, help="of each side (2)")
    parser.add_argument("--groups", type=int, help="prompts a step (as configured), of 8 samples each")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    options.folder.mkdir(parents=True, exist_ok=True)
    return compare_trainers(options)


if __name__ == "__main__":
    sys.exit(main())
