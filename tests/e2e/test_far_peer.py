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
from commands import Command
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
def driver(machines: Machines) -> Iterator[Callable[..., Command]]:
    made: list[Command] = []

    def start(node: Machine, calls: int = 10_000) -> Command:
        driver = [SUPPORT / "far_driver.py", machines.address, node.address, str(calls)]
        made.append(Command(machines.head, driver))
        return made[-1]

    yield start
    for each in made:
        each.close()


def clean(node: Machine, began: dict[str, Any], seconds: float = CLEAN_S) -> None:
    """Wait until neither the process nor its agent, its reaper or its folder is there."""
    scratch = Path(began["folder"]).parent

    def left() -> dict[int, str]:
        return node.find("far_child") | node.find("NodeActor") | node.find("overlap.process import reaper")

    try:
        wait_until(lambda: not left() and not scratch.exists(), seconds)
    except AssertionError:
        raise AssertionError(f"left: {left()} {[str(path) for path in scratch.rglob('*')]}") from None


@pytest.mark.wide
def test_a_process_on_a_node_is_called_knows_nothing_of_ray_and_is_gone_with_its_life(machines, driver) -> None:
    node = machines.all[1]
    run = driver(node, 10)
    began = run.event("began")
    assert began["rays"] == []
    (child,) = node.find("far_child")
    assert machines.environment["RAY_AUTH_TOKEN"].encode() not in Path(f"/proc/{child}/environ").read_bytes()
    assert run.event("echoed")["same"]
    run.event("closed")
    assert len(run.find("added")) == 10
    clean(node, began)


@pytest.mark.wide
@pytest.mark.parametrize("victim", ["far_child", "ray::NodeActor"])
def test_a_process_that_dies_or_its_agent_is_noticed_and_leaves_nothing(machines, driver, victim: str) -> None:
    node = machines.all[1]
    run = driver(node)
    began = run.event("began")
    run.event("added")
    (pid,) = node.find(victim)
    before = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    failed = run.event("failed")
    assert f"on node {node.address}-" in failed["error"]
    assert ("was killed by signal 9" in failed["error"]) == (victim == "far_child")
    assert failed["at"] - before <= NOTICED_S
    clean(node, began)


@pytest.mark.wide
def test_a_driver_that_is_killed_leaves_nothing_on_the_node(machines, driver) -> None:
    node = machines.all[1]
    run = driver(node)
    began = run.event("began")
    run.event("added")
    run.kill()
    clean(node, began)


@pytest.mark.wide
def test_a_node_that_is_frozen_is_noticed_and_ends_the_process_when_it_thaws(machines, driver) -> None:
    node = machines.add()
    run = driver(node)
    began = run.event("began")
    run.event("added")
    before = time.monotonic()
    node.freeze()
    failed = run.event("failed")
    assert failed["at"] - before <= NOTICED_S
    node.thaw()
    clean(node, began, ORPHAN_S + 2 * CLEAN_S)


@pytest.mark.wide
def test_a_node_that_dies_is_noticed(machines, driver) -> None:
    node = machines.add()
    run = driver(node)
    began = run.event("began")
    run.event("added")
    before = time.monotonic()
    node.kill()
    try:
        assert run.event("failed")["at"] - before <= NOTICED_S
        run.event("closed")
    finally:
        shutil.rmtree(Path(began["folder"]).parent)  # its disk is this machine's
