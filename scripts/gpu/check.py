"""Runs the stages of ``_stages.py``, each in a process of its own with an end, and writes what they found.

A stage prints a line of JSON per check: its name, whether it held (null: left out, with the reason), and figures. What
hangs or dies costs its own stage only, and the file has every row from the moment on at which it is there. Exit code 0
when all checks that were made held, 1 when one did not, 2 where there is no CUDA device.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIMITS = {"attention": 90.0, "learner": 200.0, "resume": 150.0, "ipc": 150.0, "step": 240.0}
"""Seconds for a stage that needs no vLLM."""
ENGINE_STAGES = ("sync", "nccl", "hybrid", "memory", "speed")
STAGES = (*LIMITS, *ENGINE_STAGES)
LIMIT_S = 480.0
PACKAGES = ("torch", "triton", "transformers", "deepspeed", "vllm", "numpy", "safetensors", "tokenizers", "pydantic")
Row = dict[str, Any]


def main() -> int:
    options = _options()
    if options.one:
        return _one(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a stage is ended on the way out
    devices = ["cpu (rehearsal)"] if options.rehearse else _devices()
    if not devices:
        print("gpu check: no CUDA device: run it on a machine with one, or with --rehearse on the CPU", file=sys.stderr)
        return 2
    for device in devices:
        print(f"device   {device}", flush=True)
    report = _Report(options.out, devices)
    for stage in options.stages or STAGES:
        report.begin(stage)
        for row in _run(stage, options):
            report.add(stage, row)
        report.end(stage)
    held, failed, left = (sum(row["ok"] is what for row in report.rows) for what in (True, False, None))
    print(f"{held} checks held, {failed} failed, {left} left out; {options.out}")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "check.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)} (all)")
    parser.add_argument("--policy", default="smollm2-135m-instruct", help="of the stages hybrid, memory and speed")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="the figures (gpu_check.json)")
    parser.add_argument("--limit", type=float, metavar="S", help=f"for each stage ({_limits()})")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU: shows that the checks work, nothing else")
    parser.add_argument("--long", action="store_true", help="rows more: ZeRO 2 and moves in the stage step")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := [stage for stage in options.stages if stage not in STAGES]:
        parser.error(f"STAGE {unknown[0]!r} is not known: use {', '.join(STAGES)}")
    return options


def _limits() -> str:
    return ", ".join(f"{stage} {limit:g}" for stage, limit in LIMITS.items()) + f", others {LIMIT_S:g}"


class _Report:
    """The file of figures, written anew with every row."""

    def __init__(self, out: Path, devices: list[str]) -> None:
        self._out = out
        self._began = 0.0
        self._stages: dict[str, list[Row]] = {}
        self._seconds: dict[str, float | None] = {}
        """None: it has not ended."""
        self._head = {"devices": devices, "machine": _machine(), "packages": _packages()}
        out.parent.mkdir(parents=True, exist_ok=True)

    @property
    def rows(self) -> list[Row]:
        """Of all stages."""
        return [row for rows in self._stages.values() for row in rows]

    def begin(self, stage: str) -> None:
        self._began, self._stages[stage], self._seconds[stage] = time.monotonic(), [], None
        self._write()

    def add(self, stage: str, row: Row) -> None:
        self._stages[stage].append(row)
        self._write()

    def end(self, stage: str) -> None:
        self._seconds[stage] = round(time.monotonic() - self._began, 1)
        print(f"{stage:<9} {self._seconds[stage]} s", flush=True)
        self._write()

    def _write(self) -> None:
        report = self._head | {"seconds": self._seconds, "stages": self._stages}
        partial = self._out.with_name(f"{self._out.name}.partial")
        partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        partial.replace(self._out)


def _run(stage: str, options: argparse.Namespace) -> Iterator[Row]:
    """The stage's rows, printed as they come; a row of our own for one that did not end well."""
    if stage in ENGINE_STAGES and importlib.util.find_spec("vllm") is None:
        yield _told(stage, {"check": "stage", "ok": None, "why": f"vllm is not installed for {sys.executable}"})
        return
    limit = options.limit or LIMITS.get(stage, LIMIT_S)
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as scratch:
        words = [sys.executable, __file__, "--one", stage, "--policy", options.policy, "--scratch", scratch]
        words += ["--limit", str(limit), *(f"--{name}" for name in ("rehearse", "long") if getattr(options, name))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(words, start_new_session=True, **pipes) as child:  # type: ignore[call-overload]
            tail, late = _Tail(child.stderr), threading.Event()
            clock = threading.Timer(limit, lambda: (late.set(), _kill(child)))
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
            why = f"took more than {limit:g} s (--limit)" if late.is_set() else f"exit code {code}"
            row = {"check": "stage", "ok": False, "why": ": ".join(filter(None, (why, said)))}
            yield _told(stage, row | _logs(Path(scratch)))


def _logs(scratch: Path) -> Row:
    """The ends of the newest logs of what the stage had started."""
    logs = sorted(scratch.glob("*/log"), key=lambda log: log.stat().st_mtime)[-3:]
    ends = {log.parent.name: log.read_text("utf-8", "replace").splitlines()[-8:] for log in logs}
    return {"logs": {name: " | ".join(lines)[-900:] for name, lines in ends.items()}} if ends else {}


class _Tail:
    """The end of what a stage says on stderr, read as it comes."""

    def __init__(self, stream: Any) -> None:
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def _read(self, stream: Any) -> None:
        for line in stream:
            self._lines = [*self._lines[-24:], line.rstrip()]

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
    print(f"{stage:<9} {row['check']:<34} {word:<9} {figures}", flush=True)
    return row


def _short(value: Any) -> str:
    if isinstance(value, dict | list) and len(value) > 8:
        return f"({len(value)})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _one(options: argparse.Namespace) -> int:
    """A stage, in this process; shortly before its end it says where it is."""
    if options.one in LIMITS:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # they make their policies themselves
    rows = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no row, nor a part of one
    here, root = Path(__file__).parent, Path(__file__).parents[2]
    sys.path[:0] = map(str, (here, root / "scripts" / "bench", root / "tests" / "support"))
    faulthandler.dump_traceback_later(max(1.0, options.limit - 5.0))
    from _rows import Place
    from _stages import stage

    from overlap.process.process_tree import bind_to_parent

    bind_to_parent(os.getppid())  # else it would hold the device when that is killed
    place = Place(options.scratch, "cpu" if options.rehearse else "cuda", options.policy, options.long)
    for row in stage(options.one, place):
        print(json.dumps(row), file=rows, flush=True)
    return 0


def _devices() -> list[str]:
    """By the driver's tool, or by torch where that is missing."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        asked = "import torch; n = torch.cuda.device_count(); [print(torch.cuda.get_device_name(i)) for i in range(n)]"
        query = [sys.executable, "-c", asked]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=120, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in told.splitlines() if line.strip()]


def _machine() -> Row:
    shared = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "dev_shm_gib": round(shared / 2**30, 2),
        "scratch": tempfile.gettempdir(),
        "scratch_free_gib": round(shutil.disk_usage(tempfile.gettempdir()).free / 2**30, 1),
    }


def _packages() -> dict[str, str]:
    known = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[name] = importlib.metadata.version(name)
    return known


if __name__ == "__main__":
    raise SystemExit(main())
