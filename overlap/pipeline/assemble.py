"""Scored samples become groups, and groups become the groups of a step. Pure bookkeeping: nothing here waits.

A group has its advantages, or the reason why nothing is learned from it.
Every dispatched sample yields exactly one result; ``submitted == running + scored + failed`` is asserted at each one.
Steps take groups in order of admission, so that the same samples give the same batches whatever order they came in.

Dynamic sampling (DAPO, Yu et al. 2025, section 3.2), bounded: the first ``rollout.refill_groups`` groups of a step that
teach nothing are replaced by further ones, the others take their place in it. A dropped group may hand its lease on
while fewer than that many have, so that every step still takes ``groups_per_step`` groups that hold one (``window``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from overlap.config.fields import Config
from overlap.config.learn import LearnConfig
from overlap.core import Group, Prompt, Scored, equal_rewards, reaches
from overlap.core.errors import EmptyBatchesError
from overlap.pipeline.advantage import EQUAL_REWARDS, complete, estimate, estimator, none_teaches

MAX_EMPTY_STEPS = 3  # in a row; one empty step is bad luck, three are a task that cannot be learned


@dataclass(slots=True)
class _Open:
    """A group with samples underway: ``left`` are their numbers."""

    prompt: Prompt
    left: set[int]
    samples: list[Scored] = field(default_factory=list)


class Assembler:
    """Collects samples into groups and tells which groups make up the next step."""

    def __init__(self, cfg: Config, first: int = 0) -> None:
        """``first``: number of the first group that will be admitted."""
        self._cfg = cfg
        self._want, self._refill = cfg.rollout.groups_per_step, cfg.rollout.refill_groups
        self._open: dict[int, _Open] = {}
        self._done: dict[int, Group] = {}
        self._replaced: set[int] = set()
        self._next = first
        self.running = self.submitted = self.scored = self.failed = 0
        """Samples without a result, and all that were sent out, scored, or could not be scored."""

    @property
    def finished(self) -> tuple[Scored, ...]:
        """Results that no step has taken yet, in no order."""
        waiting = [s for group in self._done.values() for s in group.samples]
        return (*waiting, *(s for open_ in self._open.values() for s in open_.samples))

    @property
    def missing(self) -> int:
        """Groups to admit before the next step can be complete, if none of those underway is dropped."""
        dropped = sum(bool(g.dropped) for g in self._done.values())
        return max(0, self._want + min(self._refill, dropped) - len(self._done) - len(self._open))

    def expect(self, group: int, prompt: Prompt) -> None:
        """Group ``group`` was admitted: its G samples will come."""
        g = self._cfg.rollout.samples_per_group
        self._open[group] = _Open(prompt, set(range(g)))
        self.running += g
        self.submitted += g

    def add(self, scored: Scored) -> Group | None:
        """Take one result; returns its group when this was the last sample of it."""
        request = scored.trajectory.request
        open_ = self._open.get(request.group)
        if open_ is None or request.sample not in open_.left:
            raise AssertionError(f"sample {scored.id} has a second result, or was never submitted")
        open_.left.remove(request.sample)
        open_.samples.append(scored)
        self.running -= 1
        if scored.reward is None:
            self.failed += 1
        else:
            self.scored += 1
        assert self.submitted == self.running + self.scored + self.failed, "a sample was lost"
        if open_.left:
            return None
        del self._open[request.group]
        group = make_group(request.group, open_.prompt, open_.samples, self._cfg.learn, self._cfg.model.response_tokens)
        self._done[group.id] = group
        return group

    def replaceable(self) -> list[int]:
        """Dropped groups that may hand on their lease now; each is returned once."""
        found = []
        for group in self._done.values():
            if len(self._replaced) >= self._refill:
                break
            if group.dropped and group.id not in self._replaced:
                self._replaced.add(group.id)
                found.append(group.id)
        return found

    def next_step(self) -> tuple[Group, ...] | None:
        """The groups of the next step, in order of admission, or None while samples are missing."""
        taken: list[Group] = []
        dropped = 0
        while len(taken) < self._want + min(self._refill, dropped):
            group = self._done.get(self._next + len(taken))
            if group is None:
                return None
            taken.append(group)
            dropped += bool(group.dropped)
        for group in taken:
            del self._done[group.id]
            self._replaced.discard(group.id)
        self._next += len(taken)
        return complete(tuple(taken), self._cfg.learn)


def empty_batches(groups: Sequence[Group]) -> EmptyBatchesError:
    """The error for steps without anything to learn from, with the likely cause."""
    rewards = [r for g in groups for r in g.rewards]
    truncated = all(s.trajectory.truncated for g in groups for s in g.samples if s.reward is not None)
    return EmptyBatchesError(
        f"{MAX_EMPTY_STEPS} steps in a row had nothing to learn from "
        f"({len(groups)} groups dropped: {', '.join(sorted({g.dropped for g in groups}))}); "
        f"{likely_cause(rewards, truncated=truncated, equal=equal_rewards(rewards))}"
    )


def likely_cause(rewards: Sequence[float], *, truncated: bool, equal: bool) -> str:
    """Explain why steps had nothing to learn from. ``rewards``: of all scored samples, or their means; ``truncated``:
    all responses were; ``equal``: all samples had one reward.
    """
    if not rewards:
        return "no sample could be scored: see the failures in trajectories.jsonl"
    if truncated:
        return "every response was cut off before its end: use more model.response_tokens, or rollout.stop"
    if equal:
        hard = reaches(0.0, rewards[0])
        which = "hard for the policy, or the reward never pays" if hard else "easy"
        return f"every reward was {rewards[0]:g}: the problems are too {which}; filter them first (overlap filter)"
    return "the samples of each group had equal rewards: use more samples per group, or filter the problems"


TOO_FEW_SCORED = "too_few_scored"
ALL_TRUNCATED = "all_truncated"
DROP_REASONS = (EQUAL_REWARDS, ALL_TRUNCATED, TOO_FEW_SCORED)
MOST_PUNISHED = -0.5
"""Amount that is added to the reward of a response at the limit."""


def make_group(group: int, prompt: Prompt, samples: Sequence[Scored], learn: LearnConfig, limit: int) -> Group:
    """Order the samples, compute their advantages and decide whether the group teaches anything.

    ``limit``: tokens of the longest response. Truncated samples count in the mean and the deviation even when
    ``learn.truncated=mask`` keeps them out of the loss: a prompt on which the policy never stops is not an easy one. A
    group whose task rewards are equal teaches nothing whatever the punishments: divided by a deviation that they alone
    make, they would weigh as much as a failure (DAPO filters by accuracy, too).
    """
    ordered = tuple(sorted(samples, key=lambda s: s.trajectory.request.sample))
    rewards, punished = [s.reward for s in ordered], tuple[float, ...]()
    advantages = plain = estimate(rewards, learn)
    if learn.overlong_tokens:
        punished = tuple(overlong_punishment(s.trajectory.sampled, limit, learn.overlong_tokens) for s in ordered)
        advantages = estimate([None if r is None else r + p for r, p in zip(rewards, punished, strict=True)], learn)
    teaches_none = estimator(learn.advantage).group is not None and none_teaches(plain)
    return Group(group, prompt, ordered, advantages, _drop_reason(ordered, learn, teaches_none), punished)


def overlong_punishment(length: int, limit: int, interval: int) -> float:
    """0 for ``length`` tokens up to ``limit - interval``, then falling evenly to ``MOST_PUNISHED`` at ``limit``.

    DAPO's soft overlong punishment (Yu et al. 2025, section 3.4, eq. 13; verl ``reward_manager/dapo.py``), halved:
    DAPO's rewards are -1 and 1, those of a task here 0 to 1, so the advantages are DAPO's.
    """
    over = length - (limit - interval)
    return MOST_PUNISHED * min(1.0, over / interval) if over > 0 else 0.0


def _drop_reason(samples: Sequence[Scored], learn: LearnConfig, teaches_none: bool) -> str:
    """``teaches_none``: without punishments, all advantages are 0."""
    scored = [s for s in samples if s.reward is not None]
    if not scored or (teaches_none and len(scored) == 1):
        return TOO_FEW_SCORED
    if all(s.trajectory.truncated for s in scored) and (teaches_none or not any(_in_loss(s, learn) for s in scored)):
        return ALL_TRUNCATED
    return EQUAL_REWARDS if teaches_none else ""


def _in_loss(truncated: Scored, learn: LearnConfig) -> bool:
    """True when a truncated sample is learned from; the last token of each of its branches is not if it bootstraps."""
    match learn.truncated:
        case "mask":
            return False
        case "zero":
            return True
        case "bootstrap":
            return any(branch.trained > 1 for branch in truncated.trajectory.branches)
        case _:
            assert_never(learn.truncated)
