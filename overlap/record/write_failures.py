"""The files of a run that could not be written: reported at the first failure and at the end, while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from overlap.core.errors import RunDirError, count_of, error_reason


@dataclass
class WriteFailure:
    """A file that was not written ``times`` times, first at step ``step``."""

    name: str
    reason: str
    step: int
    times: int = 1

    def __str__(self) -> str:
        when = f"from step {self.step} on" if self.step else "from the start on"
        return f"{self.name} ({self.reason}; {count_of(self.times, 'time')} {when})"


class WriteFailures:
    """Collects what could not be written; iterating gives a line for each file."""

    def __init__(self) -> None:
        self.step = 0
        """The step whose files are being written."""
        self._found: dict[str, WriteFailure] = {}
        self.report_line: Callable[[str], None] = lambda line: None
        """Gets lines for a person."""

    def report_to(self, report_line: Callable[[str], None]) -> None:
        """From here on call ``report_line`` when a file fails for the first time; those before are reported now."""
        self.report_line = report_line
        for failure in self._found.values():
            self._report(failure)

    @contextmanager
    def tolerate_write_errors(self, name: object) -> Iterator[None]:
        """Go on without the file ``name`` when it cannot be written."""
        try:
            yield
        except OSError as exc:  # RunDirError is one
            cause = exc.__cause__ if isinstance(exc, RunDirError) and isinstance(exc.__cause__, OSError) else exc
            self.add(str(name), error_reason(cause))

    def add(self, name: str, reason: str) -> None:
        """Note that the file ``name`` was not written, for ``reason``."""
        if name in self._found:
            self._found[name].times += 1
            return
        self._found[name] = WriteFailure(name, reason, self.step)
        self._report(self._found[name])

    def recovered(self, name: str) -> None:
        """Note that what was missing of ``name`` has been written after all."""
        if self._found.pop(name, None) is not None:
            self.report_line(f"{name} is written again, and nothing of it is missing")

    def _report(self, failure: WriteFailure) -> None:
        self.report_line(f"{failure.name} is not being written: {failure.reason}; the run goes on without it")

    def __iter__(self) -> Iterator[str]:
        return map(str, tuple(self._found.values()))
