"""A run keeps what it learned, however it ends: in order after the last step, or within a bound when it ends early."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from overlap.errors import OverlapError, one_line
from overlap.record import RunDir, latest

KEEP_S = 30.0  # for an interrupted run to save its policy; larger policies get the time of KEEP_BYTES_PER_S
KEEP_BYTES_PER_S = 50e6


class PolicySaver:
    """Writes ``policy/`` of a run. All methods but ``skip`` are for the session's event loop."""

    def __init__(self, run: RunDir, policy: Path, save: Callable[[Path], Awaitable[int]]) -> None:
        """``policy`` is the checkpoint that the run began with; ``save`` writes the learner's policy to a path and
        returns its version.
        """
        self.outcome: dict[str, Any] = {}
        """``path`` and ``version`` of the policy that was saved, or ``failure``, why it was not."""
        self._run, self._policy, self._save = run, policy, save
        self._saving: asyncio.Task[None] | None = None
        self._skipped = False

    async def save(self) -> None:
        """Save the final policy. Raises what the learner raises."""
        try:
            version = await self._save(self._run.policy)
        except OverlapError as error:
            self.outcome = {"failure": one_line(error)}
            raise
        self.outcome = {"path": str(self._run.policy), "version": version}

    async def rescue(self, report_line: Callable[[str], None]) -> None:
        """Save the policy of a run that ends early, within a time limit and while the learner lives. Raises nothing."""
        if self.outcome:
            return
        weights = sum(file.stat().st_size for file in self._policy.glob("*.safetensors"))
        limit = max(KEEP_S, weights / KEEP_BYTES_PER_S)
        report_line(f"saving the policy (at most {limit:.0f} s; Ctrl-C skips it)")
        saving = self._saving = asyncio.create_task(self.save(), name="keep the policy")
        why = f"it took more than {limit:.0f} s"
        try:
            await asyncio.wait([saving], timeout=limit)
        except asyncio.CancelledError:
            why = "skipped"
        saving.cancel()
        (error,) = await asyncio.gather(saving, return_exceptions=True)
        if saving.cancelled():
            self.outcome = {"failure": "skipped" if self._skipped else why}
        elif error is not None and not self.outcome:
            self.outcome = {"failure": f"{type(error).__name__}: {error}"}

    def skip(self) -> bool:
        """Give up the rescue after a second Ctrl-C. False when there is nothing to skip.

        May be called from a signal handler.
        """
        if self._saving is None or self._saving.done() or self._skipped:
            return False
        self._skipped = True
        self._saving.get_loop().call_soon_threadsafe(self._saving.cancel)
        return True

    def clean_up(self) -> None:
        """Remove what an interrupted save has left; its ranks have ended by then."""
        with self._run.failures.tolerate_write_errors("policy/"):
            self._run.settle()

    def figures(self) -> dict[str, Any]:
        """Where the policy is; or why it is nowhere, with the newest checkpoint."""
        if self.outcome and not self.outcome.get("failure"):
            return self.outcome
        newest = latest(self._run.checkpoints)
        if not self.outcome and newest is None:
            return {}
        reason = self.outcome or {"failure": "no step was taken since the run was resumed"}
        return reason | {"checkpoint": str(newest) if newest else None}
