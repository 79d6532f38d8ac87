"""All checks of a run together: what ``summary.json``, the console and the report warn of."""

from __future__ import annotations

from overlap.inspect import learning_checks, machinery_checks, sample_checks
from overlap.inspect.run_data import RunData
from overlap.inspect.run_warning import CHECKS, RunWarning
from sandbox.core.checks import printable

__all__ = ["CHECKS", "run_warnings"]
CHECKED = (learning_checks, machinery_checks, sample_checks)
"""The modules whose checks are in ``CHECKS``."""


def run_warnings(run: RunData) -> list[RunWarning]:
    """Warnings of the checks, the most urgent first. Raises ConfigError where a file of the run cannot be read."""
    if not run.steps:
        return []
    found = ((kind, each(run)) for kind, each in CHECKS.items())
    return [_printable(warning)._replace(kind=kind) for kind, warning in found if warning is not None]


def _printable(warning: RunWarning) -> RunWarning:
    """Ids of problems and failures are in a warning as a file has them; it goes to terminals and into one line."""
    return warning._replace(text=printable(warning.text), way_out=printable(warning.way_out))
