"""Meeting of ranks on several machines: at rank 0's address and a port of its kernel's choice.

    rank 0: open ──▶ port ──▶ driver ──▶ all ranks: attend ──▶ all are there ──▶ the process group

All of it ends within ``MEET_S``, and an error names the rank, its machine and the address that it cannot reach. Ranks
of one machine need none of this: they use a file.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from overlap.core.errors import LearnerDiedError, LearnerError, one_line
from overlap.learner.processes import RankSpec
from overlap.placement.seats import RankSeat

MEET_S = 60.0
"""All ranks are up when it begins, so a rank that takes longer is lost."""
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def interfaces() -> dict[str, list[str]]:
    """IP addresses by the name of the interface that has them."""
    import psutil

    families = socket.AF_INET, socket.AF_INET6
    found = psutil.net_if_addrs().items()
    return {name: [entry.address for entry in entries if entry.family in families] for name, entries in found}


def interface_of(seat: RankSeat, known: Mapping[str, Sequence[str]]) -> str:
    """The interface by which others reach a rank. Raises LearnerError where no one has its address."""
    for name, addresses in known.items():
        if seat.address in addresses:
            return name
    ours = ", ".join(f"{name} {' '.join(addresses)}" for name, addresses in known.items() if addresses)
    way_out = "start its node with an address that an interface has (overlap cluster up --address)"
    raise LearnerError(f"{who(seat)}: no interface there has the address {seat.address}, but {ours}: {way_out}")


def who(seat: RankSeat) -> str:
    """A rank, as messages call it."""
    return f"learner rank {seat.rank} on {f'node {seat.node}' if seat.node else 'the machine of the run'}"


class Rendezvous:
    """One rank's part of the rendezvous: rank 0 opens it, and all attend."""

    def __init__(self) -> None:
        self._store: Any = None

    def open(self, seat: RankSeat) -> int:
        """Choose the network interface, unless the environment does; rank 0 listens. Returns its port, 0 for others."""
        name = interface_of(seat, interfaces())
        for variable in _INTERFACES:
            os.environ.setdefault(variable, name)
        from torch.distributed import TCPStore  # seconds, so all do it at a time

        if seat.rank:
            return 0
        family = socket.AF_INET6 if ipaddress.ip_address(seat.address).version == 6 else socket.AF_INET
        with socket.socket(family) as listens:
            listens.bind((seat.address, 0))
            listens.listen(1024)
            port = int(listens.getsockname()[1])
            self._store = TCPStore(
                seat.address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=MEET_S),
                master_listen_fd=listens.detach(),
            )
        return port

    def attend(self, spec: RankSpec, begin: Callable[[Any, timedelta], None]) -> None:
        """Wait for the others, then ``begin`` the process group by what all share, within a time. Raises
        LearnerDiedError where a rank does not come.
        """
        first, seat = spec.placement.ranks[0], spec.seat
        where = f"{first.address}:{spec.port}"
        if self._store is None:
            with failing(f"{who(seat)} ({seat.address}) cannot reach rank 0 at {where}"):
                from torch.distributed import TCPStore

                self._store = TCPStore(first.address, spec.port, is_master=False, timeout=timedelta(seconds=MEET_S))
        self._store.set(f"here {seat.rank}", b"")
        for other in spec.placement.ranks[1:] if not seat.rank else ():
            with failing(f"{who(other)} ({other.address}) did not connect to {where}"):
                self._store.wait([f"here {other.rank}"], timedelta(seconds=MEET_S))
        told = ", ".join(f"rank {one.rank} at {one.address}" for one in spec.placement.ranks if one != seat)
        with failing(f"{who(seat)} ({seat.address}) cannot connect to {told}: check for a firewall between them"):
            begin(self._store, timedelta(seconds=MEET_S))


@contextmanager
def failing(said: str) -> Iterator[None]:
    """Raise LearnerDiedError with ``said`` for what fails inside, and with a line of what the library says."""
    try:
        yield
    except RuntimeError as error:
        why = one_line(error, 200)
        raise LearnerDiedError(f"the ranks did not connect within {MEET_S:g} s: {said} ({why})") from error
