"""Graders of other projects beside the sandbox; ``peers`` says what is compared."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _peer_environments import make_environment, run_logged
from _peer_picture import draw

CHECK_S = 3600.0
"""Longest check of a grader."""
PANELS = {"ms of CPU a program": "cpu_ms", "programs a second": "per_s", "MiB at the peak": "peak_mib"}
CALLS = 40
"""Of a grader in a round that is timed."""


@dataclass
class GraderSide:
    """A grader: the function of ``_peer_rewards``, its packages, and what was found of it."""

    name: str
    packages: tuple[str, ...]
    found: dict[str, Any] = field(default_factory=dict)
    paces: list[dict[str, float]] = field(default_factory=list)

    def median(self, column: str) -> float:
        """Over the rounds."""
        return statistics.median(pace[column] for pace in self.paces)


GRADERS = (
    ("ours", ()),
    (
        "verl",
        ("verl==0.9.1", "tensordict==0.15.3", "pyvers==0.2.3", "omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3"),
    ),
    ("livecodebench", ("lighteval==0.13.0",)),
    ("evalplus", ("evalplus==0.3.1",)),
)


def compare_graders(options: argparse.Namespace) -> int:
    """Check all graders, time them in turns and print their table; returns 0."""
    sides = [GraderSide(*row) for row in GRADERS]
    pythons = {side.name: _python(options.folder, side) for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            side.paces.append(_pace(options.folder, side, pythons[side.name]))
    with ThreadPoolExecutor(len(sides)) as checks:  # beside each other, for most of their time is waiting
        found = checks.map(lambda side: _checked(options, side, pythons[side.name]), sides)
        for side, counts in zip(sides, found, strict=True):
            side.found = counts
            print(f"{side.name}: {counts}", flush=True)
    table = {side.name: {**side.found, "paces": side.paces} for side in sides}
    (options.folder / "graders.json").write_text(json.dumps(table, indent=1))
    _print(sides)
    panels = {title: {side.name: side.median(column) for side in sides} for title, column in PANELS.items()}
    hacks = {side.name: _percent(side.found["hacks paid"]) for side in sides}
    draw(options.folder / "graders.svg", {"% of the hacks paid": hacks, **panels}, "ours")
    return 0


def _print(sides: list[GraderSide]) -> None:
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {CALLS} calls a round, medians")
    columns = ("answered", "right programs refused", "wrong programs paid", "hacks paid")
    print(f"{'':<15}" + "".join(f"{name:>24}" for name in columns) + f"{'CPU ms':>9}{'per s':>8}{'peak MiB':>10}")
    for side in sides:
        figures = "".join(f"{side.found[name]:>24}" for name in columns)
        pace = f"{side.median('cpu_ms'):>9.1f}{side.median('per_s'):>8.1f}{side.median('peak_mib'):>10.0f}"
        print(f"{side.name:<15}{figures}{pace}")


def _python(folder: Path, side: GraderSide) -> str:
    return str(make_environment(folder / side.name, *side.packages)) if side.packages else sys.executable


def _checked(options: argparse.Namespace, side: GraderSide, python: str) -> dict[str, Any]:
    """What ``sandbox check-reward`` finds of a grader, by counts "n of all"."""
    log = options.folder / f"check-{side.name}.json"
    words = ["check-reward", f"_peer_rewards:{side.name}", "--json", "--repeats", "1"]
    more = ["--samples", str(options.samples.absolute())] if options.samples else []
    run_logged([python, "-W", "ignore", "-m", "sandbox", *words, *more], log, CHECK_S, codes=(0, 1))
    text = log.read_text()
    found, _ = json.JSONDecoder().raw_decode(text, text.index("{"))  # a grader's own output may stand around it
    answered = {id for id, calls in found["replies"].items() if any(call["score"] is not None for call in calls)}
    paid = [one["id"] if isinstance(one, dict) else str(one) for one in found["false_accepts"]]
    return {
        "answered": f"{len(answered)} of {found['samples']}",
        "right programs refused": len(found["false_rejects"]),
        "wrong programs paid": sum(not _is_hack(id) for id in paid),
        "hacks paid": f"{sum(map(_is_hack, paid))} of {sum(map(_is_hack, answered))}",
    }


def _percent(found: str) -> float:
    """Of "n of all"."""
    paid, of = map(int, found.split(" of "))
    return 100 * paid / max(of, 1)


def _is_hack(id: str) -> bool:
    """Whether a program is a hostile one of the zoo, whose ids begin with a row; its honest twins are right."""
    return id[:2].isdigit() and "-twin-" not in id


def _pace(folder: Path, side: GraderSide, python: str) -> dict[str, float]:
    """CPU per program, programs a second with a process on each core, and peak memory."""
    log = folder / f"pace-{side.name}.log"
    run_logged([python, "-W", "ignore", "-m", "_peer_pace", side.name, str(CALLS)], log, CHECK_S)
    last: dict[str, float] = json.loads(log.read_text().splitlines()[-1])
    return last
