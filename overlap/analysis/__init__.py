"""Reads what a run has left in its directory, for people and for tools.

Consumes  a run directory, also one of a run that goes on; produces what is in it, and warnings
Waits for the disk
Woken by  ``overlap show``, ``view`` and ``report``, the end of a run, and by ``overlap.load_run``
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.analysis.health import CHECKS, run_warnings
    from overlap.analysis.run_data import EvaluationPoint, RunData, load_run, read_groups
    from overlap.analysis.run_warning import RunWarning
    from overlap.analysis.sample_exports import EXPORTS
    from overlap.analysis.sample_file import SampleFile, SampleHead, unpacked_floats, unpacked_ints
else:  # imported on first use: warnings and exports need what samples do without
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "health": ("CHECKS", "run_warnings"),
            "run_data": ("EvaluationPoint", "RunData", "load_run", "read_groups"),
            "run_warning": ("RunWarning",),
            "sample_exports": ("EXPORTS",),
            "sample_file": ("SampleFile", "SampleHead", "unpacked_floats", "unpacked_ints"),
        },
    )

__all__ = [
    "CHECKS",
    "EXPORTS",
    "EvaluationPoint",
    "RunData",
    "RunWarning",
    "SampleFile",
    "SampleHead",
    "load_run",
    "read_groups",
    "run_warnings",
    "unpacked_floats",
    "unpacked_ints",
]
