"""The stages of ``check.py``: each yields rows, one for each check. The first five need no vLLM.

attention  variable length against softmax under a mask, and its time beside plain causal attention
learner    the steps of ZeRO 1 to 3 against the CPU's, the flash path, recomputing, offload
resume     a saved state under another ZeRO stage, against the step without a restart
ipc        weights through CUDA's memory handles to a stand-in for an engine, and the device's memory over many syncs
step       a policy of 1.5B at 18K tokens: tokens per second, where the time goes, memory against the plan
sync       weights from learner to engine in bfloat16 and float32, and adapters alone, on the same devices
nccl       the same, each on devices of its own
hybrid     three steps of the default recipe, engine and learner on the same devices, without and with staleness
memory     what the plan says of each phase against what the devices had
speed      tokens per second through the door against the bare engine
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from _rows import GIB, OVER, Place, Row

from overlap.config.load import load_config
from overlap.placement.devices import Devices, devices_here, free_memory
from overlap.placement.fit import planned_seats
from overlap.placement.memory import LEARNING, SAMPLING, TRANSFER, held
from overlap.placement.planned_run import PlannedRun
from overlap.placement.shapes import read_shape
from overlap.policy.resolve import resolve_policy
from overlap.record.metrics import read_steps

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "recipes" / "code_rl" / "configs"

GPU = "GPU 0"
MOMENTS: dict[str, Any] = {"cache_awake": SAMPLING, "states_left": LEARNING, "weights_sent": TRANSFER}
"""When the device is looked at, and the moment of the plan that it belongs to; ``states_left`` is after its summit."""


def stage(name: str, place: Place) -> Iterator[Row]:
    """Its rows."""
    if name in _STAGES:
        return _STAGES[name](place)
    rows: Iterator[Row] = import_module(f"_{name}").checks(place)
    return rows


def _sync(place: Place) -> Iterator[Row]:
    yield from _synced(place, "shm" if place.rehearses else "ipc")


def _nccl(place: Place) -> Iterator[Row]:
    if place.gpus > 1:
        yield from _synced(place, "nccl")
    else:
        why = "a CPU has no NCCL" if place.rehearses else "one device; engine and learner want one each"
        yield {"check": "nccl", "ok": None, "why": why}


def _synced(place: Place, backend: str) -> Iterator[Row]:
    ways = {"bfloat16": "model.dtype=bfloat16", "float32": "model.dtype=float32", "adapters": "learn.lora_rank=16"}
    for way in ("bfloat16",) if place.rehearses else ways:
        settings = [ways[way], "rollout.max_staleness=0", "run.eval_samples=0"]
        yield _trained(place, f"{backend}, {way}", "smoke.yaml", settings, shared=backend != "nccl")


def _hybrid(place: Place) -> Iterator[Row]:
    config = "smoke.yaml" if place.rehearses else "cpu_smollm2.yaml"
    settings = ["run.steps=3", "run.eval_samples=0"]
    for staleness in (0,) if place.rehearses else (0, 1):  # with 1, responses sleep with the engine
        more = [f"rollout.max_staleness={staleness}"]
        yield _trained(place, f"three steps of {config}, staleness {staleness}", config, [*settings, *more])


def _trained(place: Place, check: str, config: str, settings: list[str], *, shared: bool = True) -> Row:
    """A run of the command line; the medians of its steps after the first, which warms up. ``shared``: it sees one
    device, so engine and learner take turns there.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    env = os.environ | ({"CUDA_VISIBLE_DEVICES": visible} if shared and place.gpus > 1 else {})
    run = place.scratch / "".join(c if c.isalnum() else "-" for c in check)
    more = [f"run.device={place.device}", f"run.dir={run}", f"model.policy={place.policy}", *settings]
    words = [sys.executable, "-m", "overlap.cli", "train", "--config", str(CONFIGS / config), *more]
    began = time.monotonic()
    done = subprocess.run(words, env=env, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        return {"check": check, "ok": False, "why": " | ".join(done.stderr.splitlines()[-6:])[-900:]}
    rows = read_steps(run / "metrics.jsonl")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    last = rows[-1]
    return {
        "check": check,
        "ok": summary["exit"] == "finished",
        "parity_gap": max(row["rollout/parity_gap"] for row in rows),
        "sync_s": last["time/sync_s"],
        "parity_s": last["time/parity_s"],
        "step_s": last["time/step_s"],
        "exposed_reward_s": last["time/exposed_reward_s"],
        "reward_s": last["time/reward_s"],
        "decode_tokens_per_s": last["time/decode_tokens_per_s"],
        "whole_s": time.monotonic() - began,
        **{name: value for name, value in last.items() if name.startswith("memory/")},
    }


def _memory(place: Place) -> Iterator[Row]:
    """A run with everything asleep that can be; what was free in each moment against what the plan says is in use."""
    if place.rehearses:
        yield {"check": "plan against devices", "ok": None, "why": "a CPU's plan is in tests/e2e/test_memory.py"}
        return
    settings = ["rollout.max_staleness=0", "learn.offload=sleep", "run.steps=2"]
    settings.append("run.eval_samples=0")
    row = _trained(place, "a run with states asleep", "cpu_smollm2.yaml", settings)
    yield row
    if not row["ok"]:
        return
    cfg = load_config(CONFIGS / "cpu_smollm2.yaml", [*settings, f"model.policy={place.policy}", "run.device=cuda"])
    seats = planned_seats(cfg, Devices.gpus(1, devices_here("cuda").bytes), free_memory())
    plan = held(PlannedRun(cfg, read_shape(resolve_policy(place.policy))), seats)[GPU]
    there = seats.devices[0]
    for moment, phase in MOMENTS.items():
        planned, used = sum(plan[phase].values()), there - row[f"memory/{moment}_free_gib"] * GIB
        yield {
            "check": f"plan of {phase}, at {moment}", "ok": used <= planned * (1 + OVER),
            "planned_gib": planned / GIB, "used_gib": used / GIB, "planned_over_used": planned / used,
        }  # fmt: skip


def _speed(place: Place) -> Iterator[Row]:
    words = [sys.executable, str(ROOT / "scripts" / "bench" / "engine.py"), "--policy", place.policy, "--rounds", "3"]
    if place.rehearses:
        words += ["--groups", "2", "--samples", "4", "--response-tokens", "16"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    found = re.search(r"(.*)\nmedian ratio .* ([0-9.]+) \(bar", done.stdout)
    if found is None:
        yield {"check": "door against bare engine", "ok": False, "why": done.stderr[-900:]}
        return
    ok = place.rehearses or not done.returncode  # a rehearsal is too short to be measured
    yield {"check": "door against bare engine", "ok": ok, "ratio": float(found[2]), "last_round": found[1]}


_STAGES: dict[str, Callable[[Place], Iterator[Row]]] = {
    "sync": _sync,
    "nccl": _nccl,
    "hybrid": _hybrid,
    "memory": _memory,
    "speed": _speed,
}
