"""Runs the stages of ``_stages.py``, each in a process of its own with an end, and writes what they found.

A stage prints a line of JSON per check: its name, whether it held (null: left out, with the reason), and figures. What
hangs or dies costs its own stage only. Exit code 0 when all checks that were made held, 1 when one did not, 2 where
there is no CUDA device.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STAGES = ("learner", "sync", "hybrid", "memory", "speed")
LIMIT_S = 480.0
PACKAGES = ("torch", "vllm", "deepspeed", "transformers")
Row = dict[str, Any]


def main() -> int:
    options = _options()
    if options.one:
        return _one(options)
    devices = ["cpu (rehearsal)"] if options.rehearse else _devices()
    if not devices:
        print("gpu_check: no CUDA device: run it on a machine with one, or with --rehearse on the CPU", file=sys.stderr)
        return 2
    for device in devices:
        print(f"device   {device}")
    stages = options.stages or STAGES
    found = {stage: list(_run(stage, options)) for stage in stages}
    rows = [row for stage in stages for row in found[stage]]
    report = {"devices": devices, "packages": _packages(), "python": platform.python_version(), "stages": found}
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    held, failed, left = (sum(row["ok"] is what for row in rows) for what in (True, False, None))
    print(f"{held} checks held, {failed} failed, {left} left out; {options.out}")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)} (all)")
    parser.add_argument("--policy", default="smollm2-135m-instruct", help="of the stages hybrid, memory and speed")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="the figures (gpu_check.json)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help=f"for one stage ({LIMIT_S:g})")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU: shows that the checks work, nothing else")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [stage for stage in options.stages if stage not in STAGES]:
        parser.error(f"STAGE {unknown[0]!r} is not known: use {', '.join(STAGES)}")
    return options


def _run(stage: str, options: argparse.Namespace) -> Iterator[Row]:
    """The stage's rows, printed as they come; a row of our own for one that did not end well."""
    words = [sys.executable, __file__, "--one", stage, "--policy", options.policy]
    started = subprocess.Popen(
        [*words, *(["--rehearse"] if options.rehearse else [])],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with started as child:
        assert child.stdout is not None
        tail = _Tail(child.stderr)
        late = threading.Event()
        clock = threading.Timer(options.limit, lambda: (late.set(), _kill(child)))
        clock.start()
        try:
            for line in child.stdout:
                if line.startswith("{"):
                    yield _told(stage, json.loads(line))
            code = child.wait()
        finally:
            clock.cancel()
            _kill(child)
        said = tail.text()
    if code:
        why = f"took more than {options.limit:g} s (--limit)" if late.is_set() else f"exit code {code}"
        yield _told(stage, {"check": "stage", "ok": False, "why": ": ".join(filter(None, (why, said)))})


class _Tail:
    """The end of what a stage says on stderr, read as it comes."""

    def __init__(self, stream: Any) -> None:
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def _read(self, stream: Any) -> None:
        for line in stream:
            self._lines = [*self._lines[-14:], line.rstrip()]

    def text(self) -> str:
        self._reader.join(5.0)
        return " | ".join(self._lines)[-1500:]


def _kill(child: subprocess.Popen[str]) -> None:
    """The stage, and what it has started in its session; their own children end with their parents."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _told(stage: str, row: Row) -> Row:
    word = {True: "ok", False: "FAILED", None: "left out"}[row["ok"]]
    figures = "  ".join(f"{name} {_short(value)}" for name, value in row.items() if name not in ("check", "ok"))
    print(f"{stage:<8} {row['check']:<34} {word:<9} {figures}", flush=True)
    return row


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _one(options: argparse.Namespace) -> int:
    """A stage, in this process."""
    sys.path.insert(0, str(Path(__file__).parent))
    from _stages import Place, stage

    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        place = Place(Path(scratch), "cpu" if options.rehearse else "cuda", options.policy)
        for row in stage(options.one, place):
            print(json.dumps(row), flush=True)
    return 0


def _devices() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in told.splitlines() if line.strip()]


def _packages() -> dict[str, str]:
    known = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[name] = importlib.metadata.version(name)
    return known


if __name__ == "__main__":
    raise SystemExit(main())
