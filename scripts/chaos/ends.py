"""Runs of the real command are ended in different ways at different moments of their start (minutes)

    bash scripts/chaos.sh ends [--ways int,term,hup,door] [--moments 1,2,...]

Ways: Ctrl-C, SIGTERM, SIGHUP, a door that fails; on demand also SIGTERM twice, SIGKILL of the driver, a stopped engine
and then Ctrl-C, nobody who reads stderr. Prints a row for each: seconds to the end, lines on stderr after the moment,
exit code, and what was left. Exit code 1 when a row misses the bar: 10 s, one line (none where the driver is killed),
exit code 130/143/129/1, nothing left.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[2]
BAR_S = 10.0
WAIT_S = 200.0
CODES = {
    "int": 130,
    "term": 143,
    "hup": 129,
    "door": 1,
    "twice": 143,
    "kill": 137,
    "stop": 130,
    "deaf": 130,
}
USUAL = ("int", "term", "hup", "door")
SILENT = ("kill", "deaf")
"""Ways that leave nobody to print a line, or nobody to read it; after SIGTERM twice there may be one."""


class Trial:
    """One run with its own folder for everything."""

    def __init__(self, policy: Path, deaf: bool = False) -> None:
        self.tmp, self.folder = Path(tempfile.mkdtemp(prefix="end-")), Path(tempfile.mkdtemp(prefix="endrun-"))
        shutil.copytree(policy, self.folder / "policy")
        self.dir = self.folder / "out"
        tree = {
            "model": {"policy": str(self.folder / "policy"), "dtype": "float32", "prompt_tokens": 64},
            "data": {"task": "toy:ToyTask"},
            "rollout": {"groups_per_step": 4, "samples_per_group": 6, "max_sequences": 24},
            "learn": {"micro_batch_tokens": 512, "truncated": "zero"},
            "run": {"steps": 100000, "dir": str(self.dir), "eval_samples": 0, "device": "cpu"},
        }
        tree["model"]["response_tokens"] = 64
        (self.folder / "config.yaml").write_text(yaml.safe_dump(tree))
        self.shm = set(os.listdir("/dev/shm"))
        self.err = self.folder / "stderr"
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "overlap.cli", "train", "--config", str(self.folder / "config.yaml")],
                cwd=ROOT / "tests" / "support",
                env=os.environ | {"TMPDIR": str(self.tmp), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if deaf else err,
                start_new_session=True,
            )

    def children(self, text: str) -> list[int]:
        """Pids below the run whose command line has ``text`` in it."""
        found = []
        try:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                try:
                    if text in " ".join(child.cmdline()):
                        found.append(child.pid)
                except psutil.Error:
                    continue
        except psutil.Error:
            pass
        return found

    def shared(self) -> list[str]:
        """Names in /dev/shm of what the run shares."""
        from overlap.process.run_environment import run_name, shared_memory_names

        return [name for scratch in self.tmp.glob("ovl-*") for name in shared_memory_names(run_name(scratch))]

    def until(self, moment: Callable[[Trial], object]) -> None:
        """Wait for a moment of the start."""
        until = time.monotonic() + WAIT_S
        while not moment(self):
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the moment did not come: {self.err.read_text()}")
            time.sleep(0.01)

    def end(self, way: str) -> tuple[float, list[str], int | str, list[str]]:
        """End it; returns seconds, lines, exit code and what was left."""
        self._mark()
        getattr(self, f"_{way}", self._signal)(way)
        try:
            ended = self.process.wait(120)
            code: int | str = 128 - ended if ended < 0 else ended  # as a shell tells it
        except subprocess.TimeoutExpired:
            code = "hangs"
        seconds = time.monotonic() - self.began
        lines = [line for line in self.err.read_bytes()[self.before :].decode().splitlines() if line.strip()]
        return seconds, lines, code, self._left()

    def _mark(self) -> None:
        self.before, self.began = self.err.stat().st_size, time.monotonic()

    def _signal(self, way: str) -> None:
        number = {"term": signal.SIGTERM, "hup": signal.SIGHUP, "kill": signal.SIGKILL}.get(way, signal.SIGINT)
        self.process.send_signal(number)

    def _door(self, way: str) -> None:
        self.until(lambda trial: trial.children("overlap.learner.rank"))  # before that, no door can fail
        self._mark()
        os.kill(self.children("overlap.learner.rank")[0], signal.SIGKILL)

    def _twice(self, way: str) -> None:
        self.process.send_signal(signal.SIGTERM)
        time.sleep(0.4)
        self.process.send_signal(signal.SIGTERM)

    def _stop(self, way: str) -> None:
        for pid in self.children("overlap.generate.host") + self.children("EngineCore"):
            os.kill(pid, signal.SIGSTOP)
        self.process.send_signal(signal.SIGINT)

    def _deaf(self, way: str) -> None:
        assert self.process.stderr
        self.process.stderr.close()
        self.process.send_signal(signal.SIGINT)

    def _left(self) -> list[str]:
        until = time.monotonic() + 10
        while (left := self._look()) and time.monotonic() < until:
            time.sleep(0.1)
        for process in psutil.process_iter():
            if self._ours(process):
                process.kill()
        for folder in (self.tmp, self.folder):
            shutil.rmtree(folder, ignore_errors=True)
        return left

    def _look(self) -> list[str]:
        processes = [f"pid {p.pid}" for p in psutil.process_iter() if self._ours(p)]
        ours = {name for name in set(os.listdir("/dev/shm")) - self.shm if "ovl-" in name and not _mapped(name)}
        return [*processes, *(p.name for p in self.tmp.iterdir()), *ours]

    def _ours(self, process: psutil.Process) -> bool:
        try:
            return str(self.tmp) in " ".join(process.environ().values())
        except psutil.Error:
            return False


def _mapped(name: str) -> bool:
    for process in psutil.process_iter():
        try:
            if any(name in m.path for m in process.memory_maps()):
                return True
        except psutil.Error:
            continue
    return False


MOMENTS: dict[str, Callable[[Trial], object]] = {
    "prepare": lambda t: list(t.tmp.glob("ovl-*")),
    "run directory": lambda t: t.dir.exists(),
    "host": lambda t: t.children("overlap.generate.host") and t.children("overlap.learner.rank"),
    "engine core": lambda t: t.children("EngineCore"),
    "shared memory": lambda t: t.shared(),
}


def main() -> int:
    """Run the table."""
    from overlap.policy.tiny import make_tiny_policy

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(USUAL), help=", ".join(CODES))
    parser.add_argument("--moments", default=",".join(str(i) for i in range(1, len(MOMENTS) + 1)))
    args = parser.parse_args()
    missed = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the run in hand is ended, too
    with tempfile.TemporaryDirectory() as folder:
        policy = make_tiny_policy(Path(folder) / "tiny")
        for way in args.ways.split(","):
            for index in map(int, args.moments.split(",")):
                name = list(MOMENTS)[index - 1]
                trial = Trial(policy, way == "deaf")
                try:
                    trial.until(MOMENTS[name])
                    seconds, lines, code, left = trial.end(way)
                finally:
                    trial.process.kill()
                told = len(lines) == (way not in SILENT) or (way == "twice" and not lines)
                good = seconds <= BAR_S and told and code == CODES[way] and not left
                missed += not good
                verdict = "ok" if good else "MISS"
                print(f"{way:<5} {name:<14} {seconds:6.1f} s  exit {code!s:<5} {verdict:<5} {lines} {left}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
