"""Groups become rows, rows become micro-batches: who computes what, decided the same way on every rank.

A *row* is one prompt followed by one or more of its responses. All responses of a row see the prompt, none sees
another, and each starts at the same position, so a shared prompt is computed once (the mask and the positions are
made in ``overlap.learner.tensors``). The last token of a response is predicted but never read, so it takes no place
in the row.

No tensors here: plain arrays travel from the driver to the ranks, and the split is a pure function of them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

from overlap.config.learn import Truncated
from overlap.core import Batch, Group, Packed, Trajectory
from overlap.core.errors import EngineError

T = TypeVar("T")
M = TypeVar("M")
KeptAs = tuple[str, int]
"""Request and number of the branch."""
SMALL = 1 << 18
"""Pairs of one response (or prompt), up to which one masked product beats a causal kernel on a CPU in bfloat16."""
MASK = 1 << 24
"""Entries of the largest mask that is ever made."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response of T tokens: ``tokens`` (int32) and the engine's ``logprobs`` (float32) are [T].

    All of them are in the loss but those whose ``mask`` [T] is 0 (empty: none is), which others said, and the last one
    of a response that ``bootstraps``: it was cut off, and the critic's value of the state before that token replaces
    what would have come. The last token is a sampled one. Where a critic makes the advantages, ``advantage`` is the
    reward. ``fresh`` is the first token that was sampled by the version which is trained, T when there is none:
    versions never go back, so all tokens from there on were.
    """

    tokens: array[int]
    logprobs: array[float]
    advantage: float
    fresh: int = 0
    bootstraps: bool = False
    mask: bytes = b""
    prompt: array[int] | None = None
    """Prompt that it was sampled behind, where that is not its group's prompt."""
    kept_as: KeptAs | None = None
    """Name under which the ranks return its log-probs; None: they are not needed."""

    @property
    def counted(self) -> int:
        """Tokens in the loss."""
        return (sum(self.mask) if self.mask else len(self.tokens)) - self.bootstraps


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """A prompt [P tokens, at least one] and what was sampled for it, as far as that is in the loss; as a row of a
    micro-batch, the responses that share the prompt.
    """

    prompt: array[int]
    responses: tuple[Response, ...]

    @property
    def length(self) -> int:
        """Tokens that the policy reads."""
        return len(self.prompt) + sum(len(r.tokens) - 1 for r in self.responses)

    @property
    def counted(self) -> int:
        """Response tokens in the loss."""
        return sum(r.counted for r in self.responses)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of one forward-backward pass. ``counts`` is False for one that only keeps a rank in step with the others.

    Rows are packed into one sequence without padding. They are padded to the longest, which lets attention be plain and
    causal, for a model whose attention knows no rows (``padded``), and where none is shared and all are short.
    """

    rows: tuple[PromptGroup, ...]
    counts: bool = True
    padded: bool = False

    @property
    def packed(self) -> bool:
        if self.padded:
            return False
        if any(len(row.responses) > 1 for row in self.rows):
            return True
        return len(self.rows) > 1 and not fits_mask([row.length for row in self.rows], [])

    @property
    def tokens(self) -> int:
        """Tokens that the policy reads, padding included."""
        lengths = [row.length for row in self.rows]
        return sum(lengths) if self.packed else len(lengths) * max(lengths)


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Micro-batches of one optimizer step: ``ranks[r]`` are those of rank r, equally many for each.

    ``counted`` is the number of response tokens on all ranks together: the normaliser of the loss.
    """

    ranks: tuple[tuple[MicroBatch, ...], ...]
    counted: int

    @property
    def padding(self) -> float:
        """Share of the computed tokens that are padding."""
        micros = [m for rank in self.ranks for m in rank if m.counts]
        used = sum(row.length for m in micros for row in m.rows)
        return 1.0 - used / max(1, sum(m.tokens for m in micros))


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """Layout of a batch: ``hidden`` is the model's width, ``padded`` is for one whose attention knows no rows."""

    updates: int
    ranks: int
    micro_batch_tokens: int
    hidden: int
    padded: bool = False


