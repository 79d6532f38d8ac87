"""Inputs of a run before its parts start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from overlap.core import Prompt
from overlap.placement.seats import Placement
from overlap.process.reaper import Reaper
from overlap.record.kept_samples import KeptSamples
from overlap.record.logs import Console
from overlap.record.rundir import RunDir
from overlap.run.control import RunControl
from overlap.run.run_inputs import RunInputs


@dataclass(frozen=True, slots=True)
class RunSetup:
    """Inputs of a run. ``data``: digest of the prompts, for checkpoints. ``rollouts``: samples to train from in the
    place of an engine and a verifier.
    """

    inputs: RunInputs
    placement: Placement
    run: RunDir
    scratch: Path
    console: Console
    reaper: Reaper
    control: RunControl
    data: str = ""
    rollouts: KeptSamples | None = None

    def text_of(self, prompt: Prompt) -> str:
        return str(self.inputs.tokenizer.decode(list(prompt.token_ids)))
