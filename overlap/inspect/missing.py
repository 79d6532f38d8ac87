"""The error where a run has no such sample: what is near, and why it may not be there."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from overlap.core.errors import ConfigError
from overlap.inspect.run_data import RunData
from overlap.inspect.sample_filter import SampleFilter
from overlap.inspect.source import group_rows


def what_is_missing(run: RunData, only: SampleFilter) -> ConfigError:
    """The error for the first of the choices in ``only`` that leaves no sample."""
    heads = [head.values for head in run.samples.heads()]
    if not heads:
        none = run.config.get("run", {}).get("samples") == "none"
        why = "has no samples yet; the first come with the first step" if run.live else "has no samples"
        return ConfigError("RUN", str(run.path), "keeps no samples (run.samples=none)" if none else why)
    if only.problem and only.problem not in {row["prompt_id"] for row in (*heads, *group_rows(run))}:
        near = _near(only.problem, sorted({head["prompt_id"] for head in heads}))
        return ConfigError("--problem", only.problem, f"is no problem of this run; {near}")
    flags = {"split": "--eval", "prompt_id": "--problem", "step": "--step", "group": "--group", "sample": "--sample"}
    wanted: dict[str, Any] = {"split": only.split, "prompt_id": only.problem}
    wanted |= {"step": only.step, "group": only.group, "sample": only.sample}
    chosen: list[str] = []
    for name, flag in flags.items():
        if wanted[name] in ("", None):
            continue
        left = [head for head in heads if head[name] == wanted[name]]
        if not left:
            there = "" if name in ("split", "prompt_id") else f"; there are {_numbers(heads, name, wanted[name])}"
            return ConfigError(
                flag, wanted[name], f"has no kept samples{' of ' if chosen else ''}{', '.join(chosen)}{there}"
            )
        heads = left
        chosen = [f"{name} {wanted[name]}"] if name in ("step", "group") else chosen
    return ConfigError(
        "RUN", str(run.path), f"none of its {len(heads):,} samples are such; leave one of the choices out"
    )


def _near(name: str, known: list[str]) -> str:
    near = [other for other in known if name.lower() in other.lower()] or get_close_matches(name, known, 5, 0.5)
    return f"near it: {', '.join(near[:5])}" if near else f"for instance {', '.join(known[:5])}"


def _numbers(heads: list[dict[str, Any]], name: str, wanted: int) -> str:
    """All of them, or those next to what was wanted."""
    numbers = sorted({head[name] for head in heads})
    if len(numbers) > 1 and len(numbers) == numbers[-1] - numbers[0] + 1:
        return f"{numbers[0]} to {numbers[-1]}"
    near = sorted(sorted(numbers, key=lambda number: abs(number - wanted))[:8])
    return ", ".join(map(str, near)) + (f" and {len(numbers) - 8:,} others" if len(numbers) > 8 else "")
