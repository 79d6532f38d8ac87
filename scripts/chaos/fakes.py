"""Runs on the fakes are killed at random moments and resumed (minutes)

    bash scripts/chaos.sh fakes [--kills 50] [--steps 60] [--seed 0]

Each is ``overlap.train`` in a process of its own, at a staleness from 0 to 4, with a checkpoint every one to three
steps. Two kills in three come at a random time, one in three at a random file operation; then the run is resumed. Its
learner dies up to twice, from which the run recovers by itself. When a run has come to its end, one of the next
staleness and seed follows, until all kills are spent. Each is compared with the same run unbroken (``_books.py``).
Exit code 1 when a book is not 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _books import Entry, check, left_in, rows_of

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("_fakes_child.py")
SUPPORT = ROOT / "tests" / "support"
STALENESS = range(5)
END_S = 120.0  # for a run of seconds
FURTHER = 8  # a kill comes within so many steps after the begin of the training
WITHIN_S = 0.05  # and so long after the last of them
OPERATIONS = 400  # or at one of so many file operations, the start included


@dataclass(frozen=True)
class Run:
    """One configuration: the folder of the run, its journal, and its settings."""

    folder: Path
    number: int
    steps: int
    seed: int

    @property
    def directory(self) -> Path:
        return self.folder / "run"

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    def entries(self) -> list[Entry]:
        """Steps that the learner took, in the order in which it took them."""
        return rows_of(self.journal) if self.journal.exists() else []

    def child(self, *, resume: bool, kill_at: int = 0, deaths: Sequence[int] = ()) -> subprocess.Popen[bytes]:
        """Start it. It writes a line to its stdout when training begins; its learners die after so many steps."""
        scratch = self.folder / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        settings = {
            "journal": str(self.journal),
            "resume": resume,
            "kill_at": kill_at,
            "deaths": list(deaths),
            "overrides": [
                f"run.dir={self.directory}",
                f"run.steps={self.steps}",
                f"run.seed={self.seed}",
                f"rollout.max_staleness={STALENESS[self.number % len(STALENESS)]}",
                f"rollout.refill_groups={2 * (self.number % 2)}",
                f"run.save_every={1 + self.number % 3}",
            ],
        }
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}", "TMPDIR": str(scratch)}
        with (self.folder / "said").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, str(CHILD), json.dumps(settings)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=said,
            )

    def has_checkpoint(self) -> bool:
        return any(self.directory.glob("checkpoints/step-*/COMPLETE"))


def to_its_end(run: Run, *, resume: bool) -> None:
    with run.child(resume=resume) as process:
        if process.wait(END_S):
            raise SystemExit(f"{run.directory}: the run failed; see {run.folder / 'said'}")


def break_off(run: Run, rng: random.Random) -> bool:
    """Begin or go on, and kill; returns False when the run had come to its end first."""
    resume = run.has_checkpoint()
    if not resume:
        _clear(run)
    kill_at = rng.randrange(1, OPERATIONS) if rng.random() < 1 / 3 else 0
    deaths = [rng.randrange(1, FURTHER) for _ in range(rng.randrange(3))] if resume else []
    with run.child(resume=resume, kill_at=kill_at, deaths=deaths) as process:
        assert process.stdout is not None
        if not kill_at:
            if rng.random() < 0.8:
                process.stdout.readline()
                _wait_for_steps(run, process, rng.randrange(FURTHER))
            time.sleep(rng.random() * WITHIN_S)
            process.send_signal(signal.SIGKILL)
        code = process.wait(END_S)
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"{run.directory}: the run failed; see {run.folder / 'said'}")
    return code != 0


def _wait_for_steps(run: Run, process: subprocess.Popen[bytes], further: int) -> None:
    goal, until = len(run.entries()) + further, time.monotonic() + END_S
    while len(run.entries()) < goal and process.poll() is None and time.monotonic() < until:
        time.sleep(0.001)


def books_of(run: Run, whole: Run) -> dict[str, int]:
    """The books of a run that was broken off, against the unbroken one's."""
    expected = {entry["step"]: entry for entry in whole.entries()}
    return check(run.directory, run.steps, run.entries(), expected, left_in(run.folder / "tmp"))


def unbroken(folder: Path, number: int, steps: int, seed: int) -> Run:
    whole = Run(folder / f"whole-{number}", number, steps, seed)
    to_its_end(whole, resume=False)
    return whole


def on_fakes(kills: int, steps: int, first: int) -> int:
    """Exit code 1 when something is wrong."""
    rng, left, number = random.Random(first), kills, 0
    total: Counter[str] = Counter()
    print("staleness  kills  steps learned  lost  twice  differ  rows  left")
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        while left > 0:
            seed = first + number
            whole = unbroken(Path(place), number, steps, seed)
            run = Run(Path(place) / f"broken-{number}", number, steps, seed)
            spent, most = 0, min(left, -(-kills // len(STALENESS)))
            while spent < most and break_off(run, rng):
                spent += 1
            if not (run.directory / "summary.json").exists():
                _finish(run)
            books = books_of(run, whole)
            total.update(books)
            left, number = left - spent, number + 1
            staleness, learned = STALENESS[run.number % len(STALENESS)], len(run.entries())
            print(f"{staleness:9}  {spent:5}  {learned:13}" + "".join(f"  {n:>{len(k)}}" for k, n in books.items()))
    print(f"{kills} kills: " + ", ".join(f"{count} {name}" for name, count in total.items()))
    return 1 if sum(total.values()) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="kills in all (50)")
    parser.add_argument("--steps", type=int, default=60, help="steps of each run (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the kills, and of the first run (0)")
    options = parser.parse_args()
    return on_fakes(options.kills, options.steps, options.seed)


def _finish(run: Run) -> None:
    resume = run.has_checkpoint()
    if not resume:
        _clear(run)
    to_its_end(run, resume=resume)


def _clear(run: Run) -> None:
    """Killed before its first checkpoint: there is nothing to go on with. Its reaper may be at work there, too."""
    while run.directory.exists():
        shutil.rmtree(run.directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
