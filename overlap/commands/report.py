"""``overlap report``: the report of one run, or the comparison of several."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from sandbox.core import printable


def report_command(args: argparse.Namespace) -> Iterator[str]:
    """Write the report; yields what it says of several runs, or warns of in one, and where it is."""
    from overlap.analysis import load_run, run_warnings
    from overlap.report import comparison_lines, write_report

    runs = [load_run(run) for run in args.runs]
    path = write_report(*runs, out=args.out)
    if len(runs) == 1:
        yield from (f"WARNING  {warning}" for warning in run_warnings(runs[0]))
    else:
        yield from comparison_lines(runs)
    yield f"{printable(str(path))}: open it in a browser"
