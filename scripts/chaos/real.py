"""Each kind of process of a run on engine, learner and sandbox is killed once (minutes)

The run trains a tiny policy. One of each kind is killed, in random order and at random moments: engine core,
engine host, learner rank, sandbox supervisor, sandbox worker, and the driver, with which the run ends until
``--resume``. The next kill may come while the last one is still being made good; not so for another process of the
engine, whose deaths are counted, nor after the learner or the driver, for a start that fails is final. Then the run is
drained, ends, and its books are checked (``_books.py``).
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from _books import Entry, check, left_in, rows_of

from overlap.core import Prompt
from overlap.pipeline.prompts import PromptStream
from overlap.process.process_tree import Pid, alive, list_descendants
from overlap.process.run_environment import run_name, shared_memory_names
from overlap.record.metrics import read_steps
from overlap.run.control_socket import ask

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "tests" / "support"
GROUPS, SAMPLES, STALENESS = 4, 6, 1
PROMPTS = 8  # of the toy task
STEPS = 200
"""A run that is not drained ends by itself."""
MOMENT_S = 300.0  # an engine starts in half a minute, and in many times that where others work
END_S = 60.0
MADE_GOOD = 2
"""Steps after a kill: the first may have been on its way."""
LATER_S, MEANWHILE_S = 2.0, 8.0
"""The longest wait before a kill, and before one that does not wait for the last to be made good."""
ENGINE = ("engine core", "engine host")
STARTS = 3
"""Of engines and whole runs that are waited for; each takes more than half a minute."""
MEMBERS = {
    "engine core": "EngineCore",
    "engine host": "overlap.generate.host",
    "learner rank": "overlap.learner.rank",
    "sandbox supervisor": "sandbox.pool.supervisor",
    "sandbox worker": "sandbox.pool.worker",
}
"""Words of their command lines or names."""
DRIVER = "driver"
KINDS = (*MEMBERS, DRIVER)
SHOWN = 40
"""Lines of a run that failed."""
WENT_ON = re.compile(r"generation goes on, ([\d.]+) s after the death of the engine")


Row = dict[str, Any]


class Failed(Exception):
    """The run ended, or did not do what it should in time."""


@dataclass
class Training:
    """A run of ``overlap train``, begun and gone on with in processes that are killed."""

    folder: Path
    policy: Path
    scratch: Path
    seed: int
    process: subprocess.Popen[bytes] | None = None
    members: set[Pid] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """Of its scratch directories, as shared memory bears them."""

    @property
    def directory(self) -> Path:
        return self.folder / "out"

    @property
    def said(self) -> str:
        """Its stderr."""
        return (self.folder / "said").read_text(errors="replace")

    def start(self) -> None:
        file = self.folder / "config.yaml"
        file.write_text(yaml.safe_dump(self._settings()))
        self._run("--config", str(file))

    def resume(self) -> None:
        self._run("--resume", f"run.dir={self.directory}")

    def _settings(self) -> dict[str, object]:
        rollout = {"groups_per_step": GROUPS, "samples_per_group": SAMPLES, "max_sequences": GROUPS * SAMPLES}
        run = {"steps": STEPS, "seed": self.seed, "dir": str(self.directory), "device": "cpu", "eval_samples": 0}
        return {
            "model": {"policy": str(self.policy), "dtype": "float32", "prompt_tokens": 64, "response_tokens": 64},
            "data": {"task": "toy:ToyTask"},
            "rollout": rollout | {"max_staleness": STALENESS},
            "learn": {"lr": 1e-4, "micro_batch_tokens": 512, "truncated": "zero"},
            "run": run | {"save_every": 1, "samples": "all"},
        }

    def _run(self, *words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.scratch)}
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "overlap.cli", "train", *words],
                cwd=TOY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def rows(self) -> int:
        """Steps in metrics.jsonl, by what their rows have and those of evaluations lack."""
        path = self.directory / "metrics.jsonl"
        return path.read_bytes().count(b'"time/step_s"') if path.exists() else 0

    def until_steps(self, count: int) -> None:
        """Wait for so many further steps; steps that are repeated do not count."""
        known, seen = self.rows(), 0

        def enough() -> bool:
            nonlocal known, seen
            rows = self.rows()
            seen, known = seen + max(0, rows - known), rows
            return seen >= count

        self.until(enough, f"{count} steps more")

    def until(self, moment: Callable[[], object], what: str) -> None:
        """Wait for a moment of the run. Raises Failed."""
        assert self.process is not None
        until = time.monotonic() + MOMENT_S
        while not moment():
            if (code := self.process.poll()) is not None:
                raise Failed(f"the run ended with {code} before {what}")
            if time.monotonic() > until:
                raise Failed(f"the run did not come to {what} within {MOMENT_S:g} s")
            self._look()
            time.sleep(0.1)

    def _look(self) -> None:
        """Remember what belongs to the run, so that what outlives it is known."""
        assert self.process is not None
        self.members.update(list_descendants(self.process.pid))
        self.names.update(run_name(path) for path in self.scratch.glob("ovl-*"))

    def kill(self, kind: str) -> None:
        """SIGKILL to a member of this kind, as soon as there is one. Raises Failed."""
        assert self.process is not None
        if kind == DRIVER:
            self._look()
            self.process.kill()
            if (code := self.process.wait(END_S)) != -signal.SIGKILL:
                raise Failed(f"the run ended with {code} before the kill")
            return
        self.until(lambda: self._killed(MEMBERS[kind]), f"a process of the {kind}")

    def _killed(self, text: str) -> bool:
        """Kill one, if there is one; returns whether there was."""
        found = self._of(text)
        for pid in found[-1:]:
            os.kill(pid, signal.SIGKILL)
        return bool(found)

    def go_on(self, seconds: float) -> None:
        """Leave it alone for so long. Raises Failed."""
        until = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= until, "the next kill")

    def end(self) -> None:
        """End it at once, in whatever state it is."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(END_S)
            left_in(self.scratch)

    def _of(self, text: str) -> list[int]:
        assert self.process is not None
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if text in " ".join(child.cmdline()) + " " + child.name():
                    found.append(child.pid)
            except psutil.Error:
                continue
        return found

    def drain(self) -> None:
        """End it in order. Raises Failed."""
        assert self.process is not None
        ask(str(self.directory), "drain")
        if code := self.process.wait(MOMENT_S):
            raise Failed(f"the drained run ended with {code}")

    def left(self) -> list[object]:
        """Everything that is left of it, besides its directory."""
        found = left_in(self.scratch)
        memory = [f"/dev/shm/{name}" for run in sorted(self.names) for name in shared_memory_names(run)]
        return [*found, *filter(alive, self.members), *memory]

    def samples(self) -> list[Row]:
        """Samples of the steps that count, each with the ``version`` before its step."""
        rows = read_steps(self.directory / "metrics.jsonl")
        versions = {row["step"]: row["version"] - 1 for row in rows}
        kept = [row for row in rows_of(self.directory / "trajectories.jsonl") if row["split"] == "train"]
        return [row | {"version": versions[row["step"]]} for row in kept]


