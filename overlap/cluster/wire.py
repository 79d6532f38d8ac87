"""How parcels and replies travel: as bytes of plain tuples. Left to pickle, each job would be taken apart by calls of
Python, a fifth of all that the driver does for one. No Ray in here.
"""

from __future__ import annotations

import dataclasses
import pickle
from operator import attrgetter

from overlap.cluster.nodes import NodeJob, NodeParcel
from sandbox.core import Judgement, Program

_PROGRAM = attrgetter(*(item.name for item in dataclasses.fields(Program)))


def pack_parcel(parcel: NodeParcel) -> bytes:
    """To be read by ``unpack_parcel`` in a process that has the same code."""
    jobs = [(number, turn, problem, _PROGRAM(program)) for number, turn, problem, program in parcel.jobs]
    return pickle.dumps((jobs, *parcel[1:]), pickle.HIGHEST_PROTOCOL)


def unpack_parcel(data: bytes) -> NodeParcel:
    """The parcel that was packed. Only for bytes of our own driver."""
    jobs, *rest = pickle.loads(data)
    return NodeParcel(
        [NodeJob(number, turn, problem, Program(*values)) for number, turn, problem, values in jobs], *rest
    )


def placed(judgement: Judgement, queue_s: float, node: str) -> Judgement:
    """A judgement that has just come, and that nobody has seen, with the time until it began and the node that made it.
    To make another one takes several times as long.
    """
    object.__setattr__(judgement, "queue_s", queue_s)
    object.__setattr__(judgement, "node", node)
    return judgement
