"""The learner alone on a device, against the same steps on the CPU. See ``_stages.py``.

The policy is a random one, wide enough for the device's kernels; batches are seeded. Two steps are taken, and what they
led to is compared by the log-probs of a probe, which every weight has a part in.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap.config import Config, LearnConfig, ModelConfig, RolloutConfig, RunConfig
from overlap.learner import ProcessLearner
from overlap.policy import make_tiny_policy

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from _inputs import random_batch

VOCAB, LAYERS, HIDDEN = 8192, 8, 512
PROBE = tuple((7 * i * i + 3 * i + 1) % VOCAB for i in range(256))
STEPS = 2
BOUNDS = {"float32": 2e-3, "bfloat16": 0.15}
"""Largest and mean difference of the probe's log-probs that are the rounding of other kernels, nats; wrong positions
make 0.3 in the mean, a mask that leaks 0.8.
"""
MIB = 2**20
Row = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """Log-probs of the probe after the steps, loss and norm of each, MiB of the device at most; ``freed_gib`` by
    its sleep, where it has one (None: not known).
    """

    probe: list[float]
    losses: list[float]
    norms: list[float]
    peak_mib: int | None
    freed_gib: float | None


def checks(scratch: Path, device: str) -> Iterator[Row]:
    """One row after another."""
    policy = make_tiny_policy(scratch / "policy", vocab=VOCAB, layers=LAYERS, hidden=HIDDEN)
    slow = _take(policy, scratch / "cpu", _config("cpu"))
    for zero in (1, 2, 3):
        found = _take(policy, scratch / f"zero{zero}", _config(device, zero_stage=zero))
        yield _compared(f"ZeRO {zero}, float32", found, slow, "float32")
    slow = _take(policy, scratch / "cpu16", _config("cpu", dtype="bfloat16"))
    flash = _take(policy, scratch / "flash", _config(device, dtype="bfloat16"))
    yield _compared("bfloat16, shared prompts", flash, slow, "bfloat16")
    again = _take(policy, scratch / "again", _config(device, dtype="bfloat16", checkpointing="always"))
    row = _compared("checkpointing", again, flash, "bfloat16")
    if again.peak_mib and flash.peak_mib:
        row["ok"] = row["ok"] and again.peak_mib < flash.peak_mib
    yield row | {"without_mib": flash.peak_mib}
    asleep = _take(policy, scratch / "asleep", _config(device, dtype="bfloat16", offload="sleep"))
    row = _compared("states asleep between steps", asleep, flash, "bfloat16")
    if device == "cuda":
        row["ok"] = asleep.probe == flash.probe and bool(asleep.freed_gib and asleep.freed_gib > 0)
    yield row | {"freed_gib": asleep.freed_gib}


def _config(device: str, *, dtype: str = "float32", **learn: Any) -> Config:
    """``offload`` is for a learner that shares its device with an engine, though none is started here."""
    backend = "ipc" if device == "cuda" and "offload" in learn else "auto"
    return Config(
        model=ModelConfig(dtype=dtype, prompt_tokens=512, response_tokens=1024),  # type: ignore[arg-type]
        rollout=RolloutConfig(temperature=0.8, max_staleness=0, weight_backend=backend),  # type: ignore[arg-type]
        learn=LearnConfig(lr=1e-4, micro_batch_tokens=4096, **learn),
        run=RunConfig(device=device),  # type: ignore[arg-type]
    )


def _compared(check: str, found: Found, wanted: Found, dtype: str) -> Row:
    gaps = [abs(a - b) for a, b in zip(found.probe, wanted.probe, strict=True)]
    gap = max(gaps) if dtype == "float32" else sum(gaps) / len(gaps)
    loss = max(abs(a - b) for a, b in zip(found.losses, wanted.losses, strict=True))
    norm = max(abs(a / b - 1) for a, b in zip(found.norms, wanted.norms, strict=True))
    ok = gap <= BOUNDS[dtype] and norm <= (0.01 if dtype == "float32" else 0.1)
    return {"check": check, "ok": ok, "gap": gap, "loss_gap": loss, "norm_gap": norm, "peak_mib": found.peak_mib}


def _take(policy: Path, scratch: Path, cfg: Config) -> Found:
    scratch.mkdir()
    with _Peak(cfg.run.device) as peak:
        probe, reports, freed = asyncio.run(_steps(policy, scratch, cfg))
    metrics = [report.metrics for report in reports]
    return Found(probe, [m["loss"] for m in metrics], [m["grad_norm"] for m in metrics], peak.mib, freed)


async def _steps(policy: Path, scratch: Path, cfg: Config) -> tuple[list[float], list[Any], float | None]:
    learner = ProcessLearner(cfg, policy, scratch, log=scratch / "log", total_updates=STEPS)
    try:
        await learner.start()
        reports, freed = [], None
        for version in range(STEPS):
            reports.append(await learner.step(random_batch(version, 4, 4, (64, 512), (32, 1024), VOCAB)))
            before = await learner.free("awake")
            await learner.sleep()
            after = await learner.free("asleep")
            freed = after - before if after is not None and before is not None else None
        return await learner.logprobs(PROBE), reports, freed
    finally:
        await learner.close()


class _Peak:
    """MiB of the first device in use at most while it is open; it must belong to nobody else."""

    def __init__(self, device: str) -> None:
        self.mib: int | None = None
        self._ends = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True) if device == "cuda" else None

    def __enter__(self) -> _Peak:
        if self._watch is not None:
            self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        if self._watch is not None:
            self._watch.join(10.0)

    def _look(self) -> None:
        query = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._ends.wait(0.1):
            try:
                used = int(subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout)
            except (OSError, subprocess.SubprocessError, ValueError):
                return
            self.mib = max(self.mib or 0, used)
