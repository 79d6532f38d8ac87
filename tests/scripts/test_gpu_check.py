"""The GPU checks themselves, on stand-ins: what is told of a stage that dies or hangs, and how memory is judged; and
each stage that needs no vLLM, rehearsed on the CPU.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from gpu_stages import dies, two_rows
from places import ROOT
from wide import wide

STAGES = re.findall(r"^([a-z]+) {2,}", (ROOT / "scripts/gpu/_stages.py").read_text().split('"""')[1], re.MULTILINE)
STAGE = """
import json, os, signal, subprocess, sys
stage = sys.argv[sys.argv.index("--one") + 1]
print("a library speaks", flush=True)
print(json.dumps({"check": "first", "ok": stage != "sync", "figure": 1.5}), flush=True)
if stage == "hybrid":
    sys.exit("no room")
if stage == "speed":
    os.kill(os.getpid(), signal.SIGSEGV)
if stage == "memory":
    subprocess.run([sys.executable, "-c", "import signal; signal.pause()"])
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run stages of a stand-in; returns the exit code and the report."""
    monkeypatch.syspath_prepend(ROOT / "scripts" / "gpu")
    module, out = importlib.import_module("check"), tmp_path / "out.json"
    stage = tmp_path / "stage.py"
    stage.write_text(STAGE)
    monkeypatch.setattr(module, "__file__", str(stage))

    def run(
        *words: str, devices: tuple[str, ...] = ("a GPU",), missing: tuple[str, ...] = ()
    ) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(module, "_devices", lambda: list(devices))
        monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None if name in missing else name)
        monkeypatch.setattr(sys, "argv", ["check.py", "--out", str(out), *words])
        code = module.main()
        return code, json.loads(out.read_text()) if out.exists() else {}

    return run


def test_each_stage_is_a_success_with_its_figures_or_a_failure_of_its_own(check) -> None:
    code, report = check("sync", "hybrid", "speed", "learner")
    assert (code, report["devices"]) == (1, ["a GPU"])
    assert "torch" in report["packages"]
    stages = report["stages"]
    assert stages["learner"] == [{"check": "first", "ok": True, "figure": 1.5}]
    assert [row["ok"] for row in stages["sync"]] == [False]
    for stage, why in (("hybrid", "exit code 1: no room"), ("speed", "exit code -11")):  # the latter is not late
        first, second = stages[stage]
        assert (first["ok"], second["check"], second["ok"]) == (True, "stage", False)
        assert second["why"].startswith(why)


def test_a_stage_that_hangs_is_ended_with_all_that_it_has_started(check) -> None:
    code, report = check("memory", "--limit", "2")
    assert code == 1
    assert report["stages"]["memory"][-1]["why"].startswith("took more than 2 s")


def test_stages_that_want_an_engine_are_left_out_by_name_where_vllm_is_missing(check) -> None:
    code, report = check("sync", "learner", missing=("vllm",))
    (row,) = report["stages"]["sync"]
    assert (code, row["ok"]) == (0, None)
    assert "vllm is not installed" in row["why"]
    assert report["stages"]["learner"] == [{"check": "first", "ok": True, "figure": 1.5}]


@pytest.mark.parametrize("how", [wide(signal.SIGTERM), signal.SIGKILL])
def test_a_check_that_is_ended_leaves_no_stage_that_holds_the_device(tmp_path: Path, how: signal.Signals) -> None:
    out = tmp_path / "figures.json"
    words = [sys.executable, "scripts/gpu/check.py", "attention", "--rehearse", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}  # a killed one removes nothing
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as check:
        assert check.stdout is not None
        check.stdout.readline()  # the device
        check.stdout.readline()  # a row: its stage is bound to it
        (stage,) = psutil.Process(check.pid).children()
        check.send_signal(how)
        stage.wait(30)
        assert check.wait(30) in (143, -signal.SIGKILL)


def test_where_there_is_no_gpu_nothing_is_checked_but_in_a_rehearsal(check) -> None:
    assert check("learner", devices=()) == (2, {})
    code, report = check("learner", "--rehearse", devices=())
    assert (code, report["devices"]) == (0, ["cpu (rehearsal)"])


def test_the_stages_that_are_explained_are_those_that_there_are(check) -> None:
    assert tuple(STAGES) == importlib.import_module("check").STAGES


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts" / "gpu")
    return importlib.import_module("_rows")


def test_rows_of_a_process_of_its_own_come_one_by_one_and_its_death_is_one(rows) -> None:
    assert list(rows.apart(two_rows, "x")) == [{"check": "x", "ok": True}, {"check": "x again", "ok": True}]
    first, last = rows.apart(dies, "x")
    assert first["ok"]
    assert last == {"check": "dies x", "ok": False, "why": "exit code 3"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--python no-such-python attention", "--python 'no-such-python': there is no such command"),
        ("--python", "--python '': there is no such command"),
        ("attention --python python3", "--python NAME and --carry DIR stand before stages"),
        ("--rehearse --carry wheels", "--python NAME and --carry DIR stand before stages"),
    ],
)
def test_words_that_the_command_cannot_use_are_refused_before_anything_is_set_up(words: str, message: str) -> None:
    bash = ["bash", "scripts/gpu/check.sh", *words.split()]
    done = subprocess.run(bash, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.wide
@pytest.mark.e2e
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_holds_in_a_rehearsal(stage: str, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    words = ["bash", "scripts/gpu/check.sh", "--python", sys.executable, stage, "--rehearse", "--limit", "900"]
    done = subprocess.run([*words, "--out", out], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    rows = json.loads(out.read_text())["stages"][stage]
    assert rows
    assert all(row["ok"] or (row["ok"] is None and "CPU" in row["why"]) for row in rows)
