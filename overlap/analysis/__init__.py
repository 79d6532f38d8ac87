"""Reads what a run has left in its directory, for people and for tools.

Consumes  a run directory, also one of a run that goes on; produces what is in it, and warnings
Waits for the disk
Woken by  ``overlap show``, ``view`` and ``report``, the end of a run, and by ``overlap.load_run``
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.analysis.health import CHECKS, run_warnings
    from overlap.analysis.row_shapes import PACKED_COLUMNS, unpacked_bytes, unpacked_floats, unpacked_ints
    from overlap.analysis.run_data import RunData, load_run, rewards_are_passes
    from overlap.analysis.run_warning import RunWarning
    from overlap.analysis.sample_exports import EXPORTS
    from overlap.analysis.sample_file import GroupKey, SampleFile, SampleHead, group_key
    from overlap.analysis.sample_reason import (
        ACCEPTED,
        compared,
        difference_of,
        dropped_words,
        first_failed_test,
        program_end,
        reason,
        test_message,
        verdict_words,
        whole_text,
    )
else:  # imported on first use: warnings and exports need what samples do without
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "ACCEPTED",
    "CHECKS",
    "EXPORTS",
    "PACKED_COLUMNS",
    "GroupKey",
    "RunData",
    "RunWarning",
    "SampleFile",
    "SampleHead",
    "compared",
    "difference_of",
    "dropped_words",
    "first_failed_test",
    "group_key",
    "load_run",
    "program_end",
    "reason",
    "rewards_are_passes",
    "run_warnings",
    "test_message",
    "unpacked_bytes",
    "unpacked_floats",
    "unpacked_ints",
    "verdict_words",
    "whole_text",
]
