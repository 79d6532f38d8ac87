"""What users hook into a run: callbacks, called in a thread of their own.

Consumes  the events of a run; produces what callbacks ask for: Stop, Save, Evaluate
Waits for the callbacks, each event at most ``run.stall_s``
Woken by  the run, between two steps
"""

from overlap.callbacks.actions import Action, Evaluate, Save, Stop
from overlap.callbacks.base import Callback
from overlap.callbacks.checks import check_callbacks, named_callbacks
from overlap.callbacks.events import (
    CallbackRun,
    CheckpointSaved,
    Evaluated,
    RunEnded,
    RunEvent,
    RunFailed,
    RunStarted,
    StepTaken,
)
from overlap.callbacks.thread import AskedAction, CallbackThread
from overlap.callbacks.trainer_callback import TrainerCallbackAdapter

__all__ = [
    "Action",
    "AskedAction",
    "Callback",
    "CallbackRun",
    "CallbackThread",
    "CheckpointSaved",
    "Evaluate",
    "Evaluated",
    "RunEnded",
    "RunEvent",
    "RunFailed",
    "RunStarted",
    "Save",
    "StepTaken",
    "Stop",
    "TrainerCallbackAdapter",
    "check_callbacks",
    "named_callbacks",
]