def flatten(batch: Batch, *, truncated: Truncated = "mask", kept: Collection[int] = ()) -> tuple[PromptGroup, ...]:
    """The responses that are in the loss, group by group; groups without any are left out.

    Out of the loss are samples that could not be scored (reward None), empty responses and, with ``truncated="mask"``,
    samples that did not end by themselves. Whether one did is what the engine says of it: one that ended at the limit
    has the same length. ``kept``: groups whose log-probs the ranks are to return. Raises EngineError for a response
    whose log-probs are not one finite number per token.
    """
    groups = (_flatten_group(group, batch.version, truncated, group.id in kept) for group in batch.groups)
    return tuple(group for group in groups if group.responses)


def _flatten_group(group: Group, version: int, truncated: Truncated, kept: bool) -> PromptGroup:
    prompt, responses = Packed("i", group.prompt.token_ids), list[Response]()
    for scored, advantage in zip(group.samples, group.advantages, strict=True):
        trajectory = scored.trajectory
        if scored.reward is None or (trajectory.truncated and truncated == "mask"):
            continue
        bootstraps = trajectory.truncated and truncated == "bootstrap"
        earned = 0.0 if bootstraps else advantage  # what an unfinished answer scores says nothing of its end
        for number, branch in enumerate(trajectory.branches):
            own = None if branch.prompt_ids == prompt else Packed("i", branch.prompt_ids).array
            kept_as = (scored.id, number) if kept else None
            response = Response(
                *_sampled(branch), earned, _fresh(branch, version), bootstraps, branch.mask, own, kept_as
            )
            if response.counted > 0:
                responses.append(response)
    return PromptGroup(prompt.array, tuple(responses))


def _sampled(branch: Trajectory) -> tuple[array[int], array[float]]:
    tokens, logprobs = Packed("i", branch.token_ids), Packed("f", branch.logprobs)
    if len(tokens) != len(logprobs):
        raise EngineError(f"sample {branch.id} has {len(tokens)} tokens, {len(logprobs)} log-probs")
    if not math.isfinite(sum(logprobs.array)):  # it was sampled, so the engine cannot have given it no chance
        place, value = next((t, x) for t, x in enumerate(logprobs) if not math.isfinite(x))
        raise EngineError(f"sample {branch.id}: the engine's log-prob of token {place} is {value}")
    return tokens.array, logprobs.array


def _fresh(trajectory: Trajectory, version: int) -> int:
    starts = (span.start for span in trajectory.spans if span.version == version)
    return min(starts, default=len(trajectory.token_ids))


def mini_batches(groups: Sequence[PromptGroup], cfg: SplitConfig) -> tuple[MiniBatch, ...]:
    """Mini-batches of whole groups, in order, as equal in number of groups as can be; no more than there are groups."""
    count = min(cfg.updates, len(groups))
    cuts = [round(i * len(groups) / count) for i in range(count + 1)] if count else []
    return tuple(_mini_batch(groups[a:b], cfg) for a, b in pairwise(cuts))


def _mini_batch(groups: Sequence[PromptGroup], cfg: SplitConfig) -> MiniBatch:
    rows_of = [[row for group in groups for row in make_rows(group, limit)] for limit in _row_limits(groups, cfg)]
    cheapest = min((_balance(rows, cfg) for rows in rows_of), key=lambda dealt: max(work for work, _ in dealt))
    shares = [micro_batches(share, cfg.micro_batch_tokens, padded=cfg.padded) for _, share in cheapest]
    rows = [row for _, share in cheapest for row in share]
    most = max(len(share) for share in shares)
    idle = MicroBatch((min(rows, key=lambda row: row.length),), counts=False)
    ranks = tuple((*share, *[idle] * (most - len(share))) for share in shares)
    return MiniBatch(ranks, sum(row.counted for row in rows))


