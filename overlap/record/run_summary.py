"""The figures of a whole run as types: what ``overlap.train`` returns and ``summary.json`` holds; the ends of a run."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NotRequired, TypedDict


class RunExit(StrEnum):
    """An end of a run, by the words that ``exit`` of its summary begins with, and what follows from it. A detail may
    follow the words ("error: the engine died").
    """

    in_order: bool
    """True when the run did what it was asked to, and has not failed."""
    measured: bool
    """True when the evaluation of its end was made."""
    complete: bool
    """True when nothing is left to be trained."""

    FINISHED = "finished", True, True, True
    ALL_SOLVED = "all prompts solved", True, True, True
    DRAINED = "drained", True, True, False
    BY_CALLBACK = "stopped by callback", True, True, False
    STOPPED = "stopped", True, False, False
    INTERRUPTED = "interrupted", False, False, False
    ERROR = "error", False, False, False

    def __new__(cls, words: str, in_order: bool, measured: bool, complete: bool) -> RunExit:
        member = str.__new__(cls, words)
        member._value_ = words
        member.in_order, member.measured, member.complete = in_order, measured, complete
        return member

    @classmethod
    def of(cls, text: str) -> RunExit:
        """The member that ``text`` begins with, the longest. Raises ValueError where none is."""
        found = [member for member in cls if text.startswith(member)]
        if not found:
            raise ValueError(f"{text!r} is no end of a run; ends begin with {', '.join(cls)}")
        return max(found, key=len)


class ChangeFigures(TypedDict):
    """A mean over problems, or its change, with the bounds of its 95 % confidence interval, and of how many it is."""

    value: float
    low: float
    high: float
    problems: int


class EvaluationFigures(ChangeFigures):
    """An evaluation of one policy on the held-out problems."""

    measure: str
    """"pass@1", or "mean reward"."""
    samples: int
    failed: int
    """Samples that could not be judged."""
    truncated_share: float
    tokens_mean: float
    temperature: float | None
    seconds: float
    pass_at_k: NotRequired[dict[str, float]]
    """The figures of a change, and "k"."""
    step: NotRequired[int]
    """The step after which it was made; missing before the first."""


class Evaluations(TypedDict):
    """The evaluations of a run. None where one was not made, or the run ended too early for it."""

    before: EvaluationFigures | None
    after: EvaluationFigures | None
    change: ChangeFigures | None
    best: EvaluationFigures | None
    """Figures of the policy in ``policy-best/``."""
    during: list[EvaluationFigures]


class PolicyFigures(TypedDict, total=False):
    """Place of the trained policy; or ``failure``, why it was not saved, with the newest checkpoint. Empty where the
    run has taken no step.
    """

    path: str
    """A directory that ``transformers`` loads."""
    version: int
    instead: str
    """Reason why the policy is on another disk than the run directory."""
    failure: str
    checkpoint: str | None


class CallbackCost(TypedDict):
    """Calls of a callback, and the seconds in them."""

    calls: int
    seconds: float


class RunSummary(TypedDict):
    """The figures of a run. NaN where a figure could not be measured."""

    exit: str
    """The end, by the words of ``RunExit``, with a detail behind some: "finished", "error: the engine died"."""
    steps: int
    """Steps taken, before a resumption too."""
    seconds: float
    """Wall time."""
    reward: dict[str, float]
    """Means of the "first" and the "last" ``window`` steps, their difference "gain" and their quotient "ratio"."""
    pass_at_1: NotRequired[Evaluations]
    """On held-out problems whose rewards are 0 or 1."""
    heldout_reward: NotRequired[Evaluations]
    """The same of the mean reward, in the place of ``pass_at_1``, where rewards have other values."""
    timing: dict[str, float]
    """Medians over the steps, s, and shares."""
    warnings: list[str]
    """Warnings from the run's figures, each with a way out (``docs/look.md``)."""
    requests: dict[str, dict[str, int]]
    """Requests of episodes, by parameter: number that was "refused" for it, and number in which it was "ignored"."""
    totals: dict[str, int]
    """Samples, tokens, groups kept and dropped."""
    versions: dict[str, str]
    hardware: dict[str, Any]
    """The machine: "cpu", "cores" that this process may use, "memory_gib", the list "gpus", "kernel"."""
    run_dir: str
    prompts: dict[str, int]
    """Prompts of "train" and "heldout", and how many are left out as "solved" where ``data.drop_solved`` is set."""
    data: dict[str, dict[str, Any]]
    """By split, its "rows", and by reason those "left_out": their count, and where and why the first is."""
    policy: PolicyFigures
    restarts: list[str]
    """A line for each time that the run went back to a checkpoint."""
    engine_outages_s: list[float]
    not_written: list[str]
    """Files that the run could not write, with the reason."""
    callbacks: dict[str, CallbackCost]
    """Cost of each callback."""
