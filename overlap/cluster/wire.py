"""How a parcel travels: as bytes of plain tuples. Left to Ray, each job of it would be taken apart by calls of Python,
a fifth of all that the driver does for one. No Ray in here.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from overlap.cluster.nodes import JobParcel, NodeJob
from sandbox.core import Judgement, Program


def values_of(noun: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """What makes a noun of this type anew, out of one."""
    return attrgetter(*(item.name for item in dataclasses.fields(noun)))


_PROGRAM, _JUDGEMENT = values_of(Program), values_of(Judgement)
_NAMES = [item.name for item in dataclasses.fields(Judgement)]
_QUEUE, _NODE = _NAMES.index("queue_s"), _NAMES.index("node")
_PARCEL = attrgetter("problems", "forgotten", "withdrawn", "epoch", "order")


def pack_parcel(parcel: JobParcel) -> bytes:
    """To be read by ``unpack_parcel`` in a process that has the same code."""
    jobs = [(job.number, job.attempt, job.turn, job.problem, _PROGRAM(job.program)) for job in parcel.jobs]
    return pickle.dumps((jobs, *_PARCEL(parcel)), pickle.HIGHEST_PROTOCOL)


def unpack_parcel(data: bytes) -> JobParcel:
    """The parcel that was packed. Only for bytes of our own driver."""
    jobs, *rest = pickle.loads(data)
    sent = [
        NodeJob(number, attempt, turn, problem, Program(*values)) for number, attempt, turn, problem, values in jobs
    ]
    return JobParcel(sent, *rest)


def placed(judgement: Judgement, queue_s: float, node: str) -> Judgement:
    """The same, with the time until it began and the node that made it; ``dataclasses.replace`` takes twice as long."""
    values = list(_JUDGEMENT(judgement))
    values[_QUEUE], values[_NODE] = queue_s, node
    return Judgement(*values)
