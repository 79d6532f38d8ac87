"""What a run leaves, and what a person sees of it while it goes on.

Consumes  finished steps and the events of the doors; produces files of the run directory and lines of the terminal
Waits for the disk, in a thread
Woken by  the loop, once per step
"""

from overlap.record.carried import Carried, save_carried
from overlap.record.checkpoint import (
    LEARNER,
    RunState,
    find,
    is_complete,
    latest,
    load_state,
    path_of,
    save_state,
    writing,
)
from overlap.record.digest import data_digest
from overlap.record.files import Lines, check_out, plain, read_rows
from overlap.record.logs import Console, quiet
from overlap.record.looplag import LoopLag
from overlap.record.metrics import StepTiming, judged, mean, merge, result_timing, solved
from overlap.record.place import SOCKET, check_free, has_owner, holds_run, how_it_ended, resolve
from overlap.record.progress import Progress, banner, final_table, stall_line
from overlap.record.recorder import Recorder
from overlap.record.report import hardware, summary, versions, write_picture
from overlap.record.resume import BEGINNING, Resumed, check_reopen, go_back, reopen, stored_config
from overlap.record.rollouts import MARK, ROLLOUTS, Rollouts, write_rollouts
from overlap.record.rundir import RunDir, dialog_of, trajectory_row
from overlap.record.trace import Tracer

__all__ = [
    "BEGINNING",
    "LEARNER",
    "MARK",
    "ROLLOUTS",
    "SOCKET",
    "Carried",
    "Console",
    "Lines",
    "LoopLag",
    "Progress",
    "Recorder",
    "Resumed",
    "Rollouts",
    "RunDir",
    "RunState",
    "StepTiming",
    "Tracer",
    "banner",
    "check_free",
    "check_out",
    "check_reopen",
    "data_digest",
    "dialog_of",
    "final_table",
    "find",
    "go_back",
    "hardware",
    "has_owner",
    "holds_run",
    "how_it_ended",
    "is_complete",
    "judged",
    "latest",
    "load_state",
    "mean",
    "merge",
    "path_of",
    "plain",
    "quiet",
    "read_rows",
    "reopen",
    "resolve",
    "result_timing",
    "save_carried",
    "save_state",
    "solved",
    "stall_line",
    "stored_config",
    "summary",
    "trajectory_row",
    "versions",
    "write_picture",
    "write_rollouts",
    "writing",
]
