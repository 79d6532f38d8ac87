"""Seconds, memory and size of ``overlap report``: 1,000 steps, 128,000 samples, 20 evaluations.

A line for each time: wall and CPU seconds of the whole command, its largest memory, and the size of the page.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from _shared import argument_parser

SHAPE = {"steps": 1000, "groups": 16, "samples": 8, "problems": 300, "heldout": 100, "eval_every": 50}


def report_line(run: Path, out: Path) -> str:
    """Make the report once; returns what it took."""
    began = time.monotonic()
    command = (sys.executable, "-m", "overlap.cli", "report", str(run), "--out", str(out))
    child = os.posix_spawn(sys.executable, command, os.environ, file_actions=((os.POSIX_SPAWN_CLOSE, 1),))
    _, status, used = os.wait4(child, 0)
    wall_s = time.monotonic() - began
    if status:
        raise SystemExit(f"overlap report ended with {os.waitstatus_to_exitcode(status)}")
    cpu_s, memory, size = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, out.stat().st_size / 1e6
    return f"{wall_s:8.2f} {cpu_s:8.2f} {memory:11.0f} {size:8.2f}"


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--run", type=Path, help="a run directory, instead of a made one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        from made_run import made_run  # of tests/support

        run = args.run or made_run(Path(folder) / "run", **SHAPE)
        print("  wall s    CPU s  memory MiB  page MB")
        for _ in range(args.times):
            print(report_line(run, Path(folder) / "report.html"), flush=True)


if __name__ == "__main__":
    main()