def _row_limits(groups: Sequence[PromptGroup], cfg: SplitConfig) -> list[int]:
    """Tokens of a row at most, from the most sharing to none.

    On one rank the most is the best, as a shared prompt is never more work. On several, long rows may leave ranks idle.
    """
    if cfg.padded:
        return [0]
    if cfg.ranks == 1:
        return [cfg.micro_batch_tokens]
    part = sum(row.length for group in groups for row in make_rows(group, cfg.micro_batch_tokens)) // cfg.ranks
    return [cfg.micro_batch_tokens, *[n for n in (part, part // 2) if n < cfg.micro_batch_tokens], 0]


def row_cost(row: PromptGroup, hidden: int) -> float:
    """Work of a row, in tokens: a layer of width h costs about 24 h^2 operations per token and 4 h per pair of tokens.

    A causal kernel computes the lower triangle, a kernel with a mask the whole rectangle, whatever the mask hides::

        shared    the prompt once; each response its prompt and itself   P(P + 1) / 2 + sum over r of P r + r(r + 1) / 2
        masked    as shared, padded to the longest, under one mask       prompts P P, responses R (P + R), each

    Shared is never more than responses that each have a copy of their prompt. Masked is, once responses are about as
    long as prompts, but takes two calls for a whole micro-batch: it is for what is so small that calls cost more.
    """
    prompt, lengths = len(row.prompt), [len(r.tokens) for r in row.responses]
    if fits_mask([prompt], lengths):
        pairs = prompt * prompt + sum(n * (prompt + n) for n in lengths)
    else:
        pairs = shared_pairs(prompt, lengths)
    return row.length + pairs / (6 * hidden)


def shared_pairs(prompt: int, responses: Sequence[int]) -> int:
    """Pairs of responses behind one prompt."""
    return prompt * (prompt + 1) // 2 + sum(prompt * n + n * (n + 1) // 2 for n in responses)


def fits_mask(prompts: Sequence[int], responses: Sequence[int]) -> bool:
    """True when all of a micro-batch is small enough for one mask; lengths are of tokens that are read."""
    longest_p, longest_r = max(prompts), max(responses, default=0)
    seen = longest_p + longest_r
    return max(longest_p, longest_r) * seen <= SMALL and len(responses) * longest_r * seen <= MASK


def make_rows(group: PromptGroup, tokens: int) -> list[PromptGroup]:
    """Responses behind the same prompt, shortest first, as many to a row as ``tokens`` hold, at least one."""
    shared: dict[bytes, tuple[array[int], list[Response]]] = {}
    for response in group.responses:
        prompt = group.prompt if response.prompt is None else response.prompt
        shared.setdefault(prompt.tobytes(), (prompt, []))[1].append(response)
    rows = list[PromptGroup]()
    for prompt, responses in shared.values():
        made = partial(PromptGroup, prompt)
        rows += _filled(sorted(responses, key=lambda r: len(r.tokens)), made, lambda row: row.length, tokens)
    return rows


def micro_batches(rows: Iterable[PromptGroup], tokens: int, *, padded: bool = False) -> list[MicroBatch]:
    """Rows of similar length together, longest first, at most ``tokens`` each (or a single row that is longer)."""
    made = partial(MicroBatch, padded=padded)
    return _filled(sorted(rows, key=lambda row: -row.length), made, lambda micro: micro.tokens, tokens)


def _filled(items: Iterable[T], made: Callable[[tuple[T, ...]], M], size: Callable[[M], int], most: int) -> list[M]:
    """Return all that is ``made`` of the items, in order, each of as many as stay within ``most``, at least one."""
    found: list[M] = []
    open_: tuple[T, ...] = ()
    for item in items:
        if open_ and size(made((*open_, item))) > most:
            found.append(made(open_))
            open_ = ()
        open_ = (*open_, item)
    return [*found, made(open_)] if open_ else found


def _balance(rows: Iterable[PromptGroup], cfg: SplitConfig) -> list[tuple[float, list[PromptGroup]]]:
    """Work and rows of each rank: the costliest row first, to the rank with the least work so far."""
    shares: list[tuple[float, list[PromptGroup]]] = [(0.0, []) for _ in range(cfg.ranks)]
    for row in sorted(rows, key=lambda row: -row_cost(row, cfg.hidden)):
        rank = min(range(cfg.ranks), key=lambda rank: shares[rank][0])
        work, own = shares[rank]
        own.append(row)
        shares[rank] = work + row_cost(row, cfg.hidden), own
    return shares
