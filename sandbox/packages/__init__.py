"""Contest packages (Kattis/ICPC problem package format), judged as their authors wrote them.

Consumes  a directory with problem.yaml, data/, submissions/; versions legacy, legacy-icpc, 2023-07-draft, 2025-09
Produces  a Problem; of submissions, what was expected against what was found
Waits for the jail, submission by submission
Woken by  the end of a run

What is not supported is refused by name. PyYAML is imported when a package is read, and by nothing else in the sandbox.
The names below are imported when they are asked for: the command line has more to do than packages.
"""

from typing import TYPE_CHECKING

from sandbox.packages import cli

if TYPE_CHECKING:
    from sandbox.packages.package import Package, read
    from sandbox.packages.runner import Judged, Runner
    from sandbox.packages.verify import TimeLimit, Verifier, judge_one
else:
    from sandbox.lazy import names

    __getattr__ = names(
        __name__,
        {
            "package": ("Package", "read"),
            "runner": ("Judged", "Runner"),
            "verify": ("TimeLimit", "Verifier", "judge_one"),
        },
    )

__all__ = ["Judged", "Package", "Runner", "TimeLimit", "Verifier", "cli", "judge_one", "read"]
