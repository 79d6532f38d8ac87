"""Files that are written when a run has ended: its summary, its picture, its report."""

from __future__ import annotations

from typing import Any

from overlap.inspect.picture import write_picture
from overlap.inspect.report import by_product, report_html
from overlap.inspect.run_data import RunData
from overlap.process.atomic import write_atomic
from overlap.record.run_files import RunFile
from overlap.record.rundir import RunDir


def write_end(run: RunDir, figures: dict[str, Any], left: RunData, title: str) -> None:
    """Write summary.json, picture.png and report.html of a run with these ``figures`` (``record.summary``).

    ``left``: what the run has left so far; ``title``: that of the picture. What cannot be written is named in
    ``not_written`` of ``figures``.
    """
    run.finish(figures)
    lost = len(figures["not_written"])
    report = RunFile.REPORT.of(run.path)
    by_product(RunFile.PICTURE, lambda: write_picture(left, run.picture, title=title), run.failures.add)
    by_product(RunFile.REPORT, lambda: write_atomic(report, report_html([left])), run.failures.add)
    figures["not_written"] = list(run.failures)
    if len(figures["not_written"]) > lost:
        run.finish(figures)
