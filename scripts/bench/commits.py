"""The default run from two commits in turns: seconds per step, peak memory, and their ratios.

    git worktree of OLD ─▶ overlap train, N steps ─┐
    git worktree of NEW ─▶ overlap train, N steps ─┴▶ medians over the rounds

Both use the packages of this environment. Peak memory is the most that all processes of a run had of their own at once.
The evaluations are left out and the first step of each run too: it warms up.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
from _shared import CONFIG, ROOT, argument_parser, rows_of

RUN_S: Final = 3600.0
PEAK: Final = "own memory, GiB"
SHOWN: Final = (
    PEAK,
    "time/step_s",
    "time/generate_s",
    "time/learn_s",
    "time/sync_s",
    "time/parity_s",
    "time/exposed_reward_s",
)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A worktree of `commit` in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="bench-commits-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True, timeout=120)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, timeout=120)


def own_memory(pid: int) -> float:
    """GiB that this process and all below it have, without what they share."""
    found = 0
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error):
                memory = process.memory_info()
                found += max(0, memory.rss - memory.shared)
    return found / 2**30


def run(tree: Path, steps: int, more: list[str]) -> list[dict[str, float]]:
    """Rows of metrics of one run. Raises CalledProcessError with what it printed."""
    with tempfile.TemporaryDirectory(prefix="bench-commits-") as folder:
        settings = [f"run.steps={steps}", "run.eval_samples=0", f"run.dir={folder}/run", *more]
        command = [sys.executable, "-m", "overlap.cli", "train", "--config", str(tree / CONFIG), *settings]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        with subprocess.Popen(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL) as process:
            try:
                most, code = watch(process)
            except BaseException:
                process.send_signal(signal.SIGINT)
                process.wait(60)
                raise
        if code:
            raise subprocess.CalledProcessError(code, command)
        return [{**row, PEAK: most} for row in rows_of(Path(folder) / "run")]


def watch(process: subprocess.Popen[bytes]) -> tuple[float, int]:
    """The most memory that a run had, GiB, and how it ended. Raises TimeoutExpired."""
    most, until = 0.0, time.monotonic() + RUN_S
    while process.poll() is None:
        most = max(most, own_memory(process.pid))
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        if time.monotonic() > until:
            raise subprocess.TimeoutExpired(process.args, RUN_S)
    return most, process.returncode


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Median of each shown column, the first row left out."""
    return {name: statistics.median(row[name] for row in rows[1:] if name in row) for name in SHOWN if name in rows[-1]}


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("old", help="commit to compare with")
    parser.add_argument("new", nargs="?", default="HEAD", help="commit (HEAD)")
    parser.add_argument("--steps", type=int, default=8, help="steps of each run, 2 or more: the first counts not (8)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each commit (3)")
    parser.add_argument(
        "--set", dest="settings", nargs="+", default=[], metavar="key=value", help="more settings of the runs"
    )
    options = parser.parse_args()
    if options.steps < 2 or options.rounds < 1:
        parser.error(f"--steps={options.steps} --rounds={options.rounds}: use 2 steps and 1 round or more")
    found: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    with checked_out(options.old) as old, checked_out(options.new) as new:
        for number in range(options.rounds):
            for name, tree in (("old", old), ("new", new))[:: 1 if number % 2 == 0 else -1]:
                found[name].append(medians(run(tree, options.steps, options.settings)))
                print(f"round {number + 1} {name}: {found[name][-1]['time/step_s']:.2f} s per step", flush=True)
    print(f"{'median of medians':<24}{'old':>9}{'new':>9}{'new/old':>9}")
    for column in SHOWN:
        if all(column in row for rows in found.values() for row in rows):
            before, after = (statistics.median(row[column] for row in found[name]) for name in ("old", "new"))
            print(f"{column:<24}{before:>9.3f}{after:>9.3f}{after / before if before else float('nan'):>9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
