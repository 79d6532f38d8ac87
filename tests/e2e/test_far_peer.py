"""A process on another machine of a real Ray cluster: called, killed, frozen with its machine, left by its driver."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Command, commands, left
from machines import Machine, Machines, wait_until, why_not
from places import SUPPORT

from overlap.cluster.nodes import ORPHAN_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.skipif(bool(why_not()), reason=why_not())]
NOTICED_S = 12.0
CLEAN_S = 15.0


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with Machines(2) as made:
        yield made


@pytest.fixture
def drive(machines: Machines) -> Iterator[Callable[..., tuple[Command, dict[str, Any]]]]:
    """Starts a driver with a process on a node; it, and what it says of its start."""
    with commands(machines.head) as start:

        def drive(node: Machine, calls: int = 10_000) -> tuple[Command, dict[str, Any]]:
            run = start(SUPPORT / "far_driver.py", machines.address, node.address, str(calls))
            began = run.event("began")
            run.event("added")
            return run, began

        yield drive


def clean(node: Machine, began: dict[str, Any], seconds: float = CLEAN_S) -> None:
    """Wait until neither the process nor its agent, its reaper or its folder is there."""
    scratch = Path(began["folder"]).parent
    wait_until(lambda: not left(node, "far_child") and not scratch.exists(), seconds)


@pytest.mark.wide
def test_a_process_on_a_node_is_called_knows_nothing_of_ray_and_is_gone_with_its_life(machines, drive) -> None:
    node = machines.all[1]
    run, began = drive(node, 30)
    assert began["rays"] == []
    (child,) = node.find("-m far_child")
    assert machines.environment["RAY_AUTH_TOKEN"].encode() not in Path(f"/proc/{child}/environ").read_bytes()
    assert run.event("echoed")["same"]
    run.event("closed")
    assert len(run.find("added")) == 30
    clean(node, began)


@pytest.mark.wide
@pytest.mark.parametrize("victim", ["-m far_child", "ray::NodeActor", "its machine", "its machine for a while"])
def test_what_a_process_is_lost_with_is_noticed_and_nothing_is_left(machines, drive, victim: str) -> None:
    node = machines.add() if "machine" in victim else machines.all[1]
    run, began = drive(node)
    before = time.monotonic()
    if victim == "its machine":
        node.kill()
    elif "machine" in victim:
        node.freeze()
    else:
        (pid,) = node.find(victim)
        os.kill(pid, signal.SIGKILL)
    failed = run.event("failed")
    assert f"on node {node.address}-" in failed["error"]
    assert ("was killed by signal 9" in failed["error"]) == (victim == "-m far_child")
    assert failed["at"] - before <= NOTICED_S
    if victim == "its machine":
        run.event("closed")
        shutil.rmtree(Path(began["folder"]).parent)  # its disk is this machine's
    else:
        node.thaw()
        clean(node, began, ORPHAN_S + 2 * CLEAN_S if node.disturbed else CLEAN_S)


@pytest.mark.wide
def test_a_driver_that_is_killed_leaves_nothing_on_the_node(machines, drive) -> None:
    run, began = drive(node := machines.all[1])
    run.kill()
    clean(node, began)