def history(samples: list[Row]) -> list[Entry]:
    """The steps, by their samples."""
    steps: dict[int, Entry] = {}
    for row in samples:
        blank = {"step": row["step"], "version": row["version"], "groups": [], "prompts": [], "samples": []}
        entry = steps.setdefault(row["step"], blank)
        if row["group"] not in entry["groups"]:
            entry["groups"].append(row["group"])
            entry["prompts"].append(row["prompt_id"])
            entry["samples"].append([])
        entry["samples"][entry["groups"].index(row["group"])].append(row["sample"])
    return [*steps.values()]


def unbroken(steps: int, seed: int) -> dict[int, Entry]:
    """The steps of a run without kills: every prompt in its turn, every sample of it once."""
    prompts = PromptStream([Prompt(f"train{i}", (1,)) for i in range(PROMPTS)], seed)
    found = {}
    for step in range(1, steps + 1):
        groups = [*range((step - 1) * GROUPS, step * GROUPS)]
        found[step] = {
            "step": step,
            "version": step - 1,
            "groups": groups,
            "prompts": [prompts.at(group).id for group in groups],
            "samples": [[*range(SAMPLES)] for _ in groups],
        }
    return found


def wrong_ages(samples: list[Row]) -> int:
    """Samples whose tokens went back to an older version, or are of one that was too old or not there yet."""

    def wrong(row: Row) -> bool:
        versions = [version for version, _, _ in row["versions"]]
        known = all(row["version"] - STALENESS <= version <= row["version"] for version in versions)
        return versions != sorted(versions) or not known

    return sum(map(wrong, samples))


