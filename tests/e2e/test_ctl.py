"""Commands to a real run: by ``overlap ctl`` from its start to its end, over a killed learner, then from Python."""

from __future__ import annotations

import asyncio
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
from typing import Any

import psutil
import pytest
import yaml
from places import SUPPORT

from overlap.core.errors import OverlapError
from overlap.record.json_lines import read_json_lines
from overlap.run.control_socket import ask

WILL_PAUSE = "the run is starting: it will pause once it has started, before it takes a step"
DRAINS = "draining: no further prompts are admitted; the run ends when all complete steps are learned"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

MOMENT_S = 600.0
"""A start takes half a minute, and many times that where others work; only a hanging run waits as long as this."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a policy, a configuration, and in ``out`` the run of all tests here."""
    from tiny_policy import make_tiny_policy

    folder = tmp_path_factory.mktemp("ctl")
    policy = make_tiny_policy(folder / "tiny")
    (folder / "config.yaml").write_text(yaml.safe_dump(tree(policy, folder / "out")))
    return folder


def tree(policy: Path, run: Path) -> dict[str, Any]:
    return {
        "model": {"policy": str(policy), "dtype": "float32", "prompt_tokens": 64, "response_tokens": 32},
        "data": {"task": "toy:ToyTask"},
        "rollout": {"groups_per_step": 4, "samples_per_group": 6, "max_sequences": 24, "max_staleness": 1},
        "learn": {"lr": 1e-4, "micro_batch_tokens": 512, "truncated": "zero"},
        "run": {"steps": 100000, "dir": str(run), "eval_samples": 0, "device": "cpu"},
    }


@pytest.fixture
def train(folder: Path) -> Iterator[subprocess.Popen[str]]:
    tmp = tempfile.mkdtemp(prefix="ctl-")  # short: sockets go there
    process = subprocess.Popen(
        [sys.executable, "-m", "overlap.cli", "train", "--config", str(folder / "config.yaml")],
        cwd=SUPPORT,
        env=os.environ | {"TMPDIR": tmp},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    if process.poll() is None:
        process.kill()  # its reaper ends the rest
        process.communicate(timeout=30)
    shutil.rmtree(tmp, ignore_errors=True)


def ctl(run: Path, command: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``overlap ctl``."""
    words = [sys.executable, "-m", "overlap.cli", "ctl", str(run), command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def until(run: Path, holds: Callable[[dict[str, Any]], bool], alive: Callable[[], bool]) -> dict[str, Any]:
    """The first status that ``holds``."""
    end, status = time.monotonic() + MOMENT_S, dict[str, Any]()
    while time.monotonic() < end and alive():
        try:
            if holds(status := ask(str(run), "status")):
                return status
        except OverlapError:  # it has no directory yet, or answers nobody at this moment
            pass
        time.sleep(0.05)
    raise AssertionError(f"the moment did not come: {status}")


@pytest.mark.wide
def test_a_real_run_obeys_in_every_moment_of_its_life(folder: Path, train: subprocess.Popen[str]) -> None:
    run = folder / "out"

    def moment(holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        return until(run, holds, lambda: train.poll() is None)

    def paused(status: dict[str, Any]) -> bool:
        return bool(status["state"] == "paused" and not status["saving"])

    moment(lambda status: status["state"] == "starting")
    assert ctl(run, "pause") == (0, WILL_PAUSE, "")
    status = moment(paused)
    assert (status["step"], status["submitted"]) == (0, 0)
    assert ctl(run, "resume") == (0, "resumed", "")
    moment(lambda status: status.get("step", 0) >= 2)

    assert ctl(run, "pause")[0] == 0
    before = moment(paused)
    assert ctl(run, "save") == (0, "saving between two steps", "")
    saved = moment(lambda status: paused(status) and status["checkpoint"] is not None)
    assert saved["step"] == before["step"]
    assert saved["checkpoint"] == f"step-{before['step']:06d}"
    assert (run / "checkpoints" / saved["checkpoint"] / "COMPLETE").exists()

    for child in psutil.Process(train.pid).children(recursive=True):
        if "overlap.learner.rank" in " ".join(child.cmdline()):
            child.send_signal(signal.SIGKILL)
    moment(lambda status: status["state"] == "restarting: 1 of 2")
    assert ctl(run, "save")[1].startswith("the run is restarting: 1 of 2: it will save once it has started")
    again = moment(paused)
    assert (again["step"], again["restarts"], again["checkpoint"]) == (saved["step"], 1, saved["checkpoint"])

    assert ctl(run, "resume") == (0, "resumed", "")
    moment(lambda status: status["step"] > saved["step"])
    assert ctl(run, "drain") == (0, DRAINS, "")
    _, err = train.communicate(timeout=MOMENT_S)
    assert train.returncode == 0, err
    summary = json.loads((run / "summary.json").read_text())
    assert summary["exit"] == "drained"
    assert summary["steps"] > saved["step"]
    last = read_json_lines(run / "metrics.jsonl")[-1]
    assert (summary["steps"], summary["policy"]["version"]) == (last["step"], last["version"])
    assert not (run / "ctl").exists()
    code, _, told = ctl(run, "status")
    assert code == 2
    assert told.endswith(f"no run is in progress there: it has ended (drained, {summary['steps']} steps)")


@pytest.mark.wide
def test_a_real_run_goes_on_under_the_hand_of_a_program_with_a_loop_of_its_own(folder: Path) -> None:
    import overlap

    run = folder / "out"
    assert (run / "checkpoints").is_dir(), "the test before this one has left no run"
    cfg = overlap.load_config(folder / "config.yaml", [])

    async def program() -> dict[str, Any]:
        with overlap.start(cfg, resume=True) as hand:
            waiting = asyncio.create_task(asyncio.to_thread(hand.wait))
            first, alive = hand.status()["state"], lambda: not hand.done
            came = await asyncio.to_thread(until, run, lambda status: status["state"] == "running", alive)
            status = await asyncio.to_thread(until, run, lambda status: status["step"] > came["step"], alive)
            assert (first, hand.status()["run"]) == ("preparing", str(run))
            assert status["checkpoint"] is not None
            hand.stop()
            return await waiting

    figures = asyncio.run(program())
    assert figures["exit"] == "stopped"
    assert figures["policy"]["path"] == str(run / "policy")
    assert not (run / "ctl").exists()
