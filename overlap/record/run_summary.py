"""The figures of a whole run as types: what ``overlap.train`` returns and ``summary.json`` holds."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class RewardFigures(TypedDict):
    """Mean rewards of the first and the last ``window`` steps, their difference and their quotient."""

    window: int
    first: float
    last: float
    gain: float
    ratio: float


class ChangeFigures(TypedDict):
    """A mean over problems, or its change, with the bounds of its 95 % confidence interval, and of how many it is."""

    value: float
    low: float
    high: float
    problems: int


class PassAtK(ChangeFigures):
    """pass@k."""

    k: int


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
    pass_at_k: NotRequired[PassAtK]
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


class PromptFigures(TypedDict):
    """Prompts of each split, and how many are left out as solved where ``data.drop_solved`` is set."""

    train: int
    heldout: int
    solved: NotRequired[int]


class LeftOutFigures(TypedDict):
    """Rows of the data that are left out for one reason: how many, and where and why the first is."""

    count: int
    first: str
    detail: str


class SplitFigures(TypedDict):
    """Rows of a split, and by reason the rows that are left out."""

    rows: int
    left_out: dict[str, LeftOutFigures]


class HardwareFigures(TypedDict):
    """The machine."""

    cpu: str
    cores: int
    """Cores that this process may use."""
    memory_gib: float
    gpus: list[str]
    kernel: str


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
    reward: RewardFigures
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
    hardware: HardwareFigures
    run_dir: str
    prompts: PromptFigures
    data: dict[str, SplitFigures]
    """By split."""
    policy: PolicyFigures
    restarts: list[str]
    """A line for each time that the run went back to a checkpoint."""
    engine_outages_s: list[float]
    not_written: list[str]
    """Files that the run could not write, with the reason."""
    callbacks: dict[str, CallbackCost]
    """Cost of each callback."""
