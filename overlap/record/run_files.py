"""The files of a run directory, one row each: every path in a run directory is made from this table.

``docs/training.md`` describes the content of each.
"""

from __future__ import annotations

import os
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path

from overlap.process.atomic import is_hidden_name


class RunFile(Enum):
    """A file or folder that a run makes in its directory.

    ``swept``: what a new run removes where an earlier start ended before its first step. ``evidence``: what shows that
    a run came to a step or ended; a new run refuses such a directory. Both are patterns below the directory, or "".
    """

    # fmt: off
    #               name                  swept                            evidence
    CONFIG       = ("config.yaml",        "",                              "")
    METRICS      = ("metrics.jsonl",      "metrics.jsonl",                 "metrics.jsonl")
    EVENTS       = ("events",             "events/events.out.tfevents.*",  "")
    TRACKERS     = ("trackers",           "trackers",                      "")
    TRAJECTORIES = ("trajectories.jsonl", "trajectories.jsonl",            "trajectories.jsonl")
    GROUPS       = ("groups.jsonl",       "groups.jsonl",                  "")
    NODES        = ("nodes.jsonl",        "nodes.jsonl",                   "")
    TRACE        = ("trace.json",         "trace.json",                    "")
    SUMMARY      = ("summary.json",       "",                              "summary.json")
    PICTURE      = ("picture.png",        "",                              "picture.png")
    REPORT       = ("report.html",        "report.html",                  "")
    LOG          = ("run.log",            "",                              "")  # a lock: emptied only
    ENGINES      = ("engines",            "engines",                       "")
    SOCKET       = ("ctl",                "",                              "")
    CHECKPOINTS  = ("checkpoints",        "",                              "checkpoints/step-*")
    POLICY       = ("policy",             "",                              "policy")
    BEST         = ("policy-best",        "",                              "policy-best")
    EXPORTED     = ("policy-step-*",      "",                              "policy-step-*")
    # fmt: on

    def __init__(self, filename: str, swept: str, evidence: str) -> None:
        self.filename, self.swept, self.evidence = filename, swept, evidence

    def __str__(self) -> str:
        return self.filename

    def of(self, run: Path) -> Path:
        """Its path in a run directory."""
        return run / self.filename

    def shows_a_run(self, run: Path) -> bool:
        """True when it is evidence of a run in this directory: a folder, or a file that is not empty."""
        if not self.evidence:
            return False
        if self.evidence == self.filename and os.path.islink(self.of(run)):
            return True
        return any(path.is_dir() or path.stat().st_size > 0 for path in run.glob(self.evidence))


def exported_policy(run: Path, step: int) -> Path:
    """Path to which ``overlap export`` writes the policy of a step."""
    return run / str(RunFile.EXPORTED).replace("*", f"{step:06d}")


def is_run_file(name: str) -> bool:
    """True when a run makes a file or folder of this name in its directory, or makes it under this name for a while."""
    return any(fnmatchcase(name, file.filename) for file in RunFile) or is_partial_run_file(name)


def is_partial_run_file(name: str) -> bool:
    """True when ``name`` is the hidden name of a file that a run was writing."""
    return any(is_hidden_name(name, file.filename) for file in RunFile)
