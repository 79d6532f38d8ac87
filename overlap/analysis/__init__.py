"""Reads what a run has left in its directory, for people and for tools.

Consumes  a run directory, also one of a run that goes on; produces its configuration, metrics, groups and samples
Waits for the disk
Woken by  ``overlap show``, ``view`` and ``report``, and by ``overlap.load_run``
"""

from overlap.analysis.run_data import EvaluationPoint, RunData, load_run
from overlap.analysis.sample_file import SampleFile, SampleHead, unpacked_floats, unpacked_ints

__all__ = [
    "EvaluationPoint",
    "RunData",
    "SampleFile",
    "SampleHead",
    "load_run",
    "unpacked_floats",
    "unpacked_ints",
]
