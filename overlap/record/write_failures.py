"""The files of a run that could not be written: reported at the first failure and at the end, while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from overlap.core.errors import RunDirError, count_of, error_reason


class WriteFailures:
    """Collects what could not be written; iterating gives a line for each file."""

    def __init__(self) -> None:
        self.step = 0
        """The step whose files are being written."""
        self.report_line: Callable[[str], None] = lambda line: None
        """Gets lines for a person."""
        self._found: dict[str, tuple[str, int, int]] = {}
        """By file, the reason, the step of its first failure, and how often it failed."""

    def report_to(self, report_line: Callable[[str], None]) -> None:
        """From here on call ``report_line`` when a file fails for the first time; those before are reported now."""
        self.report_line = report_line
        for name, (reason, _, _) in self._found.items():
            self._report(name, reason)

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
        if name not in self._found:
            self._report(name, reason)
        reason, step, times = self._found.get(name, (reason, self.step, 0))
        self._found[name] = reason, step, times + 1

    def recovered(self, name: str) -> None:
        """Note that what was missing of ``name`` has been written after all."""
        if self._found.pop(name, None):
            self.report_line(f"{name} is written again, and nothing of it is missing")

    def _report(self, name: str, reason: str) -> None:
        self.report_line(f"{name} is not being written: {reason}; the run goes on without it")

    def __iter__(self) -> Iterator[str]:
        for name, (reason, step, times) in list(self._found.items()):
            when = f"from step {step} on" if step else "from the start on"
            yield f"{name} ({reason}; {count_of(times, 'time')} {when})"
