"""What is said where a run has no such sample: what is near, and why it may not be there."""

from __future__ import annotations

from collections.abc import Iterable

from overlap.analysis.run_data import RunData
from overlap.errors import ConfigError
from overlap.view.sample_filter import SampleFilter
from overlap.view.source import group_rows


def what_is_missing(run: RunData, only: SampleFilter) -> ConfigError:
    """The error for the first of the choices in ``only`` that leaves no sample."""
    heads = [head.values for head in run.samples.heads()]
    if not heads:
        kept = run.config.get("run", {}).get("samples", "some")
        why = "has no samples yet; the first come with the first step" if run.live else "has no samples"
        return ConfigError("RUN", str(run.path), "keeps no samples (run.samples=none)" if kept == "none" else why)
    if only.split:
        heads = [head for head in heads if head["split"] == only.split]
        if not heads:
            flag = "--eval" if only.split == "heldout" else "--train"
            return ConfigError(
                flag, only.split, "has no kept samples; evaluations are made with run.eval_every above 0"
            )
    if only.problem:
        names = {head["prompt_id"] for head in heads} | {row["prompt_id"] for row in group_rows(run)}
        if only.problem not in names:
            return ConfigError("--problem", only.problem, f"is no problem of this run; {_near(only.problem, names)}")
        heads = [head for head in heads if head["prompt_id"] == only.problem]
        if not heads:
            return ConfigError(
                "--problem", only.problem, "has no kept samples; run.samples=all keeps those of all groups"
            )
    for flag, name in (("--step", "step"), ("--group", "group"), ("--sample", "sample")):
        wanted = getattr(only, name)
        if wanted is None:
            continue
        there = {head[name] for head in heads}
        if wanted not in there:
            return ConfigError(
                flag, wanted, f"has no kept samples{_of(only, name)}; there are {_numbers(there, wanted)}"
            )
        heads = [head for head in heads if head[name] == wanted]
    return ConfigError(
        "RUN", str(run.path), f"none of its {len(heads):,} samples are such; leave one of the choices out"
    )


def _of(only: SampleFilter, name: str) -> str:
    """In which step or group it is missing."""
    if name == "sample" and only.group is not None:
        return f" of group {only.group}"
    return f" of step {only.step}" if name != "step" and only.step is not None else ""


def _near(name: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    known = sorted(names)
    near = [other for other in known if name.lower() in other.lower()] or get_close_matches(name, known, 5, 0.5)
    return f"near it: {', '.join(near[:5])}" if near else f"for instance {', '.join(known[:5])}"


def _numbers(there: set[int], wanted: int) -> str:
    """All of them, or those next to what was wanted."""
    numbers = sorted(there)
    if len(numbers) > 1 and len(numbers) == numbers[-1] - numbers[0] + 1:
        return f"{numbers[0]} to {numbers[-1]}"
    near = sorted(sorted(numbers, key=lambda number: abs(number - wanted))[:8])
    return ", ".join(map(str, near)) + (f" and {len(numbers) - 8:,} others" if len(numbers) > 8 else "")
