"""What of a run could not be written: told once when it happens, and again at the end. Nothing of it ends the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from overlap.errors import RunDirError


@dataclass
class WriteFailure:
    """A file that was not written ``times`` times, first at step ``step``."""

    name: str
    reason: str
    step: int
    times: int = 1

    def __str__(self) -> str:
        when = f"from step {self.step} on" if self.step else "from the start on"
        return f"{self.name} ({self.reason}; {self.times} time{'s'[: self.times > 1]} {when})"


class WriteFailures:
    """The files of a run that could not be written."""

    def __init__(self) -> None:
        self.step = 0
        """Step that is being written down."""
        self._lost: dict[str, WriteFailure] = {}
        self._say: Callable[[str], None] | None = None

    def report_to(self, say: Callable[[str], None]) -> None:
        """From here on each first loss of a file is told by ``say``; so are those before."""
        self._say = say
        for loss in self._lost.values():
            self._tell(loss)

    @contextmanager
    def tolerate_write_errors(self, name: str) -> Iterator[None]:
        """Do without file ``name`` when it cannot be written."""
        try:
            yield
        except OSError as exc:  # RunDirError is one
            cause = exc.__cause__ if isinstance(exc, RunDirError) and isinstance(exc.__cause__, OSError) else exc
            self.add(name, getattr(cause, "strerror", None) or " ".join(str(cause).split()))

    def add(self, name: str, reason: str) -> None:
        """File ``name`` was not written, for ``reason``."""
        if name in self._lost:
            self._lost[name].times += 1
            return
        self._lost[name] = WriteFailure(name, reason, self.step)
        self._tell(self._lost[name])

    def recovered(self, name: str) -> None:
        """What was missing of ``name`` has been written after all."""
        if self._lost.pop(name, None) is not None and self._say is not None:
            self._say(f"{name} is written again, and nothing of it is missing")

    def _tell(self, loss: WriteFailure) -> None:
        if self._say is not None:
            self._say(f"{loss.name} is not being written: {loss.reason}; the run goes on without it")

    def __bool__(self) -> bool:
        return bool(self._lost)

    def __iter__(self) -> Iterator[str]:
        """A line per file, for the end of the run, or for another thread."""
        return map(str, tuple(self._lost.values()))
