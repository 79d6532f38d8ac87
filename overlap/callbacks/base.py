"""The base class of callbacks; any object with some of its methods is a callback too."""

from __future__ import annotations

from overlap.callbacks.actions import Action
from overlap.callbacks.events import (
    CallbackRun,
    CheckpointSaved,
    Evaluated,
    RunEnded,
    RunFailed,
    RunStarted,
    StepTaken,
)

Asked = Action | type[Action] | list[Action | type[Action]] | None
"""What a method may return."""


class Callback:
    """Called in a thread of the run's callbacks, one at a time. A method may be ``async def``; all of them run in one
    event loop of that thread. The next step waits for a method to return; samples are generated and verified meanwhile.

    An exception ends the run in order: the policy is saved, and the error names the callback and its line.
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
