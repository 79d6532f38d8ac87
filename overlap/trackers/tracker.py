"""What a tracker is: a class whose methods are called one after the other, in a thread or a process of its own.

A further tracker is a class with the methods of ``Tracker`` and a row in ``kinds.KINDS``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class TrackerRefused(Exception):
    """The tracker cannot be used as it is set up: no package, no login, a wrong address. Trying again is no use."""


class TrackerFault(Exception):
    """An error that a tracker raised in another process: its type and its text."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told of the run. JSON types alone."""

    id: str
    """Of the run, for all of its resumptions; kept in the run directory."""
    name: str
    project: str
    folder: str
    """The run directory."""
    files: str
    """Folder in it for files of the tracker."""
    config: Mapping[str, Any]
    step: int = 0
    """The run goes on after this step."""
    resumed: bool = False


class Tracker(Protocol):
    """Takes the rows of a run. A call that raises has lost what it was given; the run goes on."""

    def start(self, run: TrackedRun) -> None:
        """Begin the curve, or go on with it. Raises TrackerRefused."""

    def row(self, row: Mapping[str, Any]) -> None:
        """Take a row: "step", and names with finite numbers."""

    def samples(self, split: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take some samples of a step, or of an evaluation."""

    def rewind(self, step: int) -> None:
        """Rows of later steps are void: the run goes on after ``step``."""

    def end(self, exit: str, figures: Mapping[str, Any]) -> None:
        """The run has ended: ``exit`` as in the summary, and its last figures."""
