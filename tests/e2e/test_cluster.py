"""Programs judged over machines of a real Ray cluster that die, freeze, are cut off and come back."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import reaching
from commands import Command
from machines import PORT, RAYLET, Machine, Machines, wait_until, why_not
from places import ROOT, SUPPORT
from wide import wide

from overlap.cluster.nodes import ORPHAN_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.skipif(bool(why_not()), reason=why_not())]
MACHINES = 3
NOTICED_S, LOST_S = 12.0, 80.0
CLEAN_S, BACK_S = 15.0, 10.0


class Driver(Command):
    """``cluster_driver.py`` on the head, or ``on`` another machine, and what it has said."""

    def __init__(self, machines: Machines, *args: str, on: Machine | None = None, **environment: str) -> None:
        super().__init__(on or machines.head, [SUPPORT / "cluster_driver.py", machines.address, *args], **environment)

    def lines(self, word: str) -> list[dict[str, Any]]:
        return [event for event in self.find("told") if word in event["line"]]

    def begun(self) -> float:
        """When it has judged some, by its clock, s."""
        self.until(lambda: len(self.find("judged")) > 5)
        return float(self.events[-1]["at"])

    def noticed(self, words: str, since: float, within: float = NOTICED_S) -> None:
        """It says so in time."""
        self.until(lambda: self.lines(words))
        assert self.lines(words)[0]["at"] - since <= within

    def all_judged(self) -> None:
        """At its end, each once, and rightly."""
        self.event("closed")
        self.end(20)
        numbers = sorted(event["number"] for event in self.find("judged"))
        assert numbers == list(range(len(numbers)))
        assert {event["verdict"] for event in self.find("judged")} == {"AC"}
        assert self.find("all")[0]["left"] == 0


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
    made: list[Driver] = []

    def start(*args: str, **environment: str) -> Driver:
        made.append(Driver(machines, *args, **environment))
        return made[-1]

    yield start
    for each in made:
        each.close()


def kill(machine: Machine, word: str) -> None:
    """What has this word in its command line there."""
    for pid in machine.find(word) if machine.lives else ():
        os.kill(pid, signal.SIGKILL)


def judges(machine: Machine) -> list[str]:
    """Command lines of what the sandbox runs there."""
    return [text for text in machine.find("from sandbox.").values() if "cluster_driver" not in text]


def clean(machines: Sequence[Machine], seconds: float = CLEAN_S) -> None:
    """Wait until the sandbox has nothing there; fails with what is left, and where."""
    try:
        wait_until(lambda: not any(judges(machine) for machine in machines), seconds)
    except AssertionError:
        left = {machine.address: machine.find("from sandbox.") | machine.find("ray::") for machine in machines}
        raise AssertionError(f"left: {json.dumps(left, indent=1)}") from None


def test_programs_are_judged_on_every_node_and_nothing_stays_there(machines, driver) -> None:
    run = driver("--count", "30")
    facts = run.event("ready")["nodes"]
    assert {name.partition("-")[0] for name in facts} == {machine.address for machine in machines.all}
    assert all(abs(node["clock_s"]) <= node["error_s"] + 0.001 for node in facts.values())  # one clock on one machine
    (signals,) = run.find("signals")
    assert signals["before"] == signals["after"]
    run.all_judged()
    (closed,) = run.find("closed")
    assert (closed["children"], closed["threads"]) == ([], ["MainThread"])
    clean(machines.all)


@pytest.mark.wide
def test_what_judges_programs_knows_no_token_and_nothing_else_of_ray(machines, driver) -> None:
    run = driver("--count", "60")
    run.begun()
    token, looked = machines.environment["RAY_AUTH_TOKEN"].encode(), 0
    for machine in machines.all:
        for pid in machine.find("from sandbox."):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                open_there = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
            except OSError:
                continue
            looked += 1
            assert token not in environment
            assert b"RAY_A" not in environment  # address, and how to get in
            assert not [name for name in open_there if "ray" in name]
    assert looked >= 3
    run.all_judged()


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
def test_a_driver_that_stands_still_for_long_loses_no_node(machines, driver) -> None:
    run = driver("--count", "90")
    run.begun()
    run.stand_still(10.0)
    run.all_judged()
    assert not run.lines("silent")
    assert not run.lines("lost")


@pytest.mark.wide
@pytest.mark.parametrize("what", ["its agent is killed", "it is frozen", "it is cut off"])
def test_a_node_that_is_lost_for_a_while_loses_its_jobs_to_others_and_gets_new_ones(machines, driver, what) -> None:
    run, node = driver("--count", "400"), machines.all[1]
    before = run.begun()
    if "killed" in what:
        (agent,) = node.find("ray::NodeActor")
        os.kill(agent, signal.SIGKILL)
    else:
        node.freeze() if "frozen" in what else machines.cut(node)
    run.noticed("go elsewhere", before)
    if "killed" not in what:
        node.thaw() if "frozen" in what else machines.heal(node)
    run.until(lambda: len(run.lines(f"node {node.address}-")) == 3)  # judges, lost, judges
    run.all_judged()
    clean(machines.all, ORPHAN_S + CLEAN_S)  # Ray may hold an agent that was cut off for dead, and not end it


@pytest.mark.wide
def test_a_driver_that_is_killed_leaves_nothing_on_any_node(machines, driver) -> None:
    run = driver("--count", "400", "--nodes", "2")
    run.begun()
    run.until(lambda: sum(bool(judges(machine)) for machine in machines.all) >= 2)
    run.kill()
    clean(machines.all)


def test_a_driver_without_a_token_is_told_how_to_get_in(driver) -> None:
    run = driver(RAY_AUTH_MODE="")
    run.end(60)
    assert "cluster.address=" in run.text
    assert "RAY_AUTH_MODE=token" in run.text


def drain(machines: Machines, node: Machine) -> None:
    """As one tells Ray that a node is about to go."""
    ask = f"import ray; ray.init({machines.address!r}, log_to_driver=False); "
    ask += f"print(*(n['NodeID'] for n in ray.nodes() if n['Alive'] and n['NodeManagerAddress'] == {node.address!r}))"
    key = machines.head.run([sys.executable, "-c", ask]).split()[-1]
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address={machines.address}"]
    command += [f"--node-id={key}", "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=it goes"]
    machines.head.run([*command, "--deadline-remaining-seconds=120"])


def test_a_node_that_dies_is_noticed_and_its_jobs_run_elsewhere_and_one_that_joins_works_until_it_is_drained(
    machines, driver
) -> None:
    run, lost = driver("--count", "5000", "--nodes", "2"), machines.all[1]
    before = run.begun()
    lost.kill()
    run.noticed("go elsewhere", before)
    joined = machines.add()
    run.until(lambda: run.lines(f"{joined.address}-"), 90.0)
    there = [event["line"].split()[1] for event in run.lines(f"{joined.address}-")]
    run.until(lambda: [event for event in run.find("judged") if event["node"] in there])
    drain(machines, joined)
    run.until(lambda: run.lines("is drained, and let go"))
    assert not [event for event in run.lines("go elsewhere") if joined.address in event["line"]]
    wait_until(lambda: not joined.find("raylet/raylet "), 30.0)  # Ray ends a node that is drained and idle
    numbers = [event["number"] for event in run.find("judged")]
    assert len(numbers) == len(set(numbers))


@pytest.mark.wide
def test_a_node_whose_raylet_stands_still_for_some_seconds_judges_on(machines, driver) -> None:
    node = machines.add()
    run = driver("--count", "300", "--nodes", "3")
    run.until(lambda: run.lines(f"node {node.address}-") and len(run.find("judged")) > 5)
    (raylet,) = node.find(RAYLET)
    os.kill(raylet, signal.SIGSTOP)
    run.until(lambda: len(run.find("judged")) > 150)
    os.kill(raylet, signal.SIGCONT)
    run.all_judged()
    assert not run.lines("go elsewhere")
    clean([node])


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


@pytest.mark.wide
def test_a_training_run_goes_on_when_a_node_dies_in_a_step_and_every_sample_is_scored_once(machines, tmp_path) -> None:
    config, steps = ROOT / "recipes" / "code_rl" / "configs" / "smoke.yaml", 2
    lost = machines.all[1]
    settings = [f"cluster.address={machines.address}", f"run.dir={tmp_path / 'run'}", f"run.steps={steps}"]
    settings += ["run.eval_samples=0", "run.keep_rollouts=true", "model.dtype=float32"]
    command = [sys.executable, "-m", "overlap.cli", "train", "--config", str(config), *settings]
    with machines.head.start(command, PYTHONPATH=str(ROOT)) as train:
        assert train.stdout is not None
        said = []
        for line in train.stdout:
            said.append(line)
            if line.startswith(f"step 1/{steps}"):
                lost.kill()
        train.wait(60)
    text = "".join(said)
    assert train.returncode == 0, text
    assert f"node {lost.address}-" in text
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()[1:]]
    places = [(row["step"], row["group"], row["sample"]) for row in rows]
    assert len(places) == len(set(places)) == steps * 8
    assert all(row["reward"] is not None for row in rows)
    assert all(row["judgement"]["node"] for row in rows if row["judgement"])
    named = [json.loads(line) for line in (tmp_path / "run" / "nodes.jsonl").read_text().splitlines()]
    assert [line["step"] for line in named] == [1, 2]
    assert sum(node["judged"] for line in named for node in line["worst"]) > 0


@pytest.mark.wide
@pytest.mark.parametrize("seconds", [15.0, 40.0])
@pytest.mark.parametrize("cut", ["a node", "the head", "the driver"])
def test_an_outage_of_a_link_is_no_end_of_a_node_or_a_run_and_all_are_back_soon(cut: str, seconds: float) -> None:
    with Machines(MACHINES) as machines:
        head, node, last = machines.all
        on = head if cut == "a node" else last
        away = {"a node": node, "the head": head, "the driver": last}[cut]
        run = Driver(machines, "--count", "100000", on=on)
        run.begun()
        machines.cut(away)
        time.sleep(seconds)
        machines.heal(away)
        healed, told = time.monotonic(), len(run.find("told"))
        lost = {event["line"].split()[1] for event in run.lines("is lost")}
        assert lost
        run.until(
            lambda: lost <= {e["line"].split()[1] for e in run.find("told")[told:] if "judges programs" in e["line"]}
        )
        back = [event["at"] - healed for event in run.find("told")[told:] if "judges programs" in event["line"]]
        print(f"{cut} {seconds:g} s: back after {', '.join(f'{at:.1f} s' for at in back)}")
        assert max(back) < BACK_S
        assert not run.lines("the cluster is lost")
        numbers = [event["number"] for event in run.find("judged")]
        assert len(numbers) == len(set(numbers))
        run.close()
