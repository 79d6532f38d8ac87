"""Bad days: each ends with one clear message, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from engine_stub import wait_until
from places import SUPPORT
from wide import wide

from overlap.process.process_tree import await_end, identify, marked, read_proc

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SHM = Path("/dev/shm")
MOMENT_S = 600.0
"""A start takes half a minute, and many times that where others work; only a hanging run waits as long as this."""
END_S = 180.0
"""For what takes seconds at most where nothing else runs."""


class Run:
    """A training run of the command line in a process group of its own, with its own directory for temporary files."""

    def __init__(self, folder: Path, policy: Path, **overrides: object) -> None:
        self.dir, self.tmp = folder / "out", Path(tempfile.mkdtemp(prefix="bad-"))  # short: sockets go there
        tree = {
            "model": {"policy": str(policy), "dtype": "float32", "prompt_tokens": 64, "response_tokens": 64},
            "data": {"task": "toy:ToyTask"},
            "rollout": {"groups_per_step": 4, "samples_per_group": 6, "max_sequences": 24},
            "learn": {"lr": 1e-4, "micro_batch_tokens": 512, "truncated": "zero"},
            "run": {"steps": 100000, "dir": str(self.dir), "eval_samples": 0, "device": "cpu"},
        }
        file = folder / "config.yaml"
        file.write_text(yaml.safe_dump(tree))
        self.shm_before = set(os.listdir(SHM))
        self.shm: set[str] = set()
        self.looked_s = 0.0
        command = [sys.executable, "-m", "overlap.cli", "train", "--config", str(file)]
        self.process = subprocess.Popen(
            [*command, *(f"{k}={v}" for k, v in overrides.items())],
            cwd=SUPPORT,
            env=os.environ | {"TMPDIR": str(self.tmp)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until_step(self, step: int = 1, seconds: float = MOMENT_S) -> None:
        """Wait until a step was written down."""
        metrics = self.dir / "metrics.jsonl"
        self.until(lambda: metrics.exists() and metrics.read_text().count('"time/step_s"') >= step, seconds)

    def until(self, moment: Callable[[], object], seconds: float = MOMENT_S) -> None:
        """Wait for a moment of the run."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            came = moment()
            self.look()
            if came:
                return
            time.sleep(0.05)
        os.killpg(self.process.pid, signal.SIGKILL)
        raise AssertionError(f"the moment did not come: {self.process.communicate(timeout=30)[1]}")

    def look(self) -> None:
        """Remember which new shared memory a process of the run has mapped, at most twice a second."""
        if time.monotonic() < self.looked_s + 0.5:
            return
        new = set(os.listdir(SHM)) - self.shm_before - self.shm
        maps = [read_proc(pid, "maps") for pid in self.children(lambda text: True)] if new else []
        self.shm |= {name for name in new if any(name.encode() in text for text in maps)}
        self.looked_s = time.monotonic()

    def children(self, what: Callable[[str], bool]) -> list[int]:
        """Pids below the run whose command line or name matches."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if what(" ".join(child.cmdline()) + " " + child.name()):
                    found.append(child.pid)
            except psutil.NoSuchProcess:
                continue
        return found

    def end(self, seconds: float = END_S) -> tuple[int, str]:
        """Exit code and the message, within ``seconds``; then nothing may be left."""
        members = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        known = [i for i in map(identify, [m.pid for m in members]) if i is not None]
        _, err = self.process.communicate(timeout=seconds)
        assert await_end(known, END_S) == [], "a process outlived the run"
        self.nothing_left()
        return self.process.returncode, err

    def unowned(self) -> set[str]:
        """Shared memory of the run that is left. Other runs and tests have theirs in the same place."""
        return {name for name in set(os.listdir(SHM)) - self.shm_before if name in self.shm and not mapped(name)}

    def nothing_left(self) -> None:
        wait_until(lambda: not self.unowned(), END_S)  # resource trackers work after the exit of whom they served
        assert list(self.tmp.iterdir()) == []


def mapped(segment: str) -> bool:
    """True when a living process has this shared memory in its address space."""
    return any(segment.encode() in read_proc(int(pid), "maps") for pid in os.listdir("/proc") if pid.isdigit())


@pytest.fixture
def run(tiny_policy: Path, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(**overrides: object) -> Run:
        started.append(Run(tmp_path, tiny_policy, **overrides))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.communicate(timeout=10)
        shutil.rmtree(each.tmp, ignore_errors=True)


def last_line(err: str) -> str:
    return err.strip().splitlines()[-1]


def kill_one(r: Run, word: str) -> None:
    """A process of the run that has this word in its command line or name."""
    pids = r.children(lambda text: word in text)
    assert pids, f"no process of {word}"
    os.kill(pids[-1], signal.SIGKILL)


def steps_of(r: Run) -> int:
    return (r.dir / "metrics.jsonl").read_text().count('"time/step_s"')


@pytest.mark.promise("kills", "interrupts")
def test_a_run_whose_verifier_engine_and_learner_are_killed_goes_on_and_an_interrupt_keeps_what_it_learned(run) -> None:
    """One after the other in one run, whose start is the long part; ``scripts/chaos.sh real`` kills each alone."""
    from transformers import AutoModelForCausalLM

    r = run(**{"rollout.max_staleness": 1, "run.save_every": 1})
    r.until_step()
    for word in ("sandbox", "EngineCore"):
        kill_one(r, word)
        r.until_step(steps_of(r) + 3)
    r.until(lambda: any(r.dir.glob("checkpoints/step-*/COMPLETE")))
    (first,) = ranks = r.children(lambda text: "overlap.learner.rank" in text)
    os.kill(first, signal.SIGKILL)
    r.until(lambda: r.children(lambda text: "overlap.learner.rank" in text) not in ([], ranks))
    r.until_step(steps_of(r) + 2)
    os.killpg(r.process.pid, signal.SIGINT)
    code, err = r.end()
    assert (code, last_line(err)) == (130, "overlap: interrupted")
    assert "the engine died" in err or "engine process" in err
    assert err.count("generation goes on, ") == err.count("(restart 1 of 2) in 5 s") == 1
    summary = json.loads((r.dir / "summary.json").read_text())
    assert (summary["exit"], len(summary["engine_outages_s"]), len(summary["restarts"])) == ("interrupted", 1, 1)
    print(f"from the death of the engine to the next response: {summary['engine_outages_s'][0]:.1f} s")
    rows = [json.loads(line) for line in (r.dir / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["version"]) for row in rows] == [(k, k) for k in range(1, len(rows) + 1)]
    assert all(row["rollout/samples"] == 24 for row in rows)
    assert sum(row["reward/masked"] for row in rows) == 0
    assert summary["policy"]["path"] == str(r.dir / "policy")
    assert f"{r.dir / 'policy'} (version {summary['policy']['version']})" in err
    assert AutoModelForCausalLM.from_pretrained(r.dir / "policy").num_parameters() > 0
    assert not list(r.dir.glob(".*"))


@pytest.mark.wide
@pytest.mark.parametrize(
    ("moment", "number", "code", "message"),
    [
        ("overlap.generate.host", signal.SIGTERM, 143, "overlap: interrupted"),
        wide("EngineCore", signal.SIGHUP, 129, "overlap: interrupted"),
        wide("EngineCore", signal.SIGKILL, 1, "overlap: failed: "),
    ],
)
def test_an_end_while_the_engine_starts_is_one_line_and_leaves_nothing(run, moment, number, code, message) -> None:
    r = run()
    r.until(lambda: r.children(lambda text: moment in text))
    ranks = r.children(lambda text: "overlap.learner.rank" in text)
    os.kill(r.process.pid if number != signal.SIGKILL else ranks[0], number)
    ended, err = r.end()
    assert ended == code
    assert last_line(err).startswith(message)
    assert number != signal.SIGKILL or "learner rank 0" in last_line(err)  # perhaps behind the stage that noticed
    assert [line for line in err.splitlines() if line.startswith("overlap:")] == [last_line(err)]
    assert "Traceback" not in err


@pytest.mark.wide
def test_a_second_ctrl_c_ends_at_once_and_still_leaves_nothing(run) -> None:
    r = run()
    r.until_step()
    os.killpg(r.process.pid, signal.SIGINT)
    os.killpg(r.process.pid, signal.SIGINT)
    assert r.process.wait(timeout=END_S) in (130, -signal.SIGINT)
    settle(r)


@pytest.mark.promise("nothing-left")
def test_a_driver_killed_with_sigkill_leaves_nothing(run) -> None:
    r = run()
    r.until_step()
    os.kill(r.process.pid, signal.SIGKILL)
    r.process.wait(timeout=10)
    settle(r)


def settle(r: Run) -> None:
    """After a hard end the reaper cleans up by itself: wait until it has."""
    wait_until(lambda: not marked(f"TMPDIR={r.tmp}") and not list(r.tmp.iterdir()), END_S)
    r.process.communicate(timeout=10)
    assert not [p for p in psutil.process_iter() if _belongs(p, str(r.tmp))]
    r.nothing_left()


def _belongs(process: psutil.Process, tmp: str) -> bool:
    try:
        return tmp in " ".join(process.environ().values())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


@pytest.mark.wide
def test_a_full_disk_costs_no_step_and_what_is_lost_is_told(tmp_path: Path, run) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        r = run(**{"run.dir": str(disk / "out"), "run.steps": 4, "run.save_every": 2})
        code, err = r.end(MOMENT_S)
        assert code == 1
        assert "No space left" in last_line(err)  # of the policy, which is larger than the disk
        assert "step 4/4" in err
        assert "checkpoints is not being written: " in err
        assert not list((disk / "out" / "checkpoints").iterdir())
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.promise("bad-input")
def test_bad_input_is_one_line_and_exit_code_2(run) -> None:
    r = run(**{"data.task": "toy:NoTask"})
    code, err = r.end()
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "data.task=" in err
    assert not r.dir.exists()
