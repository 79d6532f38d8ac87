"""Ways to train beside each other: reward, seconds per step, samples and seconds to one reward.

    arm, seed ──▶ overlap train ──▶ FOLDER/ARM-SEED/metrics.jsonl ──▶ a row per arm ──▶ table, picture

``--compare staleness``: the default recipe in four arms (3 seeds of 20 steps: an hour on 2 cores). ``--compare ppo``:
GRPO, and PPO with a critic (2 seeds of 30 steps take half an hour). Runs unattended and goes on where it was stopped: a
finished arm is not run again, one that was cut off is begun anew. Evaluations are left out: the reward of the samples
is compared, over samples and over time.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from _shared import CONFIG, ROOT, argument_parser, rows_of

RUN_S: Final = 2 * 3600.0
IDLE: Final = ("generator", "learner")
SMOOTH: Final = 5
"""Steps of which the mean reward is taken."""


class Arm(NamedTuple):
    """A way to train; ``settings`` are overrides of the configuration."""

    name: str
    settings: tuple[str, ...] = ()
    config: str = CONFIG


ARMS: Final = {
    "staleness": (
        Arm("on-policy", ("rollout.max_staleness=0",)),
        Arm("staleness-1", ("rollout.max_staleness=1",)),
        Arm("staleness-2", ("rollout.max_staleness=2",)),
        Arm("staleness-1-uncorrected", ("rollout.max_staleness=1", "learn.correction=none")),
    ),
    "ppo": (Arm("grpo"), Arm("ppo", config="recipes/code_rl/configs/ppo_cpu.yaml")),
}


class Curve(NamedTuple):
    """Samples, seconds and smoothed reward after each step, from the ``SMOOTH``-th on."""

    samples: list[float]
    seconds: list[float]
    rewards: list[float]


def train(folder: Path, arm: Arm, seed: int, steps: int, more: list[str]) -> list[dict[str, Any]]:
    """Return the metrics of the finished run. Raises CalledProcessError, TimeoutExpired."""
    run = folder / f"{arm.name}-{seed}"
    if not finished(run):
        shutil.rmtree(run, ignore_errors=True)
        settings = [*arm.settings, f"run.seed={seed}", f"run.steps={steps}", f"run.dir={run}", "run.eval_samples=0"]
        command = [sys.executable, "-m", "overlap.cli", "train", "--config", arm.config, *settings, *more]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (folder / f"{run.name}.log").open("w") as log:
            subprocess.run(command, check=True, timeout=RUN_S, env=environment, cwd=ROOT, stdout=log, stderr=log)
    return rows_of(run)


def finished(run: Path) -> bool:
    try:
        return bool(json.loads((run / "summary.json").read_text())["exit"] == "finished")
    except (OSError, ValueError, KeyError):
        return False


def curve(rows: list[dict[str, Any]]) -> Curve:
    samples = seconds = 0.0
    found = Curve([], [], [])
    for number, row in enumerate(rows, 1):
        samples += row["rollout/samples"]
        seconds += row["time/step_s"]
        if number >= SMOOTH:
            found.samples.append(samples)
            found.seconds.append(seconds)
            found.rewards.append(statistics.fmean(row["reward/mean"] for row in rows[number - SMOOTH : number]))
    return found


def reached(at: list[float], rewards: list[float], goal: float) -> float | None:
    """Return where the curve first is at the goal, between two steps in proportion; None where it never is."""
    for i, reward in enumerate(rewards):
        if reward >= goal:
            if i == 0:
                return at[0]
            share = (goal - rewards[i - 1]) / (reward - rewards[i - 1])
            return at[i - 1] + share * (at[i] - at[i - 1])
    return None


def middle(curves: list[Curve]) -> Curve:
    """Return the mean of the seeds, step by step."""
    axes = (zip(*axis, strict=False) for axis in zip(*curves, strict=True))
    return Curve(*([statistics.fmean(values) for values in axis] for axis in axes))


def ratio(mine: Curve, base: Curve, axis: int) -> str:
    """Return how much more samples (axis 0) or seconds (1) than ``base`` it takes to reach the last reward of ``base``;
    "-" where the run does not reach it.
    """
    goal = base.rewards[-1]
    there, here = reached(base[axis], base.rewards, goal), reached(mine[axis], mine.rewards, goal)
    return f"{here / there:.2f}" if here and there else "-"


def table(found: dict[str, list[list[dict[str, Any]]]]) -> list[str]:
    """Return a line for each arm: its rewards and times, and how many samples and seconds it takes to reach the last
    reward of the first arm, relative to that arm: by the mean of the seeds, then by each seed.
    """
    base = [curve(rows) for rows in next(iter(found.values()))]
    titles = "".join(f"{what + ' to goal: mean, seeds':>34s}" for what in ("samples", "seconds"))
    head = (
        f"{'':24s} {'first reward':>14s} {'last reward':>14s} {'s/step':>8s} {'engine idle':>12s} {'learner idle':>13s}"
    )
    lines = [f"{head} {'age':>5s}{titles}"]
    for name, runs in found.items():
        curves = [curve(rows) for rows in runs]
        rewards = "".join(f" {spread([c.rewards[end] for c in curves]):>14s}" for end in (0, -1))
        step_s = statistics.median(row["time/step_s"] for rows in runs for row in rows[1:])
        age = statistics.fmean(row["rollout/staleness_mean"] for rows in runs for row in rows[2:])
        idle = [statistics.fmean(row[f"time/{who}_idle_share"] for rows in runs for row in rows[1:]) for who in IDLE]
        cells = ""
        for axis in (0, 1):
            each = " ".join(ratio(mine, theirs, axis) for mine, theirs in zip(curves, base, strict=True))
            cells += f"{ratio(middle(curves), middle(base), axis) + ', ' + each:>34s}"
        lines.append(f"{name:24s}{rewards} {step_s:8.1f} {idle[0]:12.0%} {idle[1]:13.0%} {age:5.2f}{cells}")
    return lines


def spread(values: list[float]) -> str:
    """Return mean and standard deviation."""
    return f"{statistics.fmean(values):.3f} +- {statistics.stdev(values) if len(values) > 1 else 0:.3f}"


def draw(found: dict[str, list[list[dict[str, Any]]]], picture: Path) -> None:
    """Draw reward over samples and over time: the mean of the seeds, and each seed faintly."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for number, (name, runs) in enumerate(found.items()):
        curves = [curve(rows) for rows in runs]
        mean = middle(curves)
        for axis, plot in enumerate(axes):
            for each in curves:
                plot.plot(each[axis], each.rewards, color=f"C{number}", alpha=0.25, linewidth=1)
            plot.plot(mean[axis], mean.rewards, color=f"C{number}", linewidth=2, label=name)
    axes[0].set(xlabel="samples", ylabel=f"reward, mean of {SMOOTH} steps")
    axes[1].set(xlabel="seconds")
    axes[0].legend(frameon=False)
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="for runs and picture (runs/learning-ARMS)")
    parser.add_argument("--compare", choices=[*ARMS], default="staleness", help="the arms (staleness)")
    parser.add_argument("--steps", type=int, default=20, help=f"steps of each run (20), at least {SMOOTH}")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each arm (3)")
    parser.add_argument("settings", nargs="*", metavar="section.field=value", help="for all arms, after FOLDER")
    args = parser.parse_args()
    if args.steps < SMOOTH or args.seeds < 1:
        parser.error(f"--steps={args.steps} --seeds={args.seeds}: use {SMOOTH} steps or more, and a seed or more")
    folder = args.folder or Path(f"runs/learning-{args.compare}")
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for seed in range(args.seeds):
        for arm in ARMS[args.compare]:
            found.setdefault(arm.name, []).append(train(folder, arm, seed, args.steps, args.settings))
            print(f"{arm.name}, seed {seed}: {curve(found[arm.name][-1]).rewards[-1]:.3f}", flush=True)
    print("\n".join(table(found)))
    draw(found, folder / f"{args.compare}.png")


if __name__ == "__main__":
    main()
