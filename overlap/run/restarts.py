"""A run whose learner died goes back to its newest checkpoint by itself, a bounded number of times.

death ──▶ doors close ──▶ a pause ──▶ the directory goes back, as for --resume ──▶ doors open ──▶ on from there
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from overlap.aio import shielded_thread
from overlap.config import Config
from overlap.errors import LearnerDiedError, OverlapError, RunDirError, StoppedError, one_line
from overlap.record import Resumed, RunDir, go_back, latest

PAUSE_S = 5.0
"""Before the first restart, twice as long before each further one: what killed the learner may still be there."""


def death_in(error: BaseException | None) -> LearnerDiedError | None:
    """The learner's death among an error and its causes."""
    while error is not None and not isinstance(error, LearnerDiedError):
        error = error.__cause__
    return error


class Restarts:
    """Belongs to a session. ``begun`` is whether its doors were open once: a learner that cannot start is no death."""

    def __init__(self, run: RunDir, cfg: Config, say: Callable[[str], None]) -> None:
        self.begun = False
        self.told: list[str] = []
        """A line for each restart."""
        self._run, self._cfg, self._say = run, cfg, say

    def possible(self, taken: int) -> bool:
        """``taken`` steps by this session are lost unless there is a checkpoint."""
        return self.begun and len(self.told) < self._cfg.run.restarts and (taken == 0 or self.goal is not None)

    def count(self, coming: int = 0) -> str:
        """How many there were, with those to come, of how many there may be: "1 of 2"."""
        return f"{len(self.told) + coming} of {self._cfg.run.restarts}"

    def refuse(self) -> None:
        """Say why the run does not go back after a death, unless it was not asked to."""
        allowed = self._cfg.run.restarts
        if not self.begun or not allowed:
            return
        if len(self.told) >= allowed:
            self._say(f"the learner died once more than run.restarts={allowed} allows: the run does not go back again")
        else:
            self._say("there is no checkpoint that the run could go back to (run.save_every=N makes them)")

    async def back(self, death: LearnerDiedError) -> Resumed:
        """Wait, then rewind the directory; returns where the run goes on. Raises ``death`` when that cannot be done."""
        pause_s = PAUSE_S * 2 ** len(self.told)
        goal = f"checkpoint {self.goal}" if self.goal else "its beginning"
        times = f"{len(self.told) + 1} of run.restarts={self._cfg.run.restarts}"
        self.told.append(f"{one_line(death)}; the run goes back to {goal} ({times})")
        self._say(f"{self.told[-1]} in {pause_s:g} s")
        await asyncio.sleep(pause_s)
        try:
            return await shielded_thread(go_back, self._run, self._cfg)
        except OverlapError as second:
            self._say(f"the run cannot go back: {second}")
            raise death from second

    @property
    def goal(self) -> str | None:
        """Name of the newest checkpoint."""
        try:
            newest = latest(self._run.checkpoints)
        except RunDirError:
            return None
        return newest.name if newest else None


INTERRUPTED = "interrupted"


def reason_of(error: BaseException) -> str:
    """Why a run ended early, as its summary says it: "stopped", "interrupted", or "error: " and what it was."""
    if isinstance(error, StoppedError):
        return "stopped"
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        return INTERRUPTED
    return f"error: {error}" if isinstance(error, OverlapError) else f"error: {type(error).__name__}: {error}"
