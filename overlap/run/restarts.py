"""A run whose learner died goes back to its newest checkpoint by itself, a bounded number of times.

death ──▶ parts close ──▶ a pause ──▶ the directory goes back, as for --resume ──▶ parts start ──▶ on from there
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from overlap.config.fields import Config
from overlap.core.aio import shielded_thread
from overlap.core.errors import LearnerDiedError, OverlapError, StoppedError, one_line
from overlap.record.checkpoint import latest
from overlap.record.resume import Resumed
from overlap.record.resume import go_back as rewind
from overlap.record.run_summary import RunExit
from overlap.record.rundir import RunDir

MOST = 2
"""Restarts of a run; what kills its learner once more would do so again."""
PAUSE_S = 5.0
"""Before the first restart, twice as long before each further one: what killed the learner may still be there."""


def death_in(error: BaseException | None) -> LearnerDiedError | None:
    """The learner's death among an error and its causes."""
    while error is not None and not isinstance(error, LearnerDiedError):
        error = error.__cause__
    return error


class Restarts:
    """Counts and bounds the restarts of a session. ``begun`` is whether its parts were up once: a learner that cannot
    start at all is not restarted.
    """

    def __init__(self, run: RunDir, cfg: Config, report_line: Callable[[str], None]) -> None:
        self.begun = False
        self.lines: list[str] = []
        """A line for each restart."""
        self._run, self._cfg, self._report_line = run, cfg, report_line

    def possible(self, taken: int) -> bool:
        """True when the run may go back: ``taken`` steps of this session would be lost without a checkpoint. Reports
        why it may not.
        """
        if not self.begun:
            return False
        if len(self.lines) >= MOST:
            why = f"the learner died again after {MOST} restarts: the run does not go back once more"
        elif taken and self.newest_checkpoint is None:
            why = "there is no checkpoint that the run could go back to (run.save_every=N makes them)"
        else:
            return True
        self._report_line(why)
        return False

    @property
    def coming(self) -> str:
        """The number of the next restart, of those allowed: "1 of 2"."""
        return f"{len(self.lines) + 1} of {MOST}"

    async def go_back(self, death: LearnerDiedError) -> Resumed:
        """Wait, then rewind the directory. Returns where the run goes on. Raises OverlapError."""
        pause_s = PAUSE_S * 2 ** len(self.lines)
        target = f"checkpoint {self.newest_checkpoint}" if self.newest_checkpoint else "its beginning"
        self.lines.append(f"{one_line(death)}; the run goes back to {target} (restart {self.coming})")
        self._report_line(f"{self.lines[-1]} in {pause_s:g} s")
        await asyncio.sleep(pause_s)
        return await shielded_thread(rewind, self._run, self._cfg)

    @property
    def newest_checkpoint(self) -> str | None:
        """Name of the newest checkpoint."""
        newest = latest(self._run.checkpoints)
        return newest.name if newest else None


def reason_of(error: BaseException) -> str:
    """Reason why a run ended early, in the words of its summary."""
    if isinstance(error, StoppedError):
        return RunExit.STOPPED.value
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return RunExit.INTERRUPTED.value
    return f"{RunExit.ERROR}: {error if isinstance(error, OverlapError) else f'{type(error).__name__}: {error}'}"
