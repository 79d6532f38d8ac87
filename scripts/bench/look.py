"""Seconds of ``overlap show`` and ``overlap view`` on a run of 10,000 samples in 190 MB.

Medians of wall seconds, each with the least: of the commands as processes, with the CPU seconds that the cheapest one
took; of the page's answers; and, where there is a Chromium, of the first paint and of the first rows after the page was
asked for.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from _shared import argument_parser

SHOWN = ((), ("--failed",), ("--eval",), ("--step", "20"), ("--sample", "g1000s3"), ("--problem", "problems-3"))
ASKED = ("", "api/run", "api/samples", "api/samples?sort=-tokens&verdict=WA", "api/samples?q=total", "api/groups",
         "api/sample/41/1000/3")  # fmt: skip
PAINT = "performance.getEntriesByType('paint').find(entry => entry.name == 'first-contentful-paint')?.startTime ?? 0"
ROWS = "document.querySelectorAll('.row:not(.heads):not(.waiting)').length"


def show_times(run: Path, times: int) -> None:
    """Print a line for each way to call ``overlap show``."""
    for words in SHOWN:
        command = [sys.executable, "-m", "overlap.cli", "show", str(run), *words]
        spent = []

        def show(command: Sequence[str] = command, spent: list[float] = spent) -> None:
            before = _children_s()
            subprocess.run(command, check=True, capture_output=True)
            spent.append(_children_s() - before)

        _print("show " + " ".join(words), times, show, spent)


def _children_s() -> float:
    """CPU seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def view_times(run: Path, times: int) -> None:
    """Print a line for each answer of the page, and for what a browser shows."""
    from served_view import served_view  # of tests/support

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with served_view(run) as (address, _):
        began = time.monotonic()
        opener.open(f"{address}api/run").read()
        print(f"{'view: all read after the start':44s} {time.monotonic() - began:8.3f}")
        for path in ASKED:
            _print(f"view /{path}", times, lambda to=address + path: opener.open(to).read())
        _paint(address, times)


def _paint(address: str, times: int) -> None:
    from browser import CHROMIUM, chromium  # of tests/support

    if CHROMIUM is None:
        print("there is no Chromium here")
        return
    with chromium() as page:
        page.look(1280)
        painted, filled = [], []
        for _ in range(times):
            page.open("about:blank")
            began = time.monotonic()
            page.open(address)
            page.wait(f"{ROWS} > 5")
            filled.append(time.monotonic() - began)
            painted.append(page.wait(PAINT) / 1000)
    for name, found in (("first paint", painted), ("first rows", filled)):
        print(f"{'view: ' + name:44s} {statistics.median(found):8.3f} {min(found):8.3f}")


def _print(name: str, times: int, work: Callable[[], object], cpu: Sequence[float] = ()) -> None:
    spent = []
    for _ in range(times):
        began = time.monotonic()
        work()
        spent.append(time.monotonic() - began)
    last = f" {min(cpu):8.3f}" if cpu else ""
    print(f"{name:44s} {statistics.median(spent):8.3f} {min(spent):8.3f}{last}", flush=True)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--run", type=Path, help="a run directory, instead of a made one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        from made_run import made_run  # of tests/support

        shape = {"steps": 50, "groups": 25, "samples": 8, "kept": "all", "tokens": (500.0, 500.0), "padding": 11_000}
        run = args.run or made_run(Path(folder) / "run", **shape)
        size = (run / "trajectories.jsonl").stat().st_size
        print(f"{size / 1e6:.0f} MB{'':37s} {'median s':>10s} {'least':>7s} {'CPU':>8s}")
        show_times(run, args.times)
        view_times(run, args.times)


if __name__ == "__main__":
    main()
