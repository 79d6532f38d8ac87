"""What callbacks are told. Everything is the run's own and is to be read only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from overlap.config.fields import Config
from overlap.core import Batch, Prompt, Scored


class RunCommands(Protocol):
    """Commands to the run; each may be called from any thread (``overlap.Run``)."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def drain(self) -> None: ...

    def save(self) -> None: ...

    def stop(self) -> None: ...

    def status(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class CallbackRun:
    """The run that a callback is called for."""

    path: Path
    """The run directory."""
    cfg: Config
    control: RunCommands
    """As ``overlap.start`` returns it: pause, resume, drain, save, stop, status."""
    text_of: Callable[[Prompt], str]
    """The text of a prompt, as the policy reads it."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Base of all events."""

    step: int
    """The last step that was taken; 0 before the first."""


@dataclass(frozen=True, slots=True)
class RunStarted(RunEvent):
    """Everything is up, and nothing has been sampled. Comes again where a run goes back to a checkpoint by itself."""

    resumed: bool
    """Whether the run goes on from a checkpoint."""


@dataclass(frozen=True, slots=True)
class StepTaken(RunEvent):
    """A step was learned, and the engine serves its weights."""

    row: Mapping[str, Any]
    """The step's row of ``metrics.jsonl``; NaN for what is not known."""
    batch: Batch
    """The groups of the step, those that were dropped included; ``batch.all_samples`` has the samples."""


@dataclass(frozen=True, slots=True)
class Evaluated(RunEvent):
    """The policy was evaluated on the held-out problems."""

    figures: Mapping[str, Any]
    """``measure``, ``value``, ``low``, ``high``, ``problems``, ``samples`` and more (``PassRate.figures``)."""
    row: Mapping[str, float]
    """The same as ``eval/`` columns of ``metrics.jsonl``."""
    samples: Sequence[Scored]


@dataclass(frozen=True, slots=True)
class CheckpointSaved(RunEvent):
    """A checkpoint was written."""

    path: Path


@dataclass(frozen=True, slots=True)
class RunFailed(RunEvent):
    """The run ends by an error; ``on_run_end`` comes after it. What was learned is saved by now."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class RunEnded(RunEvent):
    """The run has ended, in whatever way, and its processes with it."""

    exit: str
    """As in the summary: "finished", "stopped", "error: ..."."""
    summary: Mapping[str, Any]
    """What is in ``summary.json``; empty where no step was taken."""


METHODS: Mapping[str, type[RunEvent]] = {
    "on_run_start": RunStarted,
    "on_step": StepTaken,
    "on_evaluate": Evaluated,
    "on_save": CheckpointSaved,
    "on_exception": RunFailed,
    "on_run_end": RunEnded,
}
"""The methods of a callback, and the event that each gets."""
METHOD_OF = {event: method for method, event in METHODS.items()}
