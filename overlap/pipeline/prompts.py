"""The order in which prompts are admitted: seeded, and addressable by position so that a run can be resumed.

Prompts that the policy solves are left out of later epochs (ScaleRL, Khatri et al. 2025: no positive resampling).

    groups of a learned step ──▶ note ──▶ solved ──▶ the order of each epoch that begins ``behind`` groups later

When an epoch's order is drawn depends on who was fast; what it is drawn from must not. So of all that is known then,
only the groups count that are learned from by then in any case: ``behind`` is more than can be on their way.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from overlap.config.fields import Config
from overlap.core import Group, Prompt, reaches
from overlap.core.errors import ConfigError


def groups_behind(cfg: Config) -> int:
    """Distance in numbers: at a group's admission, all groups whose number is smaller by this are learned from.

    Leases bound the steps on their way (``window``), and a step has ``groups_per_step`` groups with a lease and at most
    ``refill_groups`` that handed theirs on.
    """
    return (cfg.rollout.max_staleness + 1) * (cfg.rollout.groups_per_step + cfg.rollout.refill_groups)


class Solved:
    """Which prompts are solved, and since which group."""

    def __init__(self, bound: float, behind: int, known: Mapping[str, int] | None = None, learned: int = 0) -> None:
        """A prompt is solved by a group whose mean reward is ``bound`` or more. ``known`` is what ``groups`` was when
        ``learned`` groups were learned from.
        """
        self.bound, self._behind = bound, behind
        self._groups, self._learned = dict(known or {}), learned

    @property
    def groups(self) -> dict[str, int]:
        """By prompt, the first group that solved it."""
        return dict(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def note(self, groups: Iterable[Group]) -> None:
        """These were learned from, or dropped from their step."""
        for group in groups:
            self._learned = max(self._learned, group.id + 1)
            if solves(group, self.bound):
                self._groups.setdefault(group.prompt.id, group.id)

    def before(self, group: int) -> frozenset[str]:
        """The prompts that an epoch which begins with ``group`` leaves out."""
        assert self._learned > group - self._behind, f"group {group} was admitted before its lease was free"
        return frozenset(prompt for prompt, by in self._groups.items() if by <= group - self._behind)


def solves(group: Group, bound: float) -> bool:
    """True when the mean of the rewards, as the task gave them, is ``bound`` or more. One alone says nothing."""
    rewards = group.rewards
    return len(rewards) > 1 and reaches(math.fsum(rewards) / len(rewards), bound)


class PromptStream(Iterator[Prompt]):
    """Every prompt once per epoch, each epoch in its own seeded order. ``position`` counts prompts handed out.

    Without end; with ``solved``, an epoch leaves out what that says, and ``tell`` gets a line for each; there is an end
    where every prompt would be left out (``ended``).
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        seed: int,
        position: int = 0,
        solved: Solved | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if not prompts:
            raise ConfigError("data.train", "", "has no prompts; check the file and model.prompt_tokens")
        ids = [p.id for p in prompts]
        if len(set(ids)) != len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise ConfigError("data.train", twice, "is the id of two prompts; make the ids unique")
        self._prompts, self._seed, self._first = tuple(prompts), seed, position
        self.position = position
        self.solved, self._tell = solved, tell
        self.ended = False
        """True when a prompt was asked for and there was none."""
        self._order: list[int] = []
        self._epoch = -1
        self._starts = [0]
        """Position at which each epoch begins, up to the end of the last one that has begun; only with ``solved``."""

    @classmethod
    def of(
        cls,
        cfg: Config,
        prompts: Sequence[Prompt],
        position: int = 0,
        known: Mapping[str, int] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> PromptStream:
        """The stream of a run by ``cfg`` of which ``position`` groups are learned from; ``known`` is what these
        solved.
        """
        bound = cfg.data.drop_solved
        solved = Solved(bound, groups_behind(cfg), known, position) if bound else None
        return cls(prompts, cfg.run.seed, position, solved, tell)

    @property
    def known(self) -> dict[str, int]:
        """Prompts that epochs to come leave out, and the group that solved each."""
        return self.solved.groups if self.solved is not None else {}

    @property
    def figures(self) -> dict[str, int]:
        """{"solved": how many}; nothing where solved prompts are not left out."""
        return {"solved": len(self.solved)} if self.solved is not None else {}

    def note(self, groups: Iterable[Group]) -> None:
        """A step took these groups, and what it learned from them serves in the engine."""
        if self.solved is not None:
            self.solved.note(groups)

    def peek(self) -> Prompt:
        """The next prompt, without handing it out; where none is left, any one."""
        return self._next() or self._prompts[0]

    def at(self, position: int) -> Prompt:
        """The prompt of any position, which is the number of its group; admits nothing. Raises LookupError where every
        prompt is left out.
        """
        epoch, start = self._epoch_of(position)
        if epoch != self._epoch:
            order = list(range(len(self._prompts)))
            random.Random(f"prompts/{self._seed}/{epoch}").shuffle(order)
            out = self._left_out(start)
            self._order = [i for i in order if self._prompts[i].id not in out]
            self._epoch = epoch
        return self._prompts[self._order[position - start]]

    def _epoch_of(self, position: int) -> tuple[int, int]:
        """Number of the epoch that has this position, and where it begins."""
        if self.solved is None:
            epoch = position // len(self._prompts)
            return epoch, epoch * len(self._prompts)
        while position >= (start := self._starts[-1]):
            out = self._left_out(start)
            left = sum(prompt.id not in out for prompt in self._prompts)
            if not left:
                raise LookupError("every prompt is solved")
            if self._tell and out and start >= self._first:
                self._tell(f"epoch {len(self._starts)} leaves out {self._share(left)}")
            self._starts.append(start + left)
        epoch = bisect_right(self._starts, position) - 1
        return epoch, self._starts[epoch]

    def _share(self, left: int) -> str:
        assert self.solved is not None
        count = len(self._prompts)
        return f"{count - left} of {count} prompts, solved at data.drop_solved={self.solved.bound:g} or more"

    def _left_out(self, start: int) -> frozenset[str]:
        return self.solved.before(start) if self.solved is not None else frozenset()

    def _next(self) -> Prompt | None:
        """The next prompt; None where every prompt is left out."""
        try:
            return self.at(self.position)
        except LookupError:
            return None

    def __next__(self) -> Prompt:
        prompt = self._next()
        if prompt is None:
            self.ended = True
            if self._tell:
                self._tell(f"the run ends here: the next epoch would leave out {self._share(0)}")
            raise StopIteration
        self.position += 1
        return prompt
