"""A run keeps what it learned, however it ends: in order after the last step, or within a bound when it ends early."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from overlap.core.errors import OverlapError, RunDirError, one_line
from overlap.record.checkpoint import latest
from overlap.record.run_summary import PolicyFigures
from overlap.record.rundir import RunDir

KEEP_S = 30.0  # for an interrupted run to save its policy; larger policies get the time of KEEP_BYTES_PER_S
KEEP_BYTES_PER_S = 50e6
_SPARE = 64 * 2**20
"""Bytes beside the weights: tokenizer, configuration, and what the place itself may need."""


def other_places(run: Path, size: int) -> list[Path]:
    """Folders on other disks than that of ``run`` with room for ``size`` bytes; memory comes last."""
    found: dict[int, Path] = {}
    own = run.stat().st_dev
    for place in (Path.cwd(), Path.home(), Path("/var/tmp"), Path(tempfile.gettempdir()), Path("/dev/shm")):
        with suppress(OSError):
            device = place.stat().st_dev
            if device != own and os.access(place, os.W_OK) and shutil.disk_usage(place).free > size + _SPARE:
                found.setdefault(device, place)
    return list(found.values())


class PolicySaver:
    """Writes ``policy/`` of a run. All methods but ``skip`` are for the session's event loop."""

    def __init__(
        self, run: RunDir, policy: Path, save: Callable[[Path], Awaitable[int]], report_line: Callable[[str], None]
    ) -> None:
        """``policy`` is the checkpoint that the run began with; ``save`` writes the learner's policy to a path and
        returns its version; ``report_line`` gets lines for a person.
        """
        self.outcome: PolicyFigures = {}
        """Empty until it is known whether the policy was saved."""
        self._run, self._policy, self._save, self._report_line = run, policy, save, report_line
        self._saving: asyncio.Task[None] | None = None
        self._skipped = False

    async def save(self) -> None:
        """Save the final policy; where the run's disk takes it no more, on another one. Raises what the learner
        raises.
        """
        try:
            version = await self._save(self._run.policy)
        except OverlapError as error:
            if isinstance(error, RunDirError) and await self._save_elsewhere(error):
                return
            self.outcome = {"failure": one_line(error)}
            raise
        self.outcome = {"path": str(self._run.policy), "version": version}

    async def _save_elsewhere(self, error: RunDirError) -> bool:
        """Save the policy on the first other disk with room, and report where. False where there is none."""
        for place in await asyncio.to_thread(other_places, self._run.path, self._weights):
            folder = place / f"{self._run.path.name}-policy-{os.getpid()}"
            try:
                version = await self._save(folder)
            except RunDirError:
                continue
            self.outcome = {"path": str(folder), "version": version, "instead": one_line(error)}
            self._report_line(f"the policy is saved in {folder}, since {self._run.policy} cannot be written: move it")
            return True
        return False

    @property
    def _weights(self) -> int:
        return sum(file.stat().st_size for file in self._policy.glob("*.safetensors"))

    async def rescue(self) -> None:
        """Save the policy of a run that ends early, within a time limit, while the learner is alive. Raises nothing."""
        if self.outcome:
            return
        limit = max(KEEP_S, self._weights / KEEP_BYTES_PER_S)
        self._report_line(f"saving the policy (at most {limit:.0f} s; Ctrl-C skips it)")
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

    def figures(self) -> PolicyFigures:
        """Place of the policy; or why it was not saved, with the newest checkpoint."""
        if self.outcome and not self.outcome.get("failure"):
            return self.outcome
        newest = latest(self._run.checkpoints)
        if not self.outcome and newest is None:
            return {}
        reason = self.outcome or {"failure": "no step was taken since the run was resumed"}
        return reason | {"checkpoint": str(newest) if newest else None}
