"""Programs judged over machines of a real Ray cluster that die, freeze, are cut off and come back."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import reaching
from commands import Command
from machines import PORT, RAYLET, Machine, Machines, wait_until, why_not
from places import SUPPORT
from wide import wide

from overlap.cluster.nodes import ORPHAN_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.skipif(bool(why_not()), reason=why_not())]
MACHINES = 3
NOTICED_S, LOST_S = 12.0, 80.0
CLEAN_S, BACK_S = 15.0, 30.0  # a quiet machine has them back within 10 s


class Driver(Command):
    """``cluster_driver.py`` on the head, or ``on`` another machine, and what it has said."""

    def __init__(self, machines: Machines, *args: str, on: Machine | None = None) -> None:
        super().__init__(on or machines.head, [SUPPORT / "cluster_driver.py", machines.address, *args])

    def lines(self, word: str) -> list[dict[str, Any]]:
        return [event for event in self.find("told") if word in event["line"]]

    def latest(self) -> dict[str, dict[str, Any]]:
        """The last line about each node."""
        return {event["line"].split()[1]: event for event in self.lines("node ")}

    def begun(self) -> float:
        """When it has judged some, by its clock, s."""
        self.until(lambda: len(self.find("judged")) > 5)
        return float(self.events[-1]["at"])

    def noticed(self, words: str, since: float, within: float = NOTICED_S) -> None:
        """It says so in time."""
        self.until(lambda: self.lines(words))
        assert self.lines(words)[0]["at"] - since <= within

    def judged_once(self) -> None:
        """So far each once, and rightly."""
        numbers = [event["number"] for event in self.find("judged")]
        assert len(numbers) == len(set(numbers))
        assert {event["verdict"] for event in self.find("judged")} == {"AC"}

    def all_judged(self) -> None:
        """Each once, and rightly."""
        self.event("closed")
        self.end(20)
        self.judged_once()
        assert (len(self.find("judged")), self.find("all")[0]["left"]) == (self.find("all")[0]["asked"], 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Machines]:
    with Machines(MACHINES) as made:
        yield made


@pytest.fixture
def machines(cluster: Machines) -> Machines:
    """All of them, whatever happened to them before."""
    cluster.mend(MACHINES)
    return cluster


@pytest.fixture
def driver(machines: Machines) -> Iterator[Callable[..., Driver]]:
    with ExitStack() as made:
        yield lambda *args: made.enter_context(closing(Driver(machines, *args)))


def kill(machine: Machine, word: str) -> None:
    """What has this word in its command line there."""
    for pid in machine.find(word) if machine.lives else ():
        os.kill(pid, signal.SIGKILL)


def judges(machine: Machine) -> list[int]:
    """What the sandbox runs there."""
    return [pid for pid, text in machine.find("from sandbox.").items() if "cluster_driver" not in text]


def facts_of(process: Path) -> list[str]:
    """Its environment, and what it has open; nothing where it has ended."""
    with suppress(OSError):
        told = (process / "environ").read_text(errors="replace").split("\0")
        return [*told, *(os.readlink(path) for path in (process / "fd").iterdir())]
    return []


def clean(machines: Sequence[Machine], seconds: float = CLEAN_S) -> None:
    """Wait until the sandbox has nothing there; fails with what is left, and where."""
    try:
        wait_until(lambda: not any(judges(machine) for machine in machines), seconds)
    except AssertionError:
        left = {machine.address: machine.find("from sandbox.") | machine.find("ray::") for machine in machines}
        raise AssertionError(f"left: {json.dumps(left, indent=1)}") from None


@pytest.mark.promise("cluster-judging")
def test_programs_are_judged_on_every_node_by_what_knows_nothing_of_ray_and_nothing_stays_there(
    machines, driver
) -> None:
    run = driver("--count", "30")
    facts = run.event("ready")["nodes"]
    assert {name.partition("-")[0] for name in facts} == {machine.address for machine in machines.all}
    for machine in machines.all:
        known = {fact for pid in judges(machine) for fact in facts_of(Path(f"/proc/{pid}"))}
        assert known
        secrets = (
            machines.environment["RAY_AUTH_TOKEN"],
            "RAY_A",
            "/ray/",
            "plasma",
        )  # how to get in, and what is open
        assert not [fact for fact in known if any(secret in fact for secret in secrets)]
    run.all_judged()
    (closed,) = run.find("closed")
    assert (closed["children"], closed["threads"], closed["ray"]) == ([], ["MainThread"], False)
    clean(machines.all)


@pytest.mark.promise("cluster-secrets")
@pytest.mark.parametrize("asked", ["A", wide("B")])
def test_a_program_on_a_node_reaches_no_agent_no_port_of_rays_and_no_other_node(
    machines, driver, asked, tmp_path
) -> None:
    at = {machine.address: machine for machine in machines.all}
    before = {host: reaching.ports(machine) for host, machine in at.items()}
    source = tmp_path / "program.py"
    run = driver("--count", "12", "--isolation", asked, "--program", str(source))
    run.until(lambda: run.find("ready"))
    assert {node["tier"] for node in run.find("ready")[0]["nodes"].values()} == {asked}
    tries = reaching.program(machines.all)
    bare = machines.all[1].run([sys.executable, "-c", f"{tries}\nprint(json.dumps(reached))"])
    reached = json.loads(bare.splitlines()[-1])  # what is not in a jail gets at all of them
    agents = [[host, port] for host in before for port in set(reaching.ports(at[host])) - set(before[host])]
    assert {host for host, _ in agents} == set(before)
    for place in ("RAY_AUTH_TOKEN", "/proc", "/mnt/ray", [machines.head.address, PORT], *agents):
        assert place in reached
    (tmp_path / "made").write_text(f"{tries}\nprint(input(), *reached)")
    (tmp_path / "made").rename(source)
    run.all_judged()  # a program that got at anything prints it, which is wrong


@pytest.mark.wide
def test_a_driver_that_is_killed_leaves_nothing_on_any_node(machines, driver) -> None:
    run = driver("--count", "400", "--nodes", "2")
    run.begun()
    run.until(lambda: sum(bool(judges(machine)) for machine in machines.all) >= 2)
    run.kill()
    clean(machines.all)


@pytest.mark.promise("cluster-judging")
def test_a_node_that_dies_is_noticed_and_its_jobs_run_elsewhere_and_one_that_joins_works(machines, driver) -> None:
    run, lost = driver("--count", "5000", "--nodes", "2"), machines.all[1]
    before = run.begun()
    lost.kill()
    run.noticed("go elsewhere", before)
    joined = machines.add()
    run.until(lambda: run.lines(f"{joined.address}-"), 90.0)
    there = [event["line"].split()[1] for event in run.lines(f"{joined.address}-")]
    run.until(lambda: [event for event in run.find("judged") if event["node"] in there])
    run.judged_once()


@pytest.mark.wide
def test_a_node_that_isolates_less_than_asked_for_is_refused_by_name_with_what_it_lacks(machines, driver) -> None:
    weak = machines.add("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    run = driver("--count", "60", "--nodes", "1", "--isolation", "A")
    run.until(lambda: run.lines(f"node {weak.address}-"))
    (told,) = run.lines(f"node {weak.address}-")
    assert "is not used: it cannot isolate programs as verify.isolation asks: tier A: " in told["line"]
    assert "uid" in told["line"]  # what it lacks
    run.all_judged()
    assert not [event for event in run.find("judged") if weak.address in event["node"]]


@pytest.mark.wide
@pytest.mark.parametrize("gone", ["the head's service", "the head's machine", "Ray where the driver is"])
def test_a_cluster_that_is_lost_is_told_to_who_runs_over_it_in_time_and_nothing_stays_on_a_node(gone) -> None:
    with Machines(2) as machines:
        head, other = machines.all
        run = Driver(machines, "--count", "5000", "--nodes", "2", on=other if "machine" in gone else head)
        run.begun()
        if "machine" in gone:
            head.kill()
        else:
            kill(head, RAYLET if "driver" in gone else "gcs_server ")
        run.until(lambda: run.lines("the cluster is lost"), LOST_S)
        assert run.end(30) == 1
        run.close()
        assert "VerifierError: the cluster is lost: " in run.text
        assert "The program will terminate" not in run.text  # so says Ray where it ends a process itself
        clean(machines.all, ORPHAN_S + CLEAN_S)


OUTAGES = [(away, seconds) for away in ("a node", "the head", "the driver") for seconds in (15.0, 40.0)]


@pytest.mark.wide
@pytest.mark.parametrize(("away", "seconds"), [*OUTAGES, ("a frozen node", 15.0), ("an agent", 15.0)])
def test_an_outage_is_noticed_in_time_and_no_end_of_a_node_or_a_run_and_all_are_back_soon(
    away: str, seconds: float
) -> None:
    with Machines(MACHINES) as machines:
        head, node, last = machines.all
        run = Driver(machines, "--count", "100000", on=last if away in ("the head", "the driver") else head)
        before, gone = run.begun(), {"the head": head, "the driver": last}.get(away, node)
        if away == "an agent":
            kill(node, "ray::NodeActor")
        else:
            node.freeze() if away == "a frozen node" else machines.cut(gone)
        run.noticed("go elsewhere", before)
        time.sleep(max(0.0, before + seconds - time.monotonic()))
        node.thaw() if away == "a frozen node" else machines.heal(gone)
        healed, lost = time.monotonic(), {event["line"].split()[1] for event in run.lines("is lost")}
        run.until(lambda: all("judges programs" in run.latest()[name]["line"] for name in lost))
        back = [run.latest()[name]["at"] - healed for name in lost]
        print(f"{away} {seconds:g} s: back after {', '.join(f'{at:.1f} s' for at in back)}")
        assert max(back) < BACK_S
        assert not run.lines("the cluster is lost")
        run.judged_once()
        run.close()
        clean(machines.all, ORPHAN_S + CLEAN_S)  # Ray may hold an agent that was cut off for dead, and not end it
