"""Feeds a real tracker with the rows of a run directory, as a run does, in the environment of its package; then reads
back what the package has stored.

    python tracker_program.py NAME RUN     prints {"rows": [...], "runs": 1, ...} as JSON
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finished_steps import scored

from overlap.config.load import load_config
from overlap.core import Batch
from overlap.hooks.callback import CallbackRun, Evaluated, RunEnded, RunStarted, StepTaken
from overlap.hooks.checks import named_trackers
from overlap.hooks.trackers import Trackers
from overlap.record.json_lines import read_json_lines
from overlap.record.rundir import WriteFailures

UNREAD = "TRACKER_UNREAD"
"""Set where there is nothing to read back."""


def feed(name: str, folder: Path, rows: list[dict[str, Any]], step: int = 0) -> list[str]:
    """Have the tracker of a run in ``folder`` take ``rows``; returns what was lost."""
    cfg = load_config(None, [f"run.trackers=[{name}]", f"run.dir={folder}"])
    failures, made = WriteFailures(), named_trackers(cfg)
    folder.mkdir(exist_ok=True)
    trackers = Trackers(made, CallbackRun(folder, cfg, None, lambda prompt: "ask"), failures)
    trackers.put(RunStarted(step, resumed=step > 0))
    for row in rows:
        evaluated = {name: value for name, value in row.items() if name.startswith("eval/") and value is not None}
        trackers.put(Evaluated(row["step"], {}, evaluated, ()))
        trackers.put(StepTaken(row["step"], row, Batch(row["step"], 0, ())))
    last = rows[-1]["step"]
    trackers.put(Evaluated(last, {}, {}, [scored(1, 0)]))
    trackers.put(RunEnded(last, "finished", {"steps": last}))
    trackers.close()
    return list(failures)


def records(path: Path) -> Iterator[bytes]:
    """The records of a file in the log format of LevelDB, which W&B and SwanLab write: a header of 7 bytes, then blocks
    of 32 KiB of parts (checksum of 4 bytes, length of 2, kind of 1: whole, first, middle, last).
    """
    data, at, parts = path.read_bytes(), 7, list[bytes]()
    while at + 7 <= len(data):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):
            yield b"".join(parts)
            parts = []


def stored_wandb(folder: Path) -> dict[str, Any]:
    """What is in the files of offline runs."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # as at the exit of a program: its process writes what is left
    rows, ids, configs, tables = list[dict[str, Any]](), set[str](), 0, 0
    for path in sorted(folder.rglob("*.wandb")):
        for data in records(path):
            record = Record.FromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                configs += len(record.run.config.update) > 0
            if record.HasField("history"):
                row = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
                tables += any(key.startswith("samples/") for key in row)
                numbers = {key: value for key, value in row.items() if not key.startswith(("_", "samples/"))}
                rows.append({"step": record.history.step.num, **numbers})
    return {"rows": rows, "runs": len(ids), "samples": tables, "config": configs > 0}


def stored_trackio(folder: Path) -> dict[str, Any]:
    """What is in trackio's database."""
    from trackio.sqlite_storage import SQLiteStorage

    (project,) = SQLiteStorage.get_projects()
    runs = SQLiteStorage.get_runs(project)
    found = [row for run in runs for row in SQLiteStorage.get_logs(project, run)]
    texts = [row for row in found if "samples/heldout" in row]
    rows = [{k: v for k, v in row.items() if k != "timestamp"} for row in found if row not in texts]
    config = SQLiteStorage.get_run_config(project, runs[0])
    return {"rows": rows, "runs": len(runs), "samples": len(texts), "config": bool(config and "learn" in config)}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    rows = read_json_lines(folder.parent / "rows.jsonl")
    if UNREAD in os.environ:
        found: dict[str, Any] = {"lost": feed(name, folder, rows)}
    else:
        at = [row["step"] for row in rows].index(3)
        lost = feed(name, folder, rows[:at]) + feed(name, folder, rows[at:], step=2)  # as a resumed run
        found = {**globals()[f"stored_{name}"](folder), "lost": lost}
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    sys.stdout.flush()
    os._exit(0)  # whatever threads reading it back has left


if __name__ == "__main__":
    main()
