"""Machines made of namespaces on this one, with a switch between them; each runs a node of a Ray cluster.

A machine has its own network, processes, hostname, shared memory and ``/mnt``, where its temporary files lie. It ends
whole with its first process, and leaves nothing. It can be killed, frozen, or cut off and healed. Needs root,
``unshare``, ``nsenter`` and ``ip``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from overlap.cluster.access import HEALTH
from sandbox.kernel import cgroup

PORT, RAYLET = 6379, "raylet/raylet "
SETTLED_S = 8.0
START_TRIES = 3
_UNSHARE = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
_RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@cache
def why_not() -> str:
    """Why there can be no machines here; "" where there can."""
    missing = [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} here"
    tried = subprocess.run([*_UNSHARE, "ip", "link", "add", "br0", "type", "bridge"], capture_output=True, text=True)
    return f"no namespaces of our own here: {tried.stderr.strip()[:100]}" if tried.returncode else ""


class Machine:
    """``address`` is what the others reach it by."""

    def __init__(self, number: int, environment: dict[str, str]) -> None:
        self.number, self.address, self.environment = number, f"10.77.0.{number + 1}", environment
        self.disturbed = False
        """It stood still, or was cut off: Ray may have given it up, and its raylet ends when it hears of that."""
        script = f"hostname node{number}; mount -t tmpfs none /dev/shm; mount -t tmpfs none /mnt; "
        script += "ip link set lo up; echo up; exec cat"  # which ends with us, however we end
        pipe = subprocess.PIPE
        self._holder = subprocess.Popen([*_UNSHARE, "sh", "-c", script], stdin=pipe, stdout=pipe, text=True)
        assert self._holder.stdout is not None
        with self._holder.stdout as said:
            said.readline()
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.init = int(children.read_text().split()[0])
        self._space = os.stat(f"/proc/{self.init}/ns/pid").st_ino

    def start(self, command: Sequence[str], **more: str) -> subprocess.Popen[str]:
        """Run a command there."""
        entered = ["nsenter", "-t", str(self.init), "--net", "--uts", "--ipc", "--mount", "--pid", "--", *command]
        return subprocess.Popen(
            entered, env=self.environment | more, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, command: Sequence[str], seconds: float = 60.0, **more: str) -> str:
        """Run it to its end, which must be a good one; what it says."""
        process = self.start(command, **more)
        try:
            said, _ = process.communicate(timeout=seconds)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 0, f"{command}: {process.returncode}\n{said}"
        return said

    def pids(self) -> list[int]:
        """Its processes, as this machine numbers them."""
        space = os.readlink(f"/proc/{self.init}/ns/pid")
        found, parents = set[int](), dict[int, int]()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                if os.readlink(f"/proc/{pid}/ns/pid") == space:
                    found.add(pid)
            except OSError:
                continue
        below = {parent: [pid for pid in parents if parents[pid] == parent] for parent in set(parents.values())}
        more = list(found)
        while more:  # those in namespaces of their own, too
            more = [pid for parent in more for pid in below.get(parent, []) if pid not in found]
            found.update(more)
        return sorted(found)

    def find(self, *words: str) -> dict[int, str]:
        """Command lines of its processes, by pid, that have all these words."""
        found = {}
        for pid in self.pids():
            try:
                text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if all(word in text for word in words):
                found[pid] = text
        return found

    def kill(self) -> None:
        """As by pulling the plug."""
        self._holder.kill()
        self._holder.wait(10)
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        for name in cgroup.other_names():  # which all machines here share
            if f"-{self._space:x}-" in name:
                cgroup.remove_cgroups(name)

    @property
    def lives(self) -> bool:
        return self._holder.poll() is None

    def freeze(self) -> None:
        """Every process stands still."""
        self.disturbed = True
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for pid in self.pids():
            if pid != self.init:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, number)


class Machines:
    """``count`` of them, the first with the cluster's head; as a context they are ended with it."""

    def __init__(self, count: int, cpus: int = 1) -> None:
        self._cpus = cpus
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment = {**os.environ, **token, **HEALTH, "RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": "/mnt"}
        self._switch = Machine(99, self.environment)
        self._ip(self._switch, "link add br0 type bridge", "link set br0 up")
        self._made: list[Machine] = []
        try:
            made = [self._connected() for _ in range(count)]
            self._begin(made[0])
            with ThreadPoolExecutor() as threads:
                list(threads.map(self._begin, made[1:]))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def all(self) -> list[Machine]:
        """Those that live."""
        return [machine for machine in self._made if machine.lives]

    @property
    def head(self) -> Machine:
        return self._made[0]

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    def add(self, *under: str) -> Machine:
        """One more, with a node on it, which that command starts."""
        self._begin(made := self._connected(), *under)
        return made

    def restart(self, machine: Machine) -> None:
        """A node on it anew, where the former one has ended."""
        self._begin(machine)

    def mend(self, count: int) -> None:
        """So many machines with a node each, that are neither frozen nor cut off."""
        for machine in self.all:
            if machine.disturbed:
                machine.thaw()
                self.heal(machine)
        with ThreadPoolExecutor() as threads:
            for done in [threads.submit(self._mend, machine) for machine in self.all[1:count]]:
                done.result()
        for machine in self.all[count:]:
            machine.kill()
        while len(self.all) < count:
            self.add()

    def _mend(self, machine: Machine) -> None:
        until = time.monotonic() + SETTLED_S
        while machine.disturbed and time.monotonic() < until and machine.find(RAYLET):
            time.sleep(0.1)
        machine.disturbed = False
        if not machine.find(RAYLET):
            self.restart(machine)

    def _connected(self) -> Machine:
        made = Machine(len(self._made), self.environment)
        self._made.append(made)
        here, there = f"p{made.number}", f"netns {self._switch.init}"
        self._ip(made, f"link add eth0 type veth peer name {here} {there}", f"addr add {made.address}/24 dev eth0")
        self._ip(made, "link set eth0 up")
        self._ip(self._switch, f"link set {here} master br0", f"link set {here} up")
        return made

    def _begin(self, made: Machine, *under: str) -> None:
        common = [f"--node-ip-address={made.address}", f"--num-cpus={self._cpus}", "--temp-dir=/mnt/ray"]
        common += ["--object-store-memory=100000000", "--disable-usage-stats"]
        role = [f"--address={self.address}"]
        if made is self.head:
            role = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        for tries_left in reversed(range(START_TRIES)):
            try:
                made.run([*under, *_RAY, "start", *role, *common], 90.0)
                break
            except AssertionError as error:  # Ray gives itself 30 s, however busy we are
                if not tries_left or "timed out during startup" not in str(error):
                    raise
                made.run([*_RAY, "stop", "--force"], 60.0)

    def cut(self, machine: Machine) -> None:
        """Nobody reaches it, and it reaches nobody."""
        machine.disturbed = True
        self._ip(self._switch, f"link set p{machine.number} down")

    def heal(self, machine: Machine) -> None:
        self._ip(self._switch, f"link set p{machine.number} up")

    def pace(self, megabits: int) -> None:
        """No machine sends, or gets, more than so many Mbit/s."""
        shape = f"root tbf rate {megabits}mbit burst 512kb latency 100ms"
        for machine in self.all:
            self._ip(self._switch, f"qdisc replace dev p{machine.number} {shape}", tool="tc")
            self._ip(machine, f"qdisc replace dev eth0 {shape}", tool="tc")

    def _ip(self, machine: Machine, *commands: str, tool: str = "ip") -> None:
        for command in commands:
            subprocess.run(["nsenter", "-t", str(machine.init), "--net", tool, *command.split()], check=True)

    def close(self) -> None:
        for machine in [*self._made, self._switch]:
            machine.kill()


def wait_until(true: object, seconds: float) -> None:
    """Poll until it is; fails when it is not in time."""
    until = time.monotonic() + seconds
    assert callable(true)
    while not true():
        assert time.monotonic() < until, "it did not come to be"
        time.sleep(0.1)
