"""The last three lines of a run: what happened, what to look at, the next command."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overlap.core.errors import count_of, one_line
from overlap.record.progress import change_texts, duration
from overlap.record.run_files import RunFile
from overlap.record.run_summary import RunExit

_SHOWN = 160
"""Longest reason of an end, characters."""


def closing_lines(summary: Mapping[str, Any], *, steps: int, checkpoint: str = "") -> list[str]:
    """Return the three lines for a run's ``summary``. ``steps`` is how many it was to take, ``checkpoint`` the name of
    the newest checkpoint, "" where there is none.
    """
    run = _shown(summary["run_dir"])
    rows = [
        ("outcome", _outcome(summary, steps)),
        ("look at", _look_at(summary, run)),
        ("next", _next(summary, run, checkpoint)),
    ]
    return [f"{name:<7}  {text}" for name, text in rows]


def _outcome(summary: Mapping[str, Any], steps: int) -> str:
    """The end of the run, and the measured change of the policy."""
    taken, end = int(summary["steps"]), str(summary["exit"])
    how = one_line(end, _SHOWN)
    of = count_of(taken, "step") if taken >= steps else f"{taken} of {count_of(steps, 'step')}"
    return f"{how}, {of} in {duration(summary['seconds'])}: {_measured(summary)}"


def _measured(summary: Mapping[str, Any]) -> str:
    """The change on held-out problems with its interval; without evaluations, that of the reward in training."""
    binary, found = True, summary.get("pass_at_1") or {}
    if reward := summary.get("heldout_reward"):
        binary, found = False, reward
    before, after, change = (found.get(when) or {} for when in ("before", "after", "change"))
    if not _finite(change, "value", "low", "high") or not _finite(before, "value") or not _finite(after, "value"):
        reward = summary["reward"]
        if not _finite(reward, "first", "last"):
            return "no reward was measured"
        return f"reward in training {reward['first']:.3f} -> {reward['last']:.3f}, not measured on held-out problems"
    name, spec = ("pass@1", ".1%") if binary else ("mean reward", ".3f")
    moved, between = change_texts(change, binary=binary)
    text = f"held-out {name} {before['value']:{spec}} -> {after['value']:{spec}} ({moved}, 95% CI {between})"
    return text + (", no clear change: the interval includes 0" if change["low"] <= 0 <= change["high"] else "")


def _look_at(summary: Mapping[str, Any], run: str) -> str:
    """The first warning; without one the files that tell most."""
    if warnings := summary.get("warnings"):
        more = f" (and {len(warnings) - 1} more above)" if len(warnings) > 1 else ""
        return f"warning: {one_line(str(warnings[0]), 2 * _SHOWN)}{more}"
    lost = " ".join(map(str, summary.get("not_written") or ()))
    made = RunFile.REPORT.of(Path(summary["run_dir"])).exists()
    files = {RunFile.REPORT: "curves, samples, settings"} if made else {RunFile.PICTURE: "curves"}
    files |= {RunFile.TRAJECTORIES: "samples with verdicts", RunFile.LOG: "log"}
    return ", ".join(f"{run}/{file} ({what})" for file, what in files.items() if str(file) not in lost)


def _next(summary: Mapping[str, Any], run: str, checkpoint: str) -> str:
    """The command that goes on from here, then the commands that show the run."""
    policy = summary.get("policy") or {}
    shown = f"overlap show {run} | overlap report {run}"
    if not RunExit.of(summary["exit"]).complete:
        if checkpoint:
            return f"overlap train --resume run.dir={run} (goes on from {checkpoint}) | {shown}"
        if path := policy.get("path"):
            begin = f"overlap train --config {run}/{RunFile.CONFIG} model.policy={_shown(path)} run.dir=NEW"
            return f"{begin} (no checkpoint: run.save_every makes them) | {shown}"
        return f"{shown} (nothing to resume from: run.save_every makes checkpoints)"
    if path := policy.get("path"):
        return f"{shown} | overlap rollout --config {run}/{RunFile.CONFIG} model.policy={_shown(path)}"
    return f"overlap export {run} (the policy after {checkpoint}) | {shown}" if checkpoint else shown


def _shown(path: str) -> str:
    """A path as a shell reads it, relative where it is below the working directory."""
    here, whole = Path.cwd(), Path(path)
    return shlex.quote(str(whole.relative_to(here) if whole.is_relative_to(here) and whole != here else whole))


def _finite(figures: Mapping[str, Any], *names: str) -> bool:
    return all(figures.get(name) is not None and math.isfinite(figures[name]) for name in names)
