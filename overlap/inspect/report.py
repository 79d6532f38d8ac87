"""``overlap report``: the page of one run, or of several compared, as one file that needs no network and no program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from overlap.config.rules import path_given
from overlap.core.errors import ConfigError, RunDirError, error_reason
from overlap.inspect.compare import comparison, run_names
from overlap.inspect.health import run_warnings
from overlap.inspect.page_data import MARK, page_html, report_data
from overlap.inspect.run_data import RunData, load_run
from overlap.record.out_file import OutFile
from overlap.record.run_files import RunFile
from overlap.record.sample_file import SampleFile

MOST_BYTES = 2**29
"""Bytes of samples that are read at most at the end of a run: about 10 s, and 0.3 GB of memory."""


def write_report(*runs: str | Path | RunData, out: str | Path | None = None) -> Path:
    """Write the report of one run (its directory, or what ``load_run`` returned), or the comparison of several.
    Returns the path.

    ``out`` is by default ``report.html`` in the run directory; of several runs, in the current one. A file that is no
    report is not written over. Raises ConfigError, RunDirError.
    """
    if not runs:
        raise ConfigError("RUN", "", "name one run directory or more, for instance runs/first")
    found = [run if isinstance(run, RunData) else load_run(run) for run in runs]
    usual = RunFile.REPORT.of(found[0].path) if len(found) == 1 else Path(str(RunFile.REPORT))
    target = path_given("out", out, "report.html") if out is not None else usual
    OutFile(target, ours=MARK).write(report_html(found))
    return target


def report_html(runs: Sequence[RunData]) -> str:
    """The page with its data."""
    if len(runs) == 1:
        return page_html(runs[0].path.name, report_data(runs[0]))
    return page_html(", ".join(run_names(runs)), {"compared": comparison(runs)})


def run_that_ends(path: Path, rows: Sequence[Mapping[str, Any]]) -> RunData:
    """Data of the run in ``path``, with its ``rows`` of metrics; without its samples where they are too many."""
    run, file = RunData(path, rows), RunFile.TRAJECTORIES.of(path)
    if file.exists() and file.stat().st_size > MOST_BYTES:
        run.samples = SampleFile(Path(os.devnull))
    return run


def warnings_at_the_end(run: RunData) -> list[str]:
    """The texts of all warnings, for ``summary.json``."""
    try:
        return list(map(str, run_warnings(run)))
    except Exception as error:  # a by-product: the summary is written whatever happens here
        return [f"the checks of the run failed ({type(error).__name__}: {error}): docs/look.md lists them"]


def by_product(file: RunFile, make: Callable[[], None], lost: Callable[[str, str], None]) -> None:
    """Make a file at the end of a run, which ends as it would have without it: ``lost`` gets the file's name and why it
    could not be made.
    """
    try:
        make()
    except (Exception, KeyboardInterrupt) as error:  # the run has ended, and its figures are still to be printed
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        plain = isinstance(cause, OSError | RunDirError)
        why = error_reason(cause) if plain else f"{type(error).__name__}: {error}"
        lost(str(file), "interrupted" if isinstance(error, KeyboardInterrupt) else why)
