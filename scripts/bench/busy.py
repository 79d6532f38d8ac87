"""Steps beside one endless single-threaded loop and steps in quiet, in turns within one run.

The learner's step is taken on batches of the recipe's shape with random tokens (two minutes); the recipe's steps are
those of a real run. Peak memory of the learner is the kernel's own figure.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _batches import random_batch
from _shared import CONFIG, argument_parser, rows_of

import overlap
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Batch
from overlap.learner.learner import ProcessLearner
from overlap.policy.resolve import resolve_policy

LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"
"""Ends with this script, also when that is killed."""


@contextmanager
def beside_a_loop(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", LOOP])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def report(what: str, quiet: list[float], busy: list[float]) -> None:
    medians = statistics.median(quiet), statistics.median(busy)
    for name, seconds, median in (("quiet", quiet, medians[0]), ("busy", busy, medians[1])):
        each = " ".join(f"{s:.1f}" for s in seconds)
        print(f"{what:<8} {name:<6} median {median:6.2f} s   ({each})", flush=True)
    print(f"{what:<8} busy / quiet  {medians[1] / medians[0]:.2f} x", flush=True)


# --- the learner alone --------------------------------------------------------------------------------------


def batch_of(cfg: Config, version: int) -> Batch:
    """Random tokens in the recipe's shape: prompts and answers from a third of their longest to the longest."""
    prompt, response = ((longest // 3, longest) for longest in (cfg.model.prompt_tokens, cfg.model.response_tokens))
    return random_batch(version, cfg.rollout.groups_per_step, cfg.rollout.samples_per_group, prompt, response, 40_000)


async def learner_steps(cfg: Config, scratch: Path, pairs: int) -> tuple[list[float], list[float], float]:
    """Seconds of the steps in quiet and beside the loop, and the peak memory of a rank, GB."""
    policy = resolve_policy(cfg.model.policy)
    learner = ProcessLearner(cfg, policy, scratch, log=scratch / "log", total_updates=2 * pairs + 1)
    found: tuple[list[float], list[float]] = ([], [])
    try:
        await learner.start()
        await learner.step(batch_of(cfg, 0))  # warm-up
        for version in range(1, 2 * pairs + 1):
            busy = version % 2 == 0
            with beside_a_loop(busy):
                found[busy].append((await learner.step(batch_of(cfg, version))).seconds)
        return *found, peak_gb(learner.pids()[0])
    finally:
        await learner.close()


def peak_gb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e6


# --- the recipe ---------------------------------------------------------------------------------------------


def steps_done(metrics: Path) -> int:
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


def take_turns(metrics: Path, ended: threading.Event) -> None:
    """Run the loop beside every other step, from the third on; a step ends where its row of metrics appears."""
    while not ended.is_set():
        done = steps_done(metrics)
        with beside_a_loop(done > 1 and done % 2 == 0):
            while not ended.wait(0.05) and steps_done(metrics) == done:
                pass


def recipe_steps(cfg: Config) -> tuple[list[float], list[float]]:
    rows, ended = Path(cfg.run.dir) / "metrics.jsonl", threading.Event()
    thread = threading.Thread(target=take_turns, args=(rows, ended))
    thread.start()
    try:
        overlap.train(cfg)
    finally:
        ended.set()
        thread.join()
    seconds = [row["time/step_s"] for row in rows_of(Path(cfg.run.dir))]
    return seconds[1::2], seconds[2::2]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--config", type=Path, default=Path(CONFIG), help=f"configuration ({CONFIG})")
    parser.add_argument("--pairs", type=int, default=4, help="steps in quiet, and as many beside the loop (4)")
    parser.add_argument("--learner", action="store_true", help="the learner's step alone")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overlap-busy-") as folder:
        steps = [f"run.steps={2 * args.pairs + 1}", f"run.dir={folder}/run", "run.eval_samples=0"]
        cfg = load_config(args.config, [*steps, *args.overrides])
        quiet, busy, peak = asyncio.run(learner_steps(cfg, Path(folder), args.pairs))
        report("learner", quiet, busy)
        print(f"learner  peak memory  {peak:.2f} GB", flush=True)
        if not args.learner:
            report("recipe", *recipe_steps(cfg))


if __name__ == "__main__":
    main()
