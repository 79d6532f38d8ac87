"""What the driver knows of a node, and what it asks of one. No Ray in here."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

from overlap.errors import OverlapError
from sandbox.core import Judgement, Problem, Program

_ROOT = Path(__file__).resolve().parents[2]
BEAT_S = 2.0
"""An agent that has nothing to say says so after this time."""
SILENT_S = 6.0
"""A node that says nothing for so long gets no job, and those that it has go elsewhere, until it speaks again."""
GRACE_S = 1.0
"""Who stood still reads first what came meanwhile."""
HELLO_S = 120.0
"""An agent says what its node is within this time."""
ORPHAN_S = 30.0
"""An agent that nobody has called for so long has no driver any more, whatever Ray believes, and ends."""


class NodeSilent(OverlapError):
    """A node did not answer in time; it may do so later."""


class NodeLost(OverlapError, RuntimeError):
    """A node, or our agent on it, is gone for good: this agent will answer nothing any more."""


class HeadLost(NodeLost):
    """The head, or Ray on this machine, is gone: Ray ends every agent of ours, and soon after this process."""


class NodeRefused(OverlapError):
    """A node that programs cannot be judged on as the run asks; says what is missing there."""


class NodeDrained(OverlapError):
    """A node that was to be let go has no job any more."""


class Facts(NamedTuple):
    """What an agent says of its node. ``workers``: programs that it judges at once, with ``cores`` that it may use;
    ``tier``: isolation of its jails; ``clock_s`` and ``error_s``: how far its monotonic clock is ahead of the driver's,
    and how well that is known, s.
    """

    cores: int
    workers: int
    tier: str
    clock_s: float = 0.0
    error_s: float = 0.0


class NodeJob(NamedTuple):
    """A program to be judged by a problem that the node has, or gets with it. Lower turns are first."""

    number: int
    attempt: int
    turn: int
    problem: str
    program: Program


class NodeAnswer(NamedTuple):
    """``judgement``, or what the fault of ours was, as ``sandbox.errors.to_wire`` says it. ``ended_s``: when that was,
    by the node's clock.
    """

    number: int
    attempt: int
    judgement: Judgement | None
    fault: Mapping[str, str] | None
    ended_s: float


class NodeReply(NamedTuple):
    """What a node says when it is asked for answers, and when it was asked and said so, by its clock. Beside them it
    ``has`` so many jobs, of the first ``opened`` parcels.
    """

    answers: Sequence[NodeAnswer]
    asked_s: float
    said_s: float
    has: int = 0
    opened: int = -1


@dataclass(frozen=True, slots=True)
class JobParcel:
    """All that is sent to a node at once: jobs, the problems that are new to it by digest, digests that it may forget,
    and numbers of jobs that nobody wants any more.

    Calls may overtake each other. ``order`` counts the parcels from 1 that are more than nothing: a node opens them one
    after the other, whichever comes first. ``epoch`` counts the resets before it: one of before is not opened.
    """

    jobs: Sequence[NodeJob] = ()
    problems: Mapping[str, Problem] = field(default_factory=dict)
    forgotten: Sequence[str] = ()
    withdrawn: Sequence[int] = ()
    epoch: int = 0
    order: int = 0


NOTHING = JobParcel()


class Node(Protocol):
    """An agent on a node. Every call may wait for ever where the node is silent: the caller bounds it.

    Calls raise NodeLost once the agent is gone for good, and NodeSilent where it cannot be reached for the moment.
    """

    name: str
    drains: bool
    """It shall get no further job, and is let go when it has none."""

    async def hello(self) -> Facts:
        """Start what judges programs there, and say what it is. Raises NodeRefused."""

    async def send(self, parcel: JobParcel) -> None:
        """Hand over jobs; returns when the agent has them."""

    async def collect(self, parcel: JobParcel = NOTHING) -> NodeReply:
        """Hand over jobs, too; the answers since the last call, as soon as there is one; none after ``BEAT_S``."""

    async def reset(self, epoch: int) -> None:
        """Have it drop all jobs, answers and problems of before that epoch: it was silent, and the jobs are others'
        now. Calls of before that come later do nothing, and bring nothing back.
        """

    async def close(self) -> None:
        """End everything that it started, and itself."""


class Members(Protocol):
    """The nodes of a cluster, as they come."""

    def joined(self) -> AsyncIterator[Node]:
        """Every node that is there, then each that joins, with an agent on it."""

    async def close(self) -> None:
        """End every agent, and leave the cluster."""


@cache
def code_digest() -> str:
    """Equal on machines that judge by the same code of ours, under the same Python."""
    made = hashlib.sha256(sys.version.split()[0].encode())
    for folder in ("overlap", "sandbox"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            made.update(path.relative_to(_ROOT).as_posix().encode())
            made.update(path.read_bytes())
    return made.hexdigest()[:16]
