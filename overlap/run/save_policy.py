"""A run keeps what it learned, however it ends: in order after the last step, or within a bound when it ends early."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from overlap.errors import OverlapError
from overlap.record import RunDir, latest

KEEP_S = 30.0  # for an interrupted run to save its policy; larger policies get the time of KEEP_BYTES_PER_S
KEEP_BYTES_PER_S = 50e6


class Keeper:
    """Writes ``policy/`` of a run. All methods belong to the session's loop, but ``skip``."""

    def __init__(self, run: RunDir, policy: Path, save: Callable[[Path], Awaitable[int]]) -> None:
        """``policy`` is the checkpoint that the run began with; ``save`` writes the learner's policy to a path and
        returns its version.
        """
        self.kept: dict[str, Any] = {}
        """``path`` and ``version`` of the policy that was saved, or ``failure``, why it was not."""
        self._run, self._policy, self._save = run, policy, save
        self._saving: asyncio.Task[None] | None = None
        self._skipped = False

    async def save(self) -> None:
        """Save the final policy. Raises what the learner raises."""
        try:
            version = await self._save(self._run.policy)
        except OverlapError as error:
            self.kept = {"failure": " ".join(str(error).split())}
            raise
        self.kept = {"path": str(self._run.policy), "version": version}

    async def rescue(self, say: Callable[[str], None]) -> None:
        """The run ends early: save what the learner knows, while it lives and within a bound. Raises nothing."""
        if self.kept:
            return
        limit = max(KEEP_S, _weight_bytes(self._policy) / KEEP_BYTES_PER_S)
        say(f"saving the policy (at most {limit:.0f} s; Ctrl-C skips it)")
        saving = self._saving = asyncio.create_task(self.save(), name="keep the policy")
        why = f"it took more than {limit:.0f} s"
        try:
            await asyncio.wait([saving], timeout=limit)
        except asyncio.CancelledError:
            why = "skipped"
        saving.cancel()
        (error,) = await asyncio.gather(saving, return_exceptions=True)
        if saving.cancelled():
            self.kept = {"failure": "skipped" if self._skipped else why}
        elif error is not None and not self.kept:
            self.kept = {"failure": f"{type(error).__name__}: {error}"}

    def skip(self) -> bool:
        """A second Ctrl-C: do without the policy that is being rescued. False when there is nothing to skip.

        May be called from a signal handler.
        """
        if self._saving is None or self._saving.done() or self._skipped:
            return False
        self._skipped = True
        self._saving.get_loop().call_soon_threadsafe(self._saving.cancel)
        return True

    def sweep(self) -> None:
        """Clear up what a save that was cut off has left; its ranks are gone by then."""
        with self._run.failures.tolerate_write_errors("policy/"):
            self._run.settle()

    def figures(self) -> dict[str, Any]:
        """Where the policy is, or why not, and then the checkpoint that has the most of it."""
        if self.kept and not self.kept.get("failure"):
            return self.kept
        newest = latest(self._run.checkpoints)
        if not self.kept and newest is None:
            return {}
        reason = self.kept or {"failure": "no step was taken since the run was resumed"}
        return reason | {"checkpoint": str(newest) if newest else None}


def _weight_bytes(policy: Path) -> int:
    return sum(file.stat().st_size for file in policy.glob("*.safetensors"))
