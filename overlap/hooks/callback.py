"""Callbacks: the events of a run, the methods that get them, and the actions that a method may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap.config.fields import Config
from overlap.core import Batch, Prompt, Scored, shortened


@dataclass(frozen=True, slots=True)
class Action:
    """Base of what a callback asks of the run."""


@dataclass(frozen=True, slots=True)
class Stop(Action):
    """Learn no further step. The run ends in order: the policy is saved, and evaluated as at every end."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Save(Action):
    """Write a checkpoint before the next step."""


@dataclass(frozen=True, slots=True)
class Evaluate(Action):
    """Evaluate the policy on the held-out problems before the next step."""


def actions_of(returned: object) -> tuple[Action, ...]:
    """The actions that a callback has returned. Raises TypeError for anything else."""
    if returned is None:
        return ()
    if isinstance(returned, list | tuple):
        return tuple(action for part in returned for action in actions_of(part))
    if isinstance(returned, Action):
        return (returned,)
    if isinstance(returned, type) and issubclass(returned, Action) and returned is not Action:
        return (returned(),)
    raise TypeError(f"it returned {shortened(returned)}: return Stop, Save, Evaluate, a list of them, or None")


@dataclass(frozen=True, slots=True)
class CallbackRun:
    """The run that a callback is called for."""

    path: Path
    """The run directory."""
    cfg: Config
    control: Any
    """The run's commands, from any thread, as ``overlap.Run`` has them: pause, resume, drain, save, stop, status."""
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
    """True where the run goes on from a checkpoint."""


@dataclass(frozen=True, slots=True)
class StepTaken(RunEvent):
    """A step was learned, and the engine serves its weights."""

    row: Mapping[str, Any]
    """The step's row of ``metrics.jsonl``; NaN for what is not known."""
    batch: Batch
    """The groups of the step, dropped ones included; ``batch.all_samples`` has the samples."""


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
    """The contents of ``summary.json``; empty where no step was taken."""


Asked = Action | type[Action] | list[Action | type[Action]] | None
"""The values that a method may return."""


class Callback:
    """Base class; any object with some of these methods is a callback too. They are called in a thread of the run's
    callbacks, one at a time. A method may be ``async def``; all of them run in one event loop of that thread. The next
    step waits for a method to return; samples are generated and verified meanwhile.

    Events and what they hold are the run's own: read them only. An exception ends the run in order: the policy is
    saved, and the error names the callback and its line.
    """

    def on_run_start(self, run: CallbackRun, event: RunStarted) -> Asked:
        """Engine, verifier and learner are up; nothing has been sampled."""

    def on_step(self, run: CallbackRun, event: StepTaken) -> Asked:
        """A step was learned; its row is written."""

    def on_evaluate(self, run: CallbackRun, event: Evaluated) -> Asked:
        """The policy was evaluated."""

    def on_save(self, run: CallbackRun, event: CheckpointSaved) -> Asked:
        """A checkpoint was written."""

    def on_exception(self, run: CallbackRun, event: RunFailed) -> None:
        """The run ends by an error. Not called for Ctrl-C or ``stop``."""

    def on_run_end(self, run: CallbackRun, event: RunEnded) -> None:
        """The run has ended; called once, however it ended."""


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
