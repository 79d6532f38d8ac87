"""What is written down when a run has ended: its summary, its picture, its report."""

from __future__ import annotations

from typing import Any

from overlap.analysis.run_data import RunData
from overlap.evaluation.history import EvaluationHistory
from overlap.record.picture import write_picture
from overlap.record.run_files import RunFile
from overlap.record.rundir import RunDir
from overlap.report.at_the_end import report_at_the_end


def write_end(run: RunDir, figures: dict[str, Any], left: RunData, course: EvaluationHistory, title: str) -> None:
    """Write summary.json, picture.png and report.html of a run with these ``figures`` (``record.summary``).

    ``left``: what the run has left so far; ``course``: its evaluations; ``title``: that of the picture. What cannot be
    written is named in ``not_written`` of ``figures``.
    """
    run.finish(figures)
    lost = len(figures["not_written"])
    with run.failures.tolerate_write_errors(RunFile.PICTURE):
        write_picture(left.steps, run.picture, title=title, evaluations=course.curve(), measure=course.measure)
    report_at_the_end(left, run.failures.add)
    figures["not_written"] = list(run.failures)
    if len(figures["not_written"]) > lost:
        run.finish(figures)
