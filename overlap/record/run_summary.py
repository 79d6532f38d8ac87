"""The figures of a whole run as types: what ``overlap.train`` returns and ``summary.json`` holds."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class RewardFigures(TypedDict):
    """Mean rewards of the first and the last ``window`` steps, their difference and their quotient."""

    window: int
    first: float
    last: float
    gain: float
    ratio: float


class PolicyFigures(TypedDict, total=False):
    """Where the trained policy is; or ``failure``, why it is nowhere, with the newest checkpoint. Empty where the run
    has taken no step.
    """

    path: str
    """A directory that ``transformers`` loads."""
    version: int
    failure: str
    checkpoint: str | None


class RunSummary(TypedDict):
    """The figures of a run. NaN stands for what could not be measured."""

    exit: str
    """"finished", "drained", "all prompts solved", "stopped", "interrupted", or "error: " and what it was."""
    steps: int
    """Steps taken, before a resumption too."""
    seconds: float
    """Wall time."""
    reward: RewardFigures
    pass_at_1: NotRequired[dict[str, Any]]
    """Evaluations on held-out problems whose rewards are 0 or 1: before, after, change, best, and during."""
    heldout_reward: NotRequired[dict[str, Any]]
    """The same of the mean reward, in the place of ``pass_at_1``, where rewards have other values."""
    timing: dict[str, float]
    """Medians over the steps, s, and shares."""
    loop_lag_ms: dict[str, float]
    warnings: list[str]
    """Why nothing was learned, if nothing was."""
    requests: dict[str, dict[str, int]]
    """Of episodes, by parameter: how many requests were "refused" for it, and in how many it was "ignored"."""
    totals: dict[str, int]
    """Samples, tokens, groups kept and dropped."""
    versions: dict[str, str]
    hardware: dict[str, Any]
    run_dir: str
    prompts: dict[str, Any]
    """Prompts per split, and how many are left out as solved."""
    data: dict[str, Any]
    """Per split: rows, and those left out by reason."""
    policy: PolicyFigures
    restarts: list[str]
    """A line for each time that the run went back to a checkpoint."""
    engine_outages_s: list[float]
    not_written: list[str]
    """Files that the run could not write, with the reason."""
