"""What a program on a machine could reach: everything that listens there and on the others, and Ray's own sockets."""

from __future__ import annotations

import json
from pathlib import Path

from machines import Machine

_SOURCE = """\
import glob, json, os, socket
reached = []
for family, place in json.loads({places!r}):
    try:
        with socket.socket(getattr(socket, family), socket.SOCK_STREAM) as tried:
            tried.settimeout(0.2)
            tried.connect(tuple(place) if family == "AF_INET" else place)
        reached.append(place)
    except OSError:
        pass
reached += [name for name in os.environ if name.startswith("RAY_")]
for path in {files!r} + glob.glob("/mnt/*") + glob.glob("/tmp/ovc-*"):
    try:
        reached += [path] if os.path.isfile(path) and open(path) or os.listdir(path) else []
    except OSError:
        pass
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        with open(path, "rb") as environment:
            text = environment.read()
        reached += ["/proc"] if b"RAY_" in text or b"OVERLAP_CLUSTER" in text else []
    except OSError:
        pass
"""
LISTENS = "0A"


def ports(machine: Machine) -> list[int]:
    """TCP ports that something listens at there."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{machine.init}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == LISTENS:
                found.add(int(local.rpartition(":")[2], 16))
    return sorted(found)


def sockets(machine: Machine) -> list[str]:
    """Unix sockets that Ray listens at there."""
    lines = Path(f"/proc/{machine.init}/net/unix").read_text().splitlines()[1:]
    return sorted({line.split()[-1] for line in lines if "/ray/" in line})


def program(machines: list[Machine], *files: str) -> str:
    """Tries them all, and these files. ``reached`` are the places, variables, files and folders that it got at, and
    "/proc" where it read the environment of somebody who knows the token.
    """
    places: list[tuple[str, object]] = [("AF_UNIX", path) for machine in machines for path in sockets(machine)]
    for machine in machines:
        listens = ports(machine)
        places += [("AF_INET", (host, port)) for host in (machine.address, "127.0.0.1") for port in listens]
    return _SOURCE.format(places=json.dumps(places), files=list(files))
