"""SIGKILL of an agent program, of its keeper, of the driver, at random: each episode ends once, and nothing is left."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from leftovers import said, working_in
from places import ROOT, SUPPORT
from wide import wide

EPISODES = 6
CLEAN_S = 30.0
"""On a machine that does much else; alone it takes less than one."""
KEEPER = "keeper.keep"


def parent_of(process: psutil.Process) -> int:
    """0 for one that is gone."""
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 0


class Driver:
    """``episode_driver.py``, and what is left of it in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "episode_driver.py"), str(EPISODES)],
            env=os.environ | {"TMPDIR": str(folder), "PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.event() == {"what": "begun"}

    def event(self) -> dict[str, Any] | None:
        """The next line that it says; None at its end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def find(self, victim: str) -> list[psutil.Process]:
        """Its agent programs, or the outer or inner keepers of such."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        keepers = [p for p in below if KEEPER in said(p)]
        outer = [p for p in keepers if parent_of(p) == self.process.pid]
        if victim == "program":
            return [p for p in below if "tiny_agent.py" in said(p) and p not in keepers]
        return outer if victim == "outer keeper" else [p for p in keepers if p not in outer]

    def left(self) -> list[str]:
        """Processes that work in its folder, and what lies there."""
        return [*working_in(self.folder), *map(str, self.folder.iterdir())]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    folder = Path(os.path.realpath(tmp_path)) / "t"
    folder.mkdir()
    made = Driver(folder)
    with made.process:
        yield made
        made.process.kill()


@pytest.mark.promise("harnesses")
@pytest.mark.parametrize("seed", [0, 1, 2, 3, *map(wide, range(4, 50))])
def test_each_episode_ends_once_whatever_is_killed_and_nothing_is_left(driver: Driver, seed: int) -> None:
    rng, ended = random.Random(seed), list[int]()
    victim = rng.choice(["program", "inner keeper", "outer keeper", "driver"])
    after = rng.randrange(EPISODES - 1)
    while (event := driver.event()) is not None:
        ended.append(event["number"])
        if len(ended) == after + 1 and victim == "driver":
            driver.process.kill()
        elif len(ended) == after + 1:
            for process in driver.find(victim)[:1]:
                with suppress(psutil.NoSuchProcess):  # it has ended by itself
                    process.kill()
    assert len(ended) == len(set(ended))
    assert victim == "driver" or sorted(ended) == list(range(EPISODES))
    assert driver.process.wait(CLEAN_S) == (-9 if victim == "driver" else 0)
    until = time.monotonic() + CLEAN_S
    while left := driver.left():
        assert time.monotonic() < until, left
        time.sleep(0.05)
