"""What a run leaves in its directory, and what it prints.

Consumes  finished steps, and the calls of generator and verifier; produces the run directory and lines of the terminal
Waits for the disk, in a thread
Woken by  the training loop, once per step
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.record.carryover import Carryover, save_carryover
    from overlap.record.checkpoint import (
        LEARNER,
        RunState,
        find_checkpoint,
        is_complete,
        latest,
        load_state,
        path_of,
        save_state,
        writing,
    )
    from overlap.record.closing import closing_lines
    from overlap.record.command_line import masked
    from overlap.record.digest import data_digest
    from overlap.record.group_rows import by_group
    from overlap.record.json_lines import JsonLines, append_whole, parse_json_lines, read_json_lines
    from overlap.record.logs import Console, OpenConsole, guest, quiet
    from overlap.record.looplag import LoopLag
    from overlap.record.metrics import read_steps, solved, step_row
    from overlap.record.out_file import OutFile
    from overlap.record.ownership import (
        check_out,
        check_run_dir_free,
        find_run_file,
        has_owner,
        holds_run,
        how_it_ended,
        near_runs,
        resolve,
        stored_summary,
        write_config,
    )
    from overlap.record.picture import write_picture
    from overlap.record.progress import (
        Progress,
        banner,
        change_texts,
        duration,
        final_table,
        refusals,
        selection_line,
        stall_line,
    )
    from overlap.record.recorder import Recorder
    from overlap.record.report import (
        EXPOSED_SHARE,
        PASS_AT_1,
        blank,
        by_parameter,
        hardware,
        paced,
        summary,
        versions,
    )
    from overlap.record.resume import BEGINNING, Resumed, check_reopen, go_back, reopen, stored_config
    from overlap.record.rollouts import MARK, Rollouts, write_rollouts
    from overlap.record.run_exit import RunExit
    from overlap.record.run_files import RunFile, exported_policy
    from overlap.record.run_summary import CallbackCost, PolicyFigures, RunSummary
    from overlap.record.rundir import RunDir
    from overlap.record.sample_rows import SampleNotes, SampleRows
    from overlap.record.sample_writer import SampleWriter
    from overlap.record.timing import WALL_PARTS, judged, mean, result_timing
    from overlap.record.trace import Tracer
    from overlap.record.traffic import BusyClock
    from overlap.record.write_failures import WriteFailures
else:  # imported on first use: a command that reads a run starts in a tenth of the time
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "BEGINNING",
    "EXPOSED_SHARE",
    "LEARNER",
    "MARK",
    "PASS_AT_1",
    "WALL_PARTS",
    "BusyClock",
    "CallbackCost",
    "Carryover",
    "Console",
    "JsonLines",
    "LoopLag",
    "OpenConsole",
    "OutFile",
    "PolicyFigures",
    "Progress",
    "Recorder",
    "Resumed",
    "Rollouts",
    "RunDir",
    "RunExit",
    "RunFile",
    "RunState",
    "RunSummary",
    "SampleNotes",
    "SampleRows",
    "SampleWriter",
    "Tracer",
    "WriteFailures",
    "append_whole",
    "banner",
    "blank",
    "by_group",
    "by_parameter",
    "change_texts",
    "check_out",
    "check_reopen",
    "check_run_dir_free",
    "closing_lines",
    "data_digest",
    "duration",
    "exported_policy",
    "final_table",
    "find_checkpoint",
    "find_run_file",
    "go_back",
    "guest",
    "hardware",
    "has_owner",
    "holds_run",
    "how_it_ended",
    "is_complete",
    "judged",
    "latest",
    "load_state",
    "masked",
    "mean",
    "near_runs",
    "paced",
    "parse_json_lines",
    "path_of",
    "quiet",
    "read_json_lines",
    "read_steps",
    "refusals",
    "reopen",
    "resolve",
    "result_timing",
    "save_carryover",
    "save_state",
    "selection_line",
    "solved",
    "stall_line",
    "step_row",
    "stored_config",
    "stored_summary",
    "summary",
    "versions",
    "write_config",
    "write_picture",
    "write_rollouts",
    "writing",
]
