"""The real packages, offline, each in an environment of its own: they have the rows of metrics.jsonl, and a resumed run
goes on in the same curve. ``scripts/clients.sh`` installs them and runs this.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from environment_runs import interpreter
from made_run import made_run
from places import ROOT, SUPPORT

from overlap.record.json_lines import read_json_lines


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Everything offline, and below ``folder``."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "TRACKIO"))},
        "PYTHONPATH": f"{ROOT}:{SUPPORT}",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "home"),
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(folder / "trackio"),
        **more,
    }


def program(name: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    (folder / "home").mkdir(exist_ok=True)
    words = [interpreter(name), str(SUPPORT / "tracker_program.py"), name, str(folder / "run")]
    here = environment(folder, **more)
    return subprocess.run(words, cwd=folder, env=here, capture_output=True, text=True, timeout=115)


@pytest.mark.promise("trackers")
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_the_rows_there_are_those_of_metrics_jsonl(name: str, tmp_path: Path) -> None:
    made = made_run(tmp_path / "made", steps=4, groups=2, samples=2)
    (tmp_path / "rows.jsonl").write_bytes((made / "metrics.jsonl").read_bytes())
    done = program(name, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["lost"] == []
    assert found["runs"] == 1
    assert found["config"]
    assert found["samples"] >= 1
    wanted: dict[int, dict[str, Any]] = {}
    for row in read_json_lines(made / "metrics.jsonl"):  # services may join rows of one step
        wanted.setdefault(row["step"], {}).update({k: v for k, v in row.items() if v is not None})
    there: dict[int, dict[str, Any]] = {}
    for row in found["rows"]:
        there.setdefault(row["step"], {}).update(row)
    assert list(there) == list(wanted)
    for step, row in wanted.items():
        assert there[step] == pytest.approx(row, rel=1e-6)


def test_without_a_login_the_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    done = program("wandb", tmp_path, TRACKER_UNREAD="1", WANDB_MODE="online")
    assert done.returncode == 1
    assert "ConfigError: run.trackers='wandb': no login: use `wandb login`" in done.stderr


@pytest.mark.wide
def test_a_network_that_is_down_costs_a_run_its_deadline_at_the_end_and_is_told(tmp_path: Path) -> None:
    rows = [{"step": step, "reward/mean": 0.5} for step in (1, 2, 3, 4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40}
    done = program("wandb", tmp_path, TRACKER_UNREAD="1", **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    lost = json.loads(done.stdout.splitlines()[-1])["lost"]
    assert [line.startswith("tracker wandb (") for line in lost] == [True]
