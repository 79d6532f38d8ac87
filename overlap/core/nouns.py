"""The data types of overlap.

Shapes are a small grammar, used everywhere: ``P`` prompts (groups) per step, ``G`` samples per group, ``T`` tokens.
The way of the data; each noun is made in one place, never changed after, and the next one holds the former:

    Prompt ─▶ Request ─▶ Trajectory ─▶ Scored ─▶ Group ─▶ Batch ─▶ StepReport ─▶ WeightUpdate

All times are seconds of ``time.monotonic()`` (one clock for all processes of a machine).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from overlap.core.chat_turns import Used
from overlap.core.token_array import Packed

if TYPE_CHECKING:
    from sandbox.core.nouns import Judgement, Program
    from sandbox.core.problem import Problem

Finish = Literal["stop", "length", "abort"]
Part = Literal["weights", "cache"]
"""The part of an engine that wakes on its own: its weights, or all the rest, which is its KV cache."""
Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question to the policy. ``data`` belongs to the task; no other code reads it.

    ``prefill`` is text that the chat template already put at the start of the assistant's turn (for instance an open
    code fence); the full answer is ``prefill + trajectory.text``.
    """

    id: str
    token_ids: Sequence[int]
    prefill: str = ""
    data: Any = None
    place: str = ""
    """Place of its row in the task's data ("path:line"), for messages about the row."""
    notes: tuple[str, ...] = ()
    """Notes on the row for a person: each a few words that are the same for all rows of a kind. The plan counts them,
    and ``overlap check-data`` prints them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", Packed("i", self.token_ids))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row of a task's data that gives no prompt; it takes the place of the prompt among the prompts.

    Rows are counted by ``reason``, a few words that are the same for all rows of a kind; the first one's ``place`` and
    ``detail`` are shown.
    """

    place: str
    reason: str
    detail: str = ""
    by_choice: bool = False
    """True when nothing is wrong with the row: the row or the configuration says that it is not to be used here."""

    def __str__(self) -> str:
        return f"{self.place}: {self.detail}" if self.detail else self.place


