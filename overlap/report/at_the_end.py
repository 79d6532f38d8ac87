"""Warnings and report of a run that ends: whatever goes wrong with them costs the run these two, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from overlap.analysis.health import run_warnings
from overlap.analysis.run_data import RunData
from overlap.analysis.sample_file import SampleFile
from overlap.atomic import write_atomic
from overlap.errors import RunDirError, error_reason
from overlap.record.run_files import RunFile
from overlap.report.report import report_text

MOST_BYTES = 2**29
"""Of samples that are looked through at the end of a run, bytes: about 10 s, and 0.3 GB of memory."""
AT_THE_END_S = 30.0
"""Time that the report of a run may take at its end, s: sections that would begin later are left out."""


def run_that_ends(path: Path, rows: Sequence[Mapping[str, Any]]) -> RunData:
    """What the run in ``path`` has left, with its ``rows`` of metrics; without its samples where they are too many."""
    run = RunData(path, rows)
    with suppress(OSError):
        if run.samples.path.stat().st_size > MOST_BYTES:
            run.samples = SampleFile(Path(os.devnull))
    return run


def warnings_at_the_end(run: RunData) -> list[str]:
    """The texts of all warnings, for ``summary.json``."""
    try:
        return list(map(str, run_warnings(run)))
    except Exception as error:  # whatever it is: the summary is to be written
        return [
            f"the checks of the run failed ({type(error).__name__}: {error}): see docs/report.md for what they tell"
        ]


def report_at_the_end(run: RunData, lost: Callable[[str, str], None]) -> None:
    """Write ``report.html`` into the run directory; ``lost`` gets its name and why it could not be written."""
    try:
        write_atomic(RunFile.REPORT.of(run.path), report_text([run], until_s=time.monotonic() + AT_THE_END_S))
    except RunDirError as error:
        lost(str(RunFile.REPORT), error_reason(error.__cause__) if isinstance(error.__cause__, OSError) else str(error))
    except KeyboardInterrupt:  # the run has ended already, and its figures are still to be told
        lost(str(RunFile.REPORT), "interrupted")
    except Exception as error:  # whatever it is: the run ends as it would have without a report
        lost(str(RunFile.REPORT), f"{type(error).__name__}: {error}")
