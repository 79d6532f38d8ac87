"""PPO with a critic beside GRPO: the default recipe both ways, seed by seed, one run after the other.

    way, seed ──▶ overlap train ──▶ FOLDER/WAY-SEED/metrics.jsonl ──▶ a row per run ──▶ table

Runs unattended and goes on where it was stopped: a finished run is not made again. Evaluations are left out. Of each
run the mean reward of its first and of its last steps is told, and the median time of a step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from bench_arms import SMOOTH, Arm, rows_of, train

WAYS: Final = {"grpo": "recipes/code_rl/configs/cpu_smollm2.yaml", "ppo": "recipes/code_rl/configs/ppo_cpu.yaml"}
BAR_RATIO: Final = 2.0
BAR_GAIN: Final = 0.20
BAR_TIME: Final = 1.9
Rows = list[dict[str, Any]]


def rewards(rows: Rows) -> tuple[float, float]:
    """Means of the first and of the last ``SMOOTH`` steps."""
    found = [row["reward/mean"] for row in rows]
    return statistics.fmean(found[:SMOOTH]), statistics.fmean(found[-SMOOTH:])


def step_s(rows: Rows) -> float:
    """Median seconds of a step, without the first, which fills the engine."""
    return float(statistics.median(row["time/step_s"] for row in rows[1:]))


def line(name: str, rows: Rows) -> str:
    first, last = rewards(rows)
    explained = [row["critic/explained_variance"] for row in rows if "critic/explained_variance" in row]
    told = f"{statistics.fmean(explained[-SMOOTH:]):9.2f}" if explained else f"{'':9s}"
    return f"{name:10s} {first:6.3f} {last:6.3f} {last - first:+7.3f} {step_s(rows):8.1f} {told}"


def verdict(found: dict[tuple[str, int], Rows], seeds: int) -> list[str]:
    """Each bar with what was measured, and whether it was met."""
    lines = []
    for seed in range(seeds):
        first, last = rewards(found["ppo", seed])
        met = last >= BAR_RATIO * first and last - first >= BAR_GAIN
        what = f"reward {first:.3f} -> {last:.3f} (bar: {BAR_RATIO:g} x and +{BAR_GAIN:.2f})"
        lines.append(f"seed {seed}: {what}: {'met' if met else 'MISSED'}")
    ratios = [step_s(found["ppo", seed]) / step_s(found["grpo", seed]) for seed in range(seeds)]
    each = " ".join(f"{ratio:.2f}" for ratio in ratios)
    met = statistics.fmean(ratios) <= BAR_TIME
    lines.append(f"time per step, PPO over GRPO: {each} (bar: {BAR_TIME:g}): {'met' if met else 'MISSED'}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/ppo"), help="where the runs go (runs/ppo)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30, help=f"steps of a run (30), at least {SMOOTH + 1}")
    parser.add_argument("settings", nargs="*", help="overrides of both configurations")
    args = parser.parse_args()
    if args.steps <= SMOOTH or args.seeds < 1:
        parser.error(f"--steps={args.steps} --seeds={args.seeds}: use more than {SMOOTH} steps, and a seed or more")
    args.folder.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, int], Rows] = {}
    print(f"{'':10s} {'first':>6s} {'last':>6s} {'gain':>7s} {'s/step':>8s} {'explained':>9s}", flush=True)
    for seed in range(args.seeds):
        for way, config in WAYS.items():
            run = train(args.folder, Arm(way, ()), seed, args.steps, config, args.settings)
            found[way, seed] = rows_of(run)
            print(line(f"{way} {seed}", found[way, seed]), flush=True)
    print("\n".join(verdict(found, args.seeds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
