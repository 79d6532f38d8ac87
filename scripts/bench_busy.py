"""How much slower steps are beside one endless single-threaded loop: quiet and busy steps in turns, medians of one run.

The learner's step is taken on batches of the recipe's shape with random tokens; the recipe's are those of a real run.
Peak memory of the learner is the kernel's own figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import overlap
from overlap.config import Config, load_config
from overlap.core import Batch, Group, Prompt, Request, Scored, Trajectory, VersionSpan
from overlap.learner import ProcessLearner
from overlap.policy import resolve_policy

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


def random_batch(cfg: Config, version: int) -> Batch:
    """Random tokens in the recipe's shape: prompts and answers from a third of their longest to the longest."""
    rng = random.Random(version)

    def tokens(longest: int) -> tuple[int, ...]:
        return tuple(rng.randrange(100, 40_000) for _ in range(rng.randint(longest // 3, longest)))

    def sample(group: int, number: int, prompt: Prompt) -> Scored:
        ids = tokens(cfg.model.response_tokens)
        spans = (VersionSpan(version, 0, len(ids)),)
        answer = Trajectory(Request(group, number, prompt), ids, (-9.0,) * len(ids), "", "stop", spans, 0.0, 1.0)
        return Scored(answer, 1.0)

    def group(number: int) -> Group:
        prompt = Prompt(f"p{number}", tokens(cfg.model.prompt_tokens))
        samples = tuple(sample(number, k, prompt) for k in range(cfg.rollout.samples_per_group))
        return Group(number, prompt, samples, tuple(rng.choice((-1.0, 1.0)) for _ in samples))

    return Batch(version + 1, version, tuple(map(group, range(cfg.rollout.groups_per_step))))


async def learner_steps(cfg: Config, scratch: Path, pairs: int) -> tuple[list[float], list[float], float]:
    """Seconds of the steps in quiet and beside the loop, and the peak memory of a rank, GB."""
    policy = resolve_policy(cfg.model.policy)
    learner = ProcessLearner(cfg, policy, scratch, log=scratch / "log", total_updates=2 * pairs + 1)
    found: tuple[list[float], list[float]] = ([], [])
    try:
        await learner.start()
        await learner.step(random_batch(cfg, 0))  # warm-up
        for version in range(1, 2 * pairs + 1):
            busy = version % 2 == 0
            with beside_a_loop(busy):
                found[busy].append((await learner.step(random_batch(cfg, version))).seconds)
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
    seconds = [json.loads(line)["time/step_s"] for line in rows.read_text().splitlines()]
    return seconds[1::2], seconds[2::2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
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
