"""What staleness costs and brings: the default recipe in four arms, several seeds, one run after the other.

    arm, seed ──▶ overlap train ──▶ FOLDER/ARM-SEED/metrics.jsonl ──▶ a row per step ──▶ table, picture

Runs unattended and goes on where it was stopped: a finished arm is not run again, one that was cut off is begun
anew. Evaluations are left out: the reward of the samples is compared, over samples and over time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
CONFIG: Final = "recipes/code_rl/configs/cpu_smollm2.yaml"
RUN_S: Final = 2 * 3600.0
Curve = tuple[list[float], list[float], list[float]]
SMOOTH: Final = 5
"""Steps of which the mean reward is taken."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to train; ``settings`` are overrides of the configuration."""

    name: str
    settings: tuple[str, ...]


ARMS: Final = (
    Arm("on-policy", ("rollout.max_staleness=0",)),
    Arm("staleness-1", ("rollout.max_staleness=1",)),
    Arm("staleness-2", ("rollout.max_staleness=2",)),
    Arm("staleness-1-uncorrected", ("rollout.max_staleness=1", "learn.correction=none")),
)


def train(folder: Path, arm: Arm, seed: int, steps: int, config: str, more: list[str]) -> Path:
    """The run's directory, finished. Raises CalledProcessError, TimeoutExpired."""
    run = folder / f"{arm.name}-{seed}"
    if finished(run):
        return run
    shutil.rmtree(run, ignore_errors=True)
    settings = [*arm.settings, f"run.seed={seed}", f"run.steps={steps}", f"run.dir={run}", "run.eval_samples=0", *more]
    command = [sys.executable, "-m", "overlap.cli", "train", "--config", config, *settings]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / f"{arm.name}-{seed}.log").open("w") as log:
        subprocess.run(command, check=True, timeout=RUN_S, env=environment, cwd=ROOT, stdout=log, stderr=log)
    return run


def finished(run: Path) -> bool:
    try:
        return bool(json.loads((run / "summary.json").read_text())["exit"] == "finished")
    except (OSError, ValueError, KeyError):
        return False


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def smoothed(rewards: list[float]) -> list[float]:
    """Means of the last ``SMOOTH`` steps, from the ``SMOOTH``-th on."""
    return [statistics.fmean(rewards[i - SMOOTH : i]) for i in range(SMOOTH, len(rewards) + 1)]


def curve(rows: list[dict[str, Any]]) -> Curve:
    """Samples, seconds and smoothed reward after each step."""
    samples = seconds = 0.0
    at, times = [], []
    for row in rows:
        samples += row["rollout/samples"]
        seconds += row["time/step_s"]
        at.append(samples)
        times.append(seconds)
    return at[SMOOTH - 1 :], times[SMOOTH - 1 :], smoothed([row["reward/mean"] for row in rows])


def reached(at: list[float], rewards: list[float], goal: float) -> float | None:
    """Where the curve first is at the goal, between two steps in proportion; None where it never is."""
    for i, reward in enumerate(rewards):
        if reward >= goal:
            if i == 0:
                return at[0]
            share = (goal - rewards[i - 1]) / (reward - rewards[i - 1])
            return at[i - 1] + share * (at[i] - at[i - 1])
    return None


def middle(curves: list[Curve]) -> Curve:
    """The mean of the seeds, step by step."""
    samples, seconds, rewards = (
        [statistics.fmean(column) for column in zip(*(each[axis] for each in curves), strict=False)]
        for axis in range(3)
    )
    return samples, seconds, rewards


def ratio(mine: Curve, base: Curve, axis: int) -> str:
    """How much more samples (axis 0) or seconds (1) than ``base`` it takes to come to the last reward of ``base``."""
    goal = base[2][-1]
    there, here = reached(base[axis], base[2], goal), reached(mine[axis], mine[2], goal)
    return f"{here / there:.2f}" if here and there else "-"


def table(found: dict[str, list[list[dict[str, Any]]]]) -> list[str]:
    """Beside the first arm: samples and seconds to its last reward, of the mean of the seeds, then seed by seed.

    "-": not within the run.
    """
    base = [curve(rows) for rows in found[ARMS[0].name]]
    titles = "".join(f"{what + ' to goal: mean, seeds':>34s}" for what in ("samples", "seconds"))
    lines = [f"{'':24s} {'last reward':>14s} {'s/step':>8s} {'age':>5s}{titles}"]
    for name, runs in found.items():
        curves = [curve(rows) for rows in runs]
        last = [rewards[-1] for _, _, rewards in curves]
        step_s = statistics.median(row["time/step_s"] for rows in runs for row in rows[1:])
        age = statistics.fmean(row["rollout/staleness_mean"] for rows in runs for row in rows[2:])
        cells = ""
        for axis in (0, 1):
            each = " ".join(ratio(mine, theirs, axis) for mine, theirs in zip(curves, base, strict=True))
            cells += f"{ratio(middle(curves), middle(base), axis) + ', ' + each:>34s}"
        spread = f"{statistics.fmean(last):.3f} +- {statistics.stdev(last) if len(last) > 1 else 0:.3f}"
        lines.append(f"{name:24s} {spread:>14s} {step_s:8.1f} {age:5.2f}{cells}")
    return lines


def draw(found: dict[str, list[list[dict[str, Any]]]], picture: Path) -> None:
    """Reward over samples and over time: the mean of the seeds, and each seed faintly."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for number, arm in enumerate(ARMS):
        curves = [curve(rows) for rows in found.get(arm.name, [])]
        for axis, plot in enumerate(axes):
            for each in curves:
                plot.plot(each[axis], each[2], color=f"C{number}", alpha=0.25, linewidth=1)
            if curves:
                mean = middle(curves)
                plot.plot(mean[axis], mean[2], color=f"C{number}", linewidth=2, label=arm.name)
    axes[0].set(xlabel="samples", ylabel=f"reward, mean of {SMOOTH} steps")
    axes[1].set(xlabel="seconds")
    axes[0].legend(frameon=False)
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs lie, and what was made of them")
    parser.add_argument("--steps", type=int, default=20, help="steps of each run (20)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each arm (3)")
    parser.add_argument("--config", default=CONFIG, help=f"configuration ({CONFIG})")
    parser.add_argument("settings", nargs="*", metavar="section.field=value", help="for all arms")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for seed in range(args.seeds):
        for arm in ARMS:
            run = train(args.folder, arm, seed, args.steps, args.config, args.settings)
            found.setdefault(arm.name, []).append(rows_of(run))
            print(
                f"{arm.name}, seed {seed}: {smoothed([r['reward/mean'] for r in found[arm.name][-1]])[-1]:.3f}",
                flush=True,
            )
    print("\n".join(table(found)))
    draw(found, args.folder / "arms.png")


if __name__ == "__main__":
    main()
