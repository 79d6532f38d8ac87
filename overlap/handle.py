"""``start(cfg)``: a run in a thread of its own, and a hand on it. ``train`` is the same, waited for.

with overlap.start(cfg) as run:
    run.pause(); run.save(); run.resume()
    print(run.status()["step"])
    figures = run.wait()
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from overlap.config import Config
from overlap.core import Task
from overlap.steering import Steering
from overlap.training import train


class Run(Steering):
    """A run that goes on. Leaving its ``with`` block stops it, in order, if it has not ended."""

    def __init__(self, cfg: Config, task: Task | None, *, resume: bool, with_changes: bool) -> None:
        super().__init__()
        self._figures: dict[str, Any] | None = None
        self._error: BaseException | None = None

        def work() -> None:
            try:
                self._figures = train(cfg, task, resume=resume, with_changes=with_changes, steering=self)
            except BaseException as error:  # it is raised where somebody waits
                self._error = error

        self._thread = threading.Thread(target=work, name="overlap-run")
        self._thread.start()

    @property
    def done(self) -> bool:
        """It has ended."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """The summary, when the run has ended. Raises what ``train`` raises, TimeoutError after ``timeout`` seconds; a
        Ctrl-C here stops the run and is raised when that has ended.
        """
        try:
            self._thread.join(timeout)
        except KeyboardInterrupt:
            self.stop()
            self._thread.join()
            raise
        if not self.done:
            raise TimeoutError(f"the run goes on after {timeout:g} s")
        if self._error is not None:
            raise self._error
        assert self._figures is not None
        return self._figures

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.done:
            self.stop()
        self._thread.join()


def start(cfg: Config, task: Task | None = None, *, resume: bool = False, with_changes: bool = False) -> Run:
    """Begin to train and return at once; see :func:`overlap.train` for the arguments. Bad input is raised by ``wait``.

    Signals are the caller's: ``Run.wait`` turns a Ctrl-C into ``stop``.
    """
    return Run(cfg, task, resume=resume, with_changes=with_changes)