@dataclass(frozen=True, slots=True)
class Probe:
    """Programs whose verdict is known before a policy answers: ``overlap check-data`` judges them.

    ``reference``: the data says that they solve the problem; there may be several, and one that is accepted will do.
    ``empty`` and ``example``: an answer that does nothing, or prints the first example, and should not be accepted.
    """

    kind: Literal["reference", "empty", "example"]
    problem: Problem
    programs: tuple[Program, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One rollout to make: sample ``sample`` (0..G-1) of group ``group`` (admission number, from 0)."""

    group: int
    sample: int
    prompt: Prompt
    temperature: float | None = None
    """Sampling temperature, 0 for the likeliest tokens; None: ``rollout.temperature``, as for all training samples."""
    top_p: float = 1.0
    """Tokens are drawn from the likeliest ones that have this share of the probability; 1, as for all training samples:
    from all. Only answers that no learner trains on may have another value.
    """
    turn: int = 0
    """Turn of its episode, from 1, where ``prompt`` is all that the policy sees for this turn; 0: the whole rollout."""
    max_tokens: int | None = None
    """Tokens of the response at most; None: as many as ``model.response_tokens`` and the context allow."""
    stop: tuple[str, ...] = ()
    """Strings that end this response, besides ``rollout.stop``."""

    @property
    def id(self) -> str:
        return f"g{self.group}s{self.sample}" + (f"t{self.turn}" if self.turn else "")

    @property
    def place(self) -> tuple[int, int]:
        """Group and sample: the order of requests."""
        return self.group, self.sample


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens ``start <= t < end`` of a response were sampled by policy version ``version``."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A finished rollout. ``token_ids`` and ``logprobs`` are [T]: the response only, stop token included if sampled.

    ``logprobs`` are natural logs under the distribution that was really sampled from (at the sampling temperature).
    Both may be given as any sequence and are held as :class:`Packed`: a response of 16K tokens takes 128 KiB.

    An episode of several turns is one, too: its response is all that came behind its first prompt, and ``mask`` [T] is
    0 for tokens of tools or users (log-prob 0, in no span); ``text`` is its answer. Turns that are not on the way to
    the answer are in ``forks``, trajectories of the same request. Each sampled token has mask 1 in one of them.
    """

    request: Request
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    text: str
    finish: Finish
    spans: tuple[VersionSpan, ...]
    started_s: float
    finished_s: float
    prompt_ids: Sequence[int] = ()
    """Token ids in front of the response, [P]; by default the request's prompt."""
    mask: bytes = b""
    """1 for each token that was sampled and is trained here, else 0; by default all ones."""
    turns: int = 1
    """Answers of the policy on this branch, with the answers that an earlier branch trains. ``used.turns`` counts each
    answer of all branches of an episode once: metrics, trace and ``trajectories.jsonl`` call that number turns."""
    forks: tuple[Trajectory, ...] = ()
    failure: str = ""
    """Reason why it cannot be scored, where that is known before: the code that rolled it out has crashed."""
    cached_tokens: int = 0
    """Number of the tokens in front of the response that the engine had in its cache."""
    used: Used | None = None
    """Counts of an episode of turns; its forks have none of their own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", Packed("i", self.token_ids))
        object.__setattr__(self, "logprobs", Packed("f", self.logprobs))
        object.__setattr__(self, "prompt_ids", Packed("i", self.prompt_ids or self.request.prompt.token_ids))

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def branches(self) -> tuple[Trajectory, ...]:
        """The trajectory and its forks."""
        return self, *self.forks

    @property
    def trained(self) -> int:
        """Tokens that the policy sampled on this branch and not on an earlier one."""
        return sum(self.mask) if self.mask else len(self.token_ids)

    @property
    def sampled(self) -> int:
        """Tokens that the policy sampled, those of forks too."""
        return self.trained + sum(fork.trained for fork in self.forks)

    @property
    def truncated(self) -> bool:
        """True when the response ran out of tokens (or was cut off) before it ended."""
        return self.finish != "stop"

    @property
    def version_min(self) -> int:
        """Oldest policy version that sampled a token of it."""
        return min((span.version for branch in self.branches for span in branch.spans), default=0)


@dataclass(frozen=True, slots=True)
class Scored:
    """A trajectory with its reward, or ``reward=None`` and the reason why *we* could not score it.

    ``queued_s``, ``started_s``, ``finished_s`` are the times at which verification was asked for, began and ended.
    """

    trajectory: Trajectory
    reward: float | None
    judgement: Judgement | None = None
    failure: str = ""
    queued_s: float = 0.0
    started_s: float = 0.0
    finished_s: float = 0.0
    program_sha256: str = ""
    """First 16 hex digits of the digest of the program that the sandbox was given: equal programs have the same. ""
    where there was none.
    """

    @property
    def id(self) -> str:
        return self.trajectory.id


@dataclass(frozen=True, slots=True)
class Group:
    """All G samples of one prompt. ``advantages`` is [G]: the rewards, where it is the learner's critic that makes
    advantages of them. ``dropped`` is "" or the reason why nothing is learned.

    ``punishments`` [G] were added to the rewards before they became advantages; empty: nothing was.
    """

    id: int
    prompt: Prompt
    samples: tuple[Scored, ...]
    advantages: tuple[float, ...]
    dropped: str = ""
    punishments: tuple[float, ...] = ()

    @property
    def rewards(self) -> tuple[float, ...]:
        """The task's rewards of the samples that could be scored."""
        return tuple(s.reward for s in self.samples if s.reward is not None)


@dataclass(frozen=True, slots=True)
class Batch:
    """Input of one learner step: the kept groups, ordered by id. ``step`` counts from 1.

    ``version`` is the learner's policy version before the step.
    """

    step: int
    version: int
    groups: tuple[Group, ...]
    dropped: tuple[Group, ...] = ()

    @property
    def samples(self) -> tuple[Scored, ...]:
        return tuple(s for g in self.groups for s in g.samples)

    @property
    def all_samples(self) -> tuple[Scored, ...]:
        """Samples of the kept groups, then those of the dropped groups."""
        return tuple(s for g in (*self.groups, *self.dropped) for s in g.samples)

    @property
    def staleness(self) -> tuple[int, ...]:
        """Age in versions of each sample, by its oldest token."""
        return tuple(self.version - s.trajectory.version_min for s in self.samples if s.trajectory.spans)

    def too_old(self, max_staleness: int) -> str:
        """Name the first sample whose age is not in 0..``max_staleness`` versions; "" where there is none."""
        for scored in self.samples:
            age = self.version - scored.trajectory.version_min
            if scored.trajectory.spans and not 0 <= age <= max_staleness:
                bound = f"rollout.max_staleness={max_staleness}"
                return f"sample {scored.id} is {age} versions old at step {self.step}, {bound}"
        return ""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The learner's report of a step: the version it produced, seconds it took, and named scalars.

    ``logprobs``: by request id ("g17s0"), of the samples that are kept for people (``kept_groups``), the learner's
    log-probs under the weights *before* the step, [T] for each branch. They are natural logs at the sampling
    temperature, like the engine's in ``Trajectory.logprobs``. 0 for tokens of tools or users; NaN for a last token that
    is not in the loss (``learn.truncated=bootstrap``). Samples that were not learned from are left out.
    """

    step: int
    version: int
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    logprobs: Mapping[str, tuple[Packed[float], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """A set of weights ready to be loaded: what the transfer backend's receiving side needs to find them.

    Weights that go through a buffer smaller than themselves come in ``chunks``: the next one is asked for when the last
    is loaded, and each call begins anew. One pass at a time.
    """

    version: int
    backend: str
    info: Mapping[str, Any]
    chunks: Callable[[], AsyncGenerator[Mapping[str, Any], None]] | None = None


class NodeFigures(NamedTuple):
    """One node since the last report: programs ``judged`` and the seconds that they ran, and jobs that were ``lost``
    with it and sent elsewhere. ``workers``: programs judged in parallel, 0 where the node is gone.
    """

    node: str
    workers: int = 0
    tier: str = ""
    judged: int = 0
    run_s: float = 0.0
    lost: int = 0

    def busy_share(self, seconds: float) -> float:
        """Share of its workers' time over ``seconds`` in which they ran programs; 0 where the node is gone."""
        return self.run_s / (self.workers * seconds) if self.workers and seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """Every node that is in the cluster or did anything within the last ``seconds``."""

    seconds: float
    nodes: tuple[NodeFigures, ...]
