"""The driver's data about a node, and the calls that it makes to one. This module imports no Ray."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from overlap.core.aio import wait_result
from overlap.core.errors import OverlapError
from sandbox.core.nouns import Judgement, Program
from sandbox.core.problem import Problem

T = TypeVar("T")
_ROOT = Path(__file__).resolve().parents[2]
BEAT_S = 2.0
"""An agent that has nothing to say says so after this time."""
SILENT_S = 6.0
"""Seconds without an answer after which an agent is lost, and its jobs go to other nodes."""
GRACE_S = 1.0
"""Seconds that a process that was suspended has to read what came meanwhile."""
HELLO_S = 120.0
"""An agent says what its node is within this time; a call that is longer has others beside it."""
ORPHAN_S = 30.0
"""Seconds without a call after which an agent takes its driver for gone, whatever Ray reports, and ends."""


class NodeLost(OverlapError, RuntimeError):
    """An agent of ours is gone, or did not answer in time: it gets no more calls, and another one is made."""


class NodeSilent(NodeLost):
    """The node cannot be reached: it is unknown whether its processes have ended."""


class HeadLost(NodeLost):
    """The head, or Ray on this machine, is gone, and every agent of ours with it."""


class NodeRefused(OverlapError):
    """A node that programs cannot be judged on as the run asks; says what is missing there."""


class RayNodeInfo(NamedTuple):
    """A node as Ray knows it: its id, the address that it listens at, the GPUs and cores that Ray counts there, and of
    these the cores that are ``free``. ``here``: this process runs on it.
    """

    key: str
    address: str
    alive: bool
    gpus: int
    cpus: int = 0
    free: int = 0
    here: bool = False

    @property
    def name(self) -> str:
        """Name of the node in messages."""
        return f"{self.address}-{self.key[:8]}"


class Facts(NamedTuple):
    """An agent's answer about its node. ``workers``: programs that it judges at once, with ``cores`` that it may use;
    ``tier``: isolation of its jails.
    """

    cores: int
    workers: int
    tier: str

    def __str__(self) -> str:
        cores = f" on {self.cores} cores" if self.workers != self.cores else ""
        return f"{self.workers} at once{cores}, tier {self.tier}"


class NodeJob(NamedTuple):
    """A program to be judged by a problem that the node has, or gets with it. Lower turns are first."""

    number: int
    turn: int
    problem: str
    program: Program


class NodeAnswer(NamedTuple):
    """``judgement``, or our fault in the form of ``sandbox.errors.to_wire``. ``ended_s``: time of the end, by the clock
    that ``said_s`` of the reply is of.
    """

    number: int
    judgement: Judgement | None
    fault: Mapping[str, str] | None
    ended_s: float


class NodeParcel(NamedTuple):
    """All that is sent to a node at once: jobs, the problems that are new to it by digest, digests that it may forget,
    and numbers of withdrawn jobs. The node gives back up to ``spare`` jobs that have not begun there, and waits at most
    ``wait_s`` for a first answer. What its jobs need it may forget behind them.
    """

    jobs: Sequence[NodeJob] = ()
    problems: Mapping[str, Problem] = {}
    forgotten: Sequence[str] = ()
    withdrawn: Sequence[int] = ()
    spare: int = 0
    wait_s: float = 0.0


class NodeReply(NamedTuple):
    """A node's reply to a parcel: answers since the last reply, the numbers of jobs that it gives back, how many it
    ``has`` beside both, and when it replied, by its clock.
    """

    answers: Sequence[NodeAnswer]
    returned: Sequence[int]
    has: int
    said_s: float


async def answer_within(call: Awaitable[T], seconds: float) -> T:
    """Return the result of a call. Raises NodeSilent when there is none within ``seconds``."""
    try:
        return await wait_result(call, seconds)
    except TimeoutError:
        raise NodeSilent(f"no answer within {seconds:.0f} s") from None


@cache
def code_digest() -> str:
    """Equal on machines that judge by the same code of ours, under the same Python."""
    made = hashlib.sha256(sys.version.split()[0].encode())
    for folder in ("overlap", "sandbox"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            made.update(path.relative_to(_ROOT).as_posix().encode())
            made.update(path.read_bytes())
    return made.hexdigest()[:16]
