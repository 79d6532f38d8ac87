"""A learner rank: ``python -m overlap.learner.rank FD`` serves calls from the socket FD until the driver hangs up.

Started by exec, so it inherits no threads and no locks. Its life is bound to the driver's: when that is gone, so is
this.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

from overlap.core.errors import LearnerDiedError, OverlapError, RunDirError
from overlap.learner.processes import RankSpec
from overlap.learner.rendezvous import Rendezvous
from overlap.process.calls import CANCEL, RemoteCall, RemoteReply, encode_message, receive_message
from overlap.process.process_tree import bind_to_parent, leave
from overlap.process.run_environment import PARENT
from sandbox.pool.quotas import cores

_COLLECTIVE_S = 1800.0  # a rank that waits for another one this long never gets an answer (torch's default for gloo)
_SHOWN = 2000  # characters of a traceback, from its end
_rendezvous = Rendezvous()


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


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    leave(code)  # threads of the process group may wait for ranks that are gone
