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

from overlap.config.load import load_config
from overlap.record.json_lines import read_json_lines
from overlap.record.rundir import RunDir
from overlap.trackers.kinds import check_trackers
from overlap.trackers.run_trackers import Trackers

UNREAD = "TRACKER_UNREAD"
"""Set where there is nothing to read back."""


def feed(name: str, folder: Path, rows: list[dict[str, Any]], step: int = 0) -> list[str]:
    """Have the tracker of a run in ``folder`` take ``rows``; returns what was lost."""
    cfg = load_config(None, [f"run.trackers=[{name}]", f"run.dir={folder}"])
    check_trackers(cfg)
    run = RunDir.reopen(folder) if (folder / "config.yaml").exists() else RunDir.create(str(folder), cfg.to_dict())
    scratch = folder.with_name(f"{folder.name}-scratch")  # as a run's, it goes with all that packages leave
    scratch.mkdir(exist_ok=True)
    trackers = Trackers.open(cfg, run, step, scratch)
    trackers.check_started()
    for row in rows:
        trackers.write({key: float("nan") if value is None else value for key, value in row.items()})
    samples = [{"problem": "p", "prompt": "ask", "answer": "say", "reward": 1.0, "verdict": "AC", "failure": ""}]
    trackers._put("samples", "heldout", rows[-1]["step"], samples)
    trackers.end("finished", {"exit": "finished", "reward": {"first": 0.25, "last": 0.5}})
    run.close()
    return list(run.failures)


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
    from wandb.proto.wandb_internal_pb2 import Record

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
                if not any(key.startswith("samples/") for key in row):
                    rows.append({key: value for key, value in row.items() if not key.startswith("_")})
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
    return {"rows": rows, "runs": len(runs), "samples": len(texts), "config": bool(config and "learn.lr" in config)}


def stored_mlflow(folder: Path) -> dict[str, Any]:
    """What the tracking store has."""
    from mlflow import MlflowClient

    client = MlflowClient()
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    rows: dict[int, dict[str, Any]] = {}
    for run in found:
        for key in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, key):
                rows.setdefault(metric.step, {"step": metric.step})[key] = metric.value
    files = [file.path for run in found for file in client.list_artifacts(run.info.run_id)]
    config = all(run.data.params.get("learn.lr") for run in found)
    ended = {run.info.status for run in found}
    assert ended == {"FINISHED"}, ended
    return {
        "rows": [rows[step] for step in sorted(rows)],
        "runs": len(found),
        "samples": sum("samples" in file for file in files),
        "config": config,
    }


def stored_swanlab(folder: Path) -> dict[str, Any]:
    """What is in the files of offline runs."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record

    rows, ids, texts, configs = dict[int, dict[str, Any]](), set[str](), 0, 0
    for path in sorted(folder.rglob("run-*.swanlab")):
        configs += "lr" in (path.parent / "files" / "config.yaml").read_text()
        for data in records(path):
            record = Record.FromString(data)
            if record.HasField("start"):
                ids.add(record.start.id)
            elif record.HasField("scalar"):
                found = record.scalar
                rows.setdefault(found.step, {"step": found.step})[found.key] = found.value.number
            elif record.HasField("media"):
                texts += 1
    return {"rows": list(rows.values()), "runs": len(ids), "samples": texts, "config": configs > 0}


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
