"""Reads what a run has left in its directory, for people and for tools.

Consumes  a run directory, also one of a run that goes on; produces what is in it, and warnings
Waits for the disk
Woken by  ``overlap show``, ``view`` and ``report``, the end of a run, and by ``overlap.load_run``
"""

from typing import TYPE_CHECKING

from overlap.analysis.run_data import EvaluationPoint, RunData, load_run
from overlap.analysis.sample_exports import EXPORTS
from overlap.analysis.sample_file import SampleFile, SampleHead, unpacked_floats, unpacked_ints

if TYPE_CHECKING:
    from overlap.analysis.health import CHECKS, run_warnings
    from overlap.analysis.run_warning import RunWarning
else:  # they need more than reading does, and a command that shows a sample is to start at once
    from sandbox.lazy import names

    __getattr__ = names(__name__, {"health": ("CHECKS", "run_warnings"), "run_warning": ("RunWarning",)})

__all__ = [
    "CHECKS",
    "EXPORTS",
    "EvaluationPoint",
    "RunData",
    "RunWarning",
    "SampleFile",
    "SampleHead",
    "load_run",
    "run_warnings",
    "unpacked_floats",
    "unpacked_ints",
]
