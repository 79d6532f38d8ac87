"""``overlap report``: one HTML file of one run, or of several compared, that needs no network and no program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from overlap.analysis.run_data import RunData, load_run
from overlap.config.arguments import path_given
from overlap.errors import ConfigError
from overlap.record.out_file import OutFile
from overlap.record.run_files import RunFile
from overlap.report import compare
from overlap.report.curves import learning_curves, time_curves
from overlap.report.groups import sample_groups
from overlap.report.outcome import by_problem, outcome, warnings
from overlap.report.page import LINKS, MARK, esc, html_page, section
from overlap.report.problem_map import pass_rate_map
from overlap.report.settings import settings, surroundings
from overlap.report.timeline import timeline


def write_report(*runs: str | Path | RunData, out: str | Path | None = None) -> Path:
    """Write the report of one run (its directory, or what ``load_run`` returned), or the comparison of several.
    Returns the path.

    ``out`` is by default ``report.html`` in the run directory; of several runs, in the current one. A file that is no
    report is not written over. Raises ConfigError, RunDirError.
    """
    if not runs:
        raise ConfigError("RUN", "", "name one run directory or more, for instance runs/first")
    found = [run if isinstance(run, RunData) else load_run(run) for run in runs]
    target = path_given("out", out, "report.html") if out is not None else _place(found)
    OutFile(target, ours=MARK).write(report_text(found))
    return target


def _place(runs: Sequence[RunData]) -> Path:
    return RunFile.REPORT.of(runs[0].path) if len(runs) == 1 else Path(str(RunFile.REPORT))


def report_text(runs: Sequence[RunData], *, until_s: float = float("inf")) -> str:
    """The HTML. Sections that would begin after ``until_s`` (time.monotonic()) are left out, and named."""
    return _one(runs[0], until_s) if len(runs) == 1 else _several(runs)


def _one(run: RunData, until_s: float) -> str:
    sections: dict[str, Callable[[RunData], str]] = {
        "outcome": outcome,
        "warnings": warnings,
        "problems": by_problem,
        "curves": learning_curves,
        "time": time_curves,
        "timeline": timeline,
        "map": pass_rate_map,
        "samples": sample_groups,
        "configuration": settings,
        "machine": surroundings,
    }
    body, late = "", []
    for anchor, make in sections.items():
        if time.monotonic() < until_s:
            body += make(run)
        else:
            late.append(LINKS[anchor].lower())
    if run.samples.path != RunFile.TRAJECTORIES.of(run.path):
        late.append("samples")
    if late:
        note = (
            f"Left out, so that the run could end: {', '.join(late)}. overlap report {run.path} makes the whole report."
        )
        body += section("late", "Left out", f'<p class="note">{esc(note)}</p>')
    policy = run.config.get("model", {}).get("policy", "")
    subtitle = " · ".join(filter(None, (str(policy), f"{len(run.steps)} steps", run.state, _when(run))))
    return html_page(run.path.name, subtitle, body)


def _several(runs: Sequence[RunData]) -> str:
    names = compare.run_names(runs)
    parts = (
        compare.outcomes,
        compare.paired_tests,
        compare.all_warnings,
        compare.differences,
        compare.overlaid,
    )
    body = "".join(part(runs, names) for part in parts)
    return html_page(f"{len(runs)} runs", ", ".join(names), body)


def _when(run: RunData) -> str:
    return str(run.history[-1].get("at", "")) if run.history else ""