def schedule(rng: random.Random) -> list[tuple[str, list[str]]]:
    """Kinds in the order in which one of each is killed, and which of those before it are being made good then.

    One of those in which ``STARTS`` are waited for, not more.
    """
    while True:
        kills, starts, pending = list[tuple[str, list[str]]](), 0, list[str]()
        for kind in (*rng.sample(KINDS, len(KINDS)), ""):
            final = {"learner rank", DRIVER}.intersection(pending) and kind != DRIVER
            again = kind in ENGINE and set(ENGINE).intersection(pending)
            if not kind or final or again or rng.random() < 0.5:
                starts += any(not before.startswith("sandbox") for before in pending)
                pending = []
            kills.append((kind, pending))
            pending = [*pending, kind]
        if starts <= STARTS:
            return kills[:-1]


def play(run: Training, rng: random.Random) -> None:
    """Kill one of each kind, and end. Raises Failed."""
    began = time.monotonic()
    run.start()
    for kind, pending in schedule(rng):
        if not pending:
            run.until_steps(MADE_GOOD)
        run.go_on(rng.random() * (MEANWHILE_S if pending else LATER_S))
        run.kill(kind)
        meanwhile = f"; not yet made good: {', '.join(pending)}" if pending else ""
        print(f"{time.monotonic() - began:6.1f} s, {run.rows():3} steps: {kind}{meanwhile}", flush=True)
        if kind == DRIVER:
            run.resume()
    run.until_steps(MADE_GOOD)
    run.drain()


def books_of(run: Training) -> dict[str, int]:
    samples = run.samples()
    steps = max(row["step"] for row in samples)
    books = check(run.directory, steps, history(samples), unbroken(steps, run.seed), run.left())
    return books | {"ages": wrong_ages(samples)}


def one_round(place: Path, policy: Path, seed: int) -> dict[str, int]:
    """The books of a run. Raises Failed."""
    scratch = Path(tempfile.mkdtemp(prefix="chaos-"))  # short: sockets go there
    run = Training(place, policy, scratch, seed)
    try:
        play(run, random.Random(seed))
        books = books_of(run)
        outages = [float(seconds) for seconds in WENT_ON.findall(run.said)]
        print(f"{run.rows()} steps; from an engine's death to the next response: {_seconds(outages)}")
        return books
    except BaseException:
        print("\n".join(run.said.splitlines()[-SHOWN:]), file=sys.stderr)
        raise
    finally:
        run.end()
        shutil.rmtree(scratch, ignore_errors=True)


def _seconds(outages: list[float]) -> str:
    return ", ".join(f"{seconds:.1f} s" for seconds in outages) or "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="runs, with one kill of each kind in each (1)")
    parser.add_argument("--seed", type=int, help="of the first run (another one each time)")
    options = parser.parse_args()
    rounds, seed = options.rounds, options.seed
    first = random.SystemRandom().randrange(10**6) if seed is None else seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the run in hand is ended, too
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        sys.path.append(str(TOY))
        from tiny_policy import make_tiny_policy

        policy = make_tiny_policy(Path(place) / "tiny")
        for number in range(first, first + rounds):
            print(f"real parts, --seed {number}", flush=True)
            folder = Path(place) / str(number)
            folder.mkdir()
            try:
                total.update(one_round(folder, policy, number))
            except Failed as error:
                print(f"--seed {number}: {error}", file=sys.stderr)
                return 1
    print(f"{rounds * len(KINDS)} kills: " + ", ".join(f"{count} {name}" for name, count in total.items()))
    return 1 if sum(total.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
