"""Nodes of a Ray cluster are killed, frozen and cut off while programs are judged (as root, minutes)

The nodes are machines made of namespaces on this machine.

    bash scripts/chaos.sh cluster [--events 50] [--seed 0]
    bash scripts/chaos.sh cluster --zoo

An event is a node killed, frozen, thawed, cut off or healed, or its agent killed. Where a node was killed a new machine
joins; where Ray gave one up that came back, Ray is started there again. ``_cluster_child.py`` is the driver, on the
head; doubles judge. The books: programs that got no answer or another's (lost), answers taken beyond the first (twice),
agents and what they started that are there when all has ended (left).

With ``--zoo`` nobody is harmed: the nodes' sandboxes judge the hack zoo, and an honest program on each node after each
entry of it. Exit code 1 when a book is not 0. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from machines import RAYLET, Machine, Machines, wait_until, why_not  # noqa: E402

CHILD = Path(__file__).with_name("_cluster_child.py")
NODES = 3
"""Machines beside the head, which is not harmed: without it there is no cluster."""
PAUSE_S = 4.0
"""Between two events, at most."""
OUT_S = 25.0
"""A node that is frozen or cut off is so for so long at most, and for 1 s at least."""
CLEAN_S = 15.0
ORPHAN_S = 45.0
"""An agent that Ray holds for dead, and does not end, ends itself within this time."""
END_S = 150.0
ZOO_S = 480.0


class Child:
    """The driver of the cluster, and what it has said."""

    def __init__(self, machines: Machines, *args: str) -> None:
        self.machine, self.said = machines.head, list[dict[str, Any]]()
        command = [sys.executable, str(CHILD), machines.address, *args]
        self.process: subprocess.Popen[str] = machines.head.start(
            command, PYTHONPATH=f"{ROOT}{os.pathsep}{CHILD.parent}"
        )
        self._raw: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._raw = [*self._raw[-30:], line]
            if line.startswith("{") and line.endswith("}\n"):
                self.said.append(json.loads(line))

    def find(self, what: str) -> list[dict[str, Any]]:
        return [event for event in self.said if event["what"] == what]

    def lines(self, *words: str) -> list[str]:
        """What the pool told, with all these words."""
        return [event["line"] for event in self.find("told") if all(word in event["line"] for word in words)]

    def until(self, what: str, seconds: float) -> dict[str, Any]:
        """What it says of this, once it does."""
        try:
            wait_until(lambda: self.find(what) or self.process.poll() is not None, seconds)
            return self.find(what)[-1]
        except (AssertionError, IndexError):
            raise SystemExit(
                f"the driver said nothing of {what!r} within {seconds:g} s:\n{''.join(self._raw)}"
            ) from None

    def signal(self, number: signal.Signals) -> None:
        for pid in self.machine.find(CHILD.name):
            os.kill(pid, number)

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)


class Storm:
    """What happens to whom; machines are mended beside it, one at a time."""

    def __init__(self, machines: Machines, rng: random.Random) -> None:
        self._machines, self._rng = machines, rng
        self._out: dict[Machine, tuple[str, float]] = {}
        self.alive = list(machines.all)
        self._mends: dict[Machine, Future[None]] = {}
        self._thread = ThreadPoolExecutor(1)
        self.joined = 0

    def events(self, count: int, tell: Callable[[str], None]) -> Counter[str]:
        """Let so many happen. What they were."""
        done: Counter[str] = Counter()
        while done.total() < count:
            time.sleep(self._rng.uniform(0.3, PAUSE_S))
            self._mend()
            kind, machine = self._next()
            if kind:
                done[kind] += 1
                tell(f"{kind} {machine.address}")
        return done

    def calm(self) -> None:
        """Everybody who is out comes back, and every node that is missing."""
        for machine, (kind, _) in list(self._out.items()):
            self._back(kind, machine)
        until = time.monotonic() + END_S
        while self._mend() and time.monotonic() < until:
            time.sleep(1.0)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _next(self) -> tuple[str, Machine]:
        for machine, (kind, until) in self._out.items():
            if time.monotonic() > until:
                return self._back(kind, machine), machine
        there = [each for each in self.alive[1:] if each not in self._out and each not in self._mends]
        many = ["agent", "kill", "freeze", "freeze", "cut", "cut"]
        kind = self._rng.choice(many if len(there) > 1 else ["agent", "", ""])
        if kind == "agent":
            return self._kill_agent()
        machine = self._rng.choice(there or self.alive)
        if not kind:
            return "", machine
        if kind == "kill":
            machine.kill()
            self.alive.remove(machine)
            self._mends[machine] = self._thread.submit(self._replace)
            return kind, machine
        machine.freeze() if kind == "freeze" else self._machines.cut(machine)
        self._out[machine] = kind, time.monotonic() + OUT_S ** self._rng.random()
        return kind, machine

    def _back(self, kind: str, machine: Machine) -> str:
        machine.thaw() if kind == "freeze" else self._machines.heal(machine)
        del self._out[machine]
        return "thaw" if kind == "freeze" else "heal"

    def _kill_agent(self) -> tuple[str, Machine]:
        machines = [each for each in self.alive if each not in self._out and each.find("ray::NodeActor")]
        if not machines:
            return "", self._machines.head
        machine = self._rng.choice(machines)
        for pid in machine.find("ray::NodeActor"):
            os.kill(pid, signal.SIGKILL)
        return "agent", machine

    def _mend(self) -> int:
        """Have Ray started where there is none any more; the machines that lack it, or are in the making."""
        for machine, mend in list(self._mends.items()):
            if mend.done():
                mend.result()
                del self._mends[machine]
        for machine in self.alive:
            if machine not in self._out and machine not in self._mends and not machine.find(RAYLET):
                self._mends[machine] = self._thread.submit(self._restart, machine)
        return len(self._mends)

    def _replace(self) -> None:
        self.alive.append(self._machines.add())
        self.joined += 1

    def _restart(self, machine: Machine) -> None:
        self._machines.restart(machine)
        self.joined += 1


def left_on(machines: list[Machine], seconds: float) -> dict[str, list[str]]:
    """Agents and sandboxes that are still there, by the address of their machine, after so long at most."""
    until = time.monotonic() + seconds
    while True:
        found = {each.address: [*each.find("ray::NodeActor").values(), *_judges(each)] for each in machines}
        found = {address: texts for address, texts in found.items() if texts}
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.5)


def _judges(machine: Machine) -> list[str]:
    return [text for text in machine.find("from sandbox.").values() if CHILD.name not in text]


def in_a_storm(events: int, seed: int) -> int:
    """Exit code 1 when something is wrong."""
    began = time.monotonic()
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{CHILD.parent}"  # agents on the nodes find the doubles
    with Machines(1 + NODES) as machines:
        child, storm = Child(machines, "storm", "--nodes", str(1 + NODES)), Storm(machines, random.Random(seed))

        def tell(line: str) -> None:
            judged = child.find("count")[-1]["answered"] if child.find("count") else 0
            print(f"{time.monotonic() - began:6.1f} s  {line:24}  {judged:6} judged", flush=True)

        try:
            child.until("ready", 90.0)
            tell("begins")
            done = storm.events(events, tell)
            tell("calm")
            storm.calm()
            child.signal(signal.SIGUSR1)
            books = child.until("books", END_S)
            child.until("closed", 60.0)
        finally:
            child.close()
            storm.close()
        left = left_on(storm.alive, ORPHAN_S)
    for why in books["failed"]:
        print(f"failed: {why}", file=sys.stderr)
    for address, texts in left.items():
        print(f"left on {address}: {texts}", file=sys.stderr)
    counts = {name: books[name] for name in ("lost", "twice", "held")} | {"left": len(left)}
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
    silent, lost = len(child.lines("is silent")), len(child.lines("is lost"))
    print(f"{books['asked']} programs; {kinds}; {storm.joined} joined; told {silent} silent, {lost} lost")
    print(f"{events} events: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if any(counts.values()) else 0


def through_the_zoo(take: int) -> int:
    """Exit code 1 when something is wrong."""
    with Machines(2) as machines:
        child = Child(machines, "zoo", "--nodes", "2", "--take", str(take))
        try:
            child.until("ready", 90.0)
            before = [sorted(each.find("ray::NodeActor")) for each in machines.all]
            done = child.until("zoo", ZOO_S)
            after = [sorted(each.find("ray::NodeActor")) for each in machines.all]
            child.until("closed", 60.0)
        finally:
            child.close()
        left = left_on(machines.all, CLEAN_S)
    for line in [*done["other"], *child.lines("go elsewhere"), *map(str, left.items())]:
        print(line, file=sys.stderr)
    counts = {
        "accepted": done["hostile"].get("AC", 0),
        "honest refused": sum(done["honest"].values()) - done["honest"].get("AC", 0),
        "agents lost": sum(a != b for a, b in zip(before, after, strict=True)) + len(child.lines("go elsewhere")),
        "left": len(left),
    }
    print(f"{len(done['other'])} ended otherwise than the zoo says")
    hostile, honest = sum(done["hostile"].values()), sum(done["honest"].values())
    print(f"{hostile} hostile, {honest} honest: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if any(counts.values()) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=50, help="(50)")
    parser.add_argument("--seed", type=int, default=0, help="(0)")
    parser.add_argument("--zoo", action="store_true", help="the hack zoo in the nodes' sandboxes instead")
    parser.add_argument("--take", type=int, default=1, help="each so many entries of the zoo one (1)")
    options = parser.parse_args()
    if why := why_not():
        print(f"there can be no machines here: {why}", file=sys.stderr)
        return 2
    return through_the_zoo(options.take) if options.zoo else in_a_storm(options.events, options.seed)


if __name__ == "__main__":
    sys.exit(main())
