"""The default run beside TRL's GRPO: seconds a step with the same policy, problems, samples a step and learning rate.

    overlap               the default run (recipes/code_rl/configs/cpu_smollm2.yaml)
    overlap on-policy     the same with rollout.max_staleness=0
    TRL, our verifier     GRPOTrainer, its samples by transformers, rewards by our sandbox
    TRL, a process each   the same, rewards by a process for each program without a sandbox

Each is a program of its own; they take turns, ``--rounds`` times. A round is ``--steps`` steps after ``--warm-up``
others; of all rounds the median is told. TRL gets the stop strings, too, so that its responses are as short; its
gradient checkpointing is off. Its environment is made in ``--folder``: TRL beside the torch, transformers and datasets
of this one. Exit code 1 where a step of ``overlap`` is not ``--bar`` times as fast as TRL's with our verifier.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from _shared import CONFIG, ROOT, argument_parser, rows_of

TRL = "trl==1.16.0"
BAR = 4.0
RUN_S = 3600.0
"""Longest round of a side."""


@dataclass
class Side:
    """One of the trainers: how a round is run, and what its steps took."""

    name: str
    run: Callable[[argparse.Namespace, int], list[dict[str, float]]]
    rows: list[dict[str, float]] = field(default_factory=list)

    def median(self, column: str) -> float:
        return statistics.median(row[column] for row in self.rows)


def ours(*settings: str) -> Callable[[argparse.Namespace, int], list[dict[str, float]]]:
    """A round of ``overlap train``."""

    def run(options: argparse.Namespace, number: int) -> list[dict[str, float]]:
        out = options.folder / f"overlap-{number}"
        shutil.rmtree(out, ignore_errors=True)
        words = [f"run.steps={options.warm_up + options.steps}", "run.eval_samples=0", f"run.dir={out}", *settings]
        _run([sys.executable, "-m", "overlap.cli", "train", "--config", CONFIG, *words], out.with_suffix(".log"))
        return [
            {"step_s": row["time/step_s"], "length_mean": row["rollout/length_mean"], "reward": row["reward/mean"]}
            for row in rows_of(out)
        ]

    return run


def trl(reward: str, engine: str = "transformers") -> Callable[[argparse.Namespace, int], list[dict[str, float]]]:
    """A round of TRL's GRPOTrainer."""

    def run(options: argparse.Namespace, number: int) -> list[dict[str, float]]:
        python, out = trl_environment(options.folder), options.folder / f"trl-{reward}-{engine}-{number}.jsonl"
        out.unlink(missing_ok=True)
        program = ROOT / "scripts/bench/_peer_trl.py"
        steps = str(options.warm_up + options.steps)
        _run([str(python), str(program), CONFIG, steps, reward, engine, str(out)], out.with_suffix(".log"))
        return [json.loads(line) for line in out.read_text().splitlines()]

    return run


def trl_environment(folder: Path) -> Path:
    """The Python of an environment that has TRL above this one's packages; made where it is missing."""
    own = folder / "trl"
    python = own / "bin" / "python"
    if (own / "installed").exists():
        return python
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, own], check=True, timeout=RUN_S)
    subprocess.run([uv, "pip", "install", "--quiet", "--no-deps", "--python", python, TRL], check=True, timeout=RUN_S)
    base = sysconfig.get_paths()["purelib"]
    (next(own.glob("lib/python*")) / "site-packages" / "_base.pth").write_text(f"{base}\n")
    (own / "installed").touch()
    return python


def _run(argv: list[str], log: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    with log.open("wb") as file:
        done = subprocess.run(
            argv, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=RUN_S, check=False
        )
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with code {done.returncode}; see {log}")


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/peers"), help="environment, logs and runs (runs/peers)"
    )
    parser.add_argument("--steps", type=int, default=5, help="steps of a round that count (5)")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before them (2)")
    parser.add_argument("--rounds", type=int, default=2, help="(2)")
    parser.add_argument("--bar", type=float, default=BAR, help="(4)")
    parser.add_argument("--vllm", action="store_true", help="TRL samples by its colocated vLLM, where that starts")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    options.folder.mkdir(parents=True, exist_ok=True)
    engine = "vllm" if options.vllm else "transformers"
    sides = [
        Side("overlap", ours()),
        Side("overlap on-policy", ours("rollout.max_staleness=0")),
        Side("TRL, our verifier", trl("verifier", engine)),
        Side("TRL, a process each", trl("process", engine)),
    ]
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.rows += side.run(options, number)[options.warm_up :]
            print(f"round {number + 1}: {side.name} {side.median('step_s'):.1f} s a step so far", flush=True)
    return report(sides, options.bar, f"{TRL}, {engine}")


def report(sides: list[Side], bar: float, version: str) -> int:
    """Print the table; returns the exit code."""
    first, rival = sides[0].median("step_s"), sides[2].median("step_s")
    print(f"\n{version}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {len(sides[0].rows)} steps")
    print(f"{'':<22}{'s a step':>10}{'times ours':>12}{'tokens a response':>20}")
    for side in sides:
        seconds = side.median("step_s")
        print(f"{side.name:<22}{seconds:>10.1f}{seconds / first:>12.2f}{side.median('length_mean'):>20.1f}")
    print(f"a step is {rival / first:.2f} times as fast as TRL's with our verifier (bar {bar:g})")
    return 0 if rival >= bar * first else 1


if __name__ == "__main__":
    sys.exit(main())
