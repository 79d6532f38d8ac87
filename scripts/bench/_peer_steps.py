"""The default run beside TRL's GRPO; ``peers`` says what is compared."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from _peer_environments import make_environment, run_logged
from _peer_picture import draw
from _shared import CONFIG, ROOT, rows_of

from overlap.placement.devices import bfloat16_is_fast

TRL = "trl==1.16.0"
BAR = 4.0
DTYPE = f"model.dtype={'bfloat16' if bfloat16_is_fast() else 'float32'}"
"""As ``scripts/train_deepcoder.sh`` chooses it."""
PANELS = {"seconds a step": "step_s", "tokens a response": "length_mean"}
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
    """What the configuration of both trainers has beside the file."""
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


def trl(reward: str) -> Round:
    """A round of TRL's GRPOTrainer with this reward function."""

    def run(options: argparse.Namespace, number: int) -> list[Row]:
        python, out = make_environment(options.folder / "trl", TRL), options.folder / f"trl-{reward}-{number}.jsonl"
        out.unlink(missing_ok=True)
        program, steps = ROOT / "scripts/bench/_peer_trl_run.py", str(options.warm_up + options.steps)
        run_logged(
            [str(python), str(program), CONFIG, steps, reward, str(out), *_shared_settings(options)],
            out.with_suffix(".log"),
            ROUND_S,
        )
        return [json.loads(line) for line in out.read_text().splitlines()]

    return run


def compare_trainers(options: argparse.Namespace) -> int:
    """Run all sides in turns and print their table; returns the exit code."""
    sides = [
        Side("overlap, default", ours()),
        Side("overlap, on-policy", ours("rollout.max_staleness=0")),
        Side("TRL, our verifier", trl("verifier")),
        Side("TRL, a process each", trl("process")),
    ]
    file = options.folder / "trainers.json"
    again = [sides[at] for at in options.again]
    if again:
        kept = json.loads(file.read_text())
        for side in sides:
            side.rows = [] if side in again else kept[side.name]
    turns = again or sides
    for number in range(options.rounds):
        for side in turns if number % 2 == 0 else reversed(turns):
            side.rows += side.run(options, number)[options.warm_up :]
            print(f"round {number + 1}: {side.name} {side.median('step_s'):.1f} s a step so far", flush=True)
    file.write_text(json.dumps({side.name: side.rows for side in sides}, indent=1))
    first, rival = sides[0].median("step_s"), sides[2].median("step_s")
    print(f"\n{TRL}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {len(sides[0].rows)} steps")
    print(f"{'':<22}{'s a step':>10}{'times ours':>12}{'tokens a response':>20}")
    for side in sides:
        seconds = side.median("step_s")
        print(f"{side.name:<22}{seconds:>10.1f}{seconds / first:>12.2f}{side.median('length_mean'):>20.1f}")
    panels = {title: {side.name: side.median(column) for side in sides} for title, column in PANELS.items()}
    draw(options.folder / "trainers.svg", panels, "overlap")
    print(f"a step is {rival / first:.2f} times as fast as TRL's with our verifier (bar {BAR:g})")
    return 0 if rival >= BAR * first else 1
