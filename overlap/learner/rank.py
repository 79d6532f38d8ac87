"""A learner rank: ``python -m overlap.learner.rank FD`` serves calls from the socket FD until the driver hangs up.

Started by exec, so it inherits no threads and no locks. Its life is bound to the driver's: when that is gone, so is
this. Ranks of one machine meet by a file, those of several at rank 0's address and a port of its kernel's choice:

    rank 0: open ──▶ port ──▶ driver ──▶ all ranks: attend ──▶ all are there ──▶ the process group

All of that ends within ``MEET_S``, and an error names the rank, its machine and the address that it cannot reach.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Literal

from overlap.core.errors import LearnerDiedError, LearnerError, OverlapError, RunDirError, one_line
from overlap.learner.processes import RankSpec
from overlap.placement.seats import RankSeat
from overlap.process.calls import CANCEL, RemoteCall, RemoteReply, encode_message, receive_message
from overlap.process.process_tree import bind_to_parent, leave
from overlap.process.run_environment import PARENT
from sandbox.pool.quotas import cores

_COLLECTIVE_S = 1800.0  # a rank that waits for another one this long never gets an answer (torch's default for gloo)
_SHOWN = 2000  # characters of a traceback, from its end
MEET_S = 60.0
"""All ranks are up when it begins, so a rank that takes longer is lost."""
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def main() -> int:
    """Serve until the driver closes the socket; exit code 1 after an error, which has been sent to the driver. A file
    that cannot be written only fails its call, and the rank goes on.
    """
    sock = socket.socket(fileno=int(sys.argv[1]))
    calls, commands = sock.makefile("rb"), None
    while True:
        try:
            call: RemoteCall = receive_message(calls)
        except EOFError:
            return 0
        if call.name == CANCEL:  # one after the other, and all ranks alike: what was begun is ended
            continue
        kind: Literal["ok", "error", "dead"] = "ok"
        value: Any = None
        try:
            if call.name == "meet":
                value = _meet(*call.args)
            elif call.name == "start":
                commands = _start(*call.args)
            else:
                value = getattr(commands, call.name)(*call.args)
        except Exception as error:
            kind = "error" if isinstance(error, RunDirError) else "dead"
            value = _fault(error)
        with suppress(OSError):  # the log may lie on a full disk
            sys.stdout.flush()  # a rank is killed in the end
        sock.sendall(encode_message(RemoteReply(call.number, kind, value)))
        if kind == "dead":
            return 1


def _fault(error: Exception) -> OverlapError:
    """Return the error that the driver is given: for a fault of the program with the end of its traceback."""
    known = isinstance(error, OverlapError)
    text = str(error) if known else traceback.format_exc().strip()
    if not isinstance(error, RunDirError):
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)
    if isinstance(error, OverlapError):
        return error
    return LearnerDiedError(f"learner rank {os.environ['RANK']} raised {text.splitlines()[-1]}\n{text[-_SHOWN:]}")


def _meet(spec: RankSpec) -> int:
    """Get ready for ranks on other machines; returns where they come together, if that is here."""
    if spec.placement.kind == "cpu":
        os.environ["OMP_NUM_THREADS"] = str(_threads(spec))
    return _rendezvous.open(spec.seat)


def _threads(spec: RankSpec) -> int:
    return max(1, cores() // spec.beside)


def _start(spec: RankSpec) -> Any:
    """Join the process group and load everything."""
    bind_to_parent(int(os.environ[PARENT]))
    sys.path += [path for path in spec.imports if path not in sys.path]
    device = _device(spec)
    _join(spec, device)
    from overlap.learner.commands import Commands

    return Commands(spec, device)


def _device(spec: RankSpec) -> Any:
    import torch

    torch.manual_seed(spec.seat.seed)
    if spec.placement.kind != "cuda":
        torch.set_num_threads(_threads(spec))
        return torch.device("cpu")
    device = torch.device("cuda", 0)  # it sees its own alone
    torch.cuda.set_device(device)
    return device


def _join(spec: RankSpec, device: Any) -> None:
    """Meet the other ranks at a file in the run's scratch directory, or on several machines at rank 0's address."""
    import torch.distributed as dist

    backend, within = "nccl" if device.type == "cuda" else "gloo", timedelta(seconds=_COLLECTIVE_S)
    if spec.far:

        def begin(store: Any, soon: timedelta) -> None:
            dist.init_process_group(backend, store=store, rank=spec.rank, world_size=spec.world, timeout=soon)
            dist.barrier()  # nccl connects only here
            dist.distributed_c10d._set_pg_timeout(within)

        _rendezvous.attend(spec, begin)
    else:
        where = f"file://{spec.rendezvous}"
        dist.init_process_group(backend, init_method=where, rank=spec.rank, world_size=spec.world, timeout=within)


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


_rendezvous = Rendezvous()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    leave(code)  # threads of the process group may wait for ranks that are gone
