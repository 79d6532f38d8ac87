"""A cluster by hand: ``overlap cluster up`` on two machines, programs judged over them, ``down``; nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import reaching
from machines import Machine, Machines, wait_until, why_not
from places import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.skipif(bool(why_not()), reason=why_not())]
OVERLAP = [sys.executable, "-m", "overlap.cli", "cluster"]
DRIVER = [sys.executable, str(ROOT / "tests" / "support" / "cluster_driver.py")]
FEW = ["--", "--num-cpus=1", "--object-store-memory=100000000"]


class Bare(Machines):
    """Machines on which nothing runs yet."""

    def _begin(self, made: Machine) -> None:
        pass


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Bare]:
    with Bare(2) as made:
        for name in [name for name in made.environment if name.startswith("RAY_")]:
            del made.environment[name]
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
        home = {"HOME": str(tmp_path), "XDG_STATE_HOME": "", "TMPDIR": "/mnt", "PYTHONPATH": path}
        made.environment.update(home)  # a home for all, as in many clusters
        yield made


def left(machine: Machine) -> list[str]:
    """What there is on a machine beside its first process, which takes no note of those that have ended."""
    files = machine.run(["find", "/mnt", "/dev/shm", "-mindepth", "1"]).splitlines()
    return [*files, *(text for pid, text in machine.find().items() if text and pid != machine.init)]


def verdicts(said: str) -> list[str]:
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [event["verdict"] for event in events if event["what"] == "judged"]


def up(machine: Machine, *words: str) -> str:
    return machine.run([*OVERLAP, "up", *words, *FEW], 100.0)


@pytest.mark.wide
def test_a_person_starts_a_cluster_uses_it_and_ends_it_and_nothing_is_left(machines: Bare, tmp_path: Path) -> None:
    head, other = machines.all
    said = up(head)  # its only address
    assert f"cluster.address={machines.address}" in said
    assert f"overlap cluster up --join {machines.address} --token-file" in said
    token = tmp_path / ".local" / "state" / "overlap" / "cluster" / "node0" / "token"
    assert f"scp {head.address}:{token} cluster-token" in said
    joined = other.start([*OVERLAP, "up", "--join", machines.address, "--token-file", str(token), "--block", *FEW])
    assert joined.stdout is not None
    assert "has joined" in joined.stdout.readline()

    for machine in machines.all:
        rows = machine.run([*OVERLAP, "status"]).splitlines()
        assert "2 nodes, 2 cores, 0 GPUs; requires a token" in rows[0]
        assert [row.split("-")[0] for row in rows[2:4]] == [head.address, other.address]
        assert not [row for row in rows if "not the one here" in row]

    assert verdicts(head.run([*DRIVER, machines.address, "--nodes=2", "--count=8"])) == ["AC"] * 8

    program = f"{reaching.program(machines.all, str(token), str(token.parent))}\nprint(reached or input())"
    (tmp_path / "program.py").write_text(program)
    command = [*DRIVER, machines.address, "--nodes=2", "--count=4", "--isolation=A", f"--program={tmp_path}/program.py"]
    assert verdicts(head.run(command)) == ["AC"] * 4

    with other.start([*DRIVER, machines.address, "--nodes=2", "--count=4000"]) as run:
        assert run.stdout is not None
        judged = (line for line in run.stdout if '"judged"' in line)
        assert len([line for line, _ in zip(judged, range(6), strict=False)]) == 6
        assert "the head at" in head.run([*OVERLAP, "down"])  # with agents and programs on it
        assert left(head) == []
        for pid in other.find("cluster_driver.py"):
            os.kill(pid, signal.SIGKILL)
        run.stdout.read()
    status = other.start([*OVERLAP, "status"])
    assert "nothing answers there" in status.communicate(timeout=60)[0]
    assert status.returncode == 2
    for pid in other.find("overlap.cli", "--block"):
        os.kill(pid, signal.SIGTERM)
    joined.communicate(timeout=60)
    wait_until(lambda: left(other) == [], 10.0)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["program.py"]
