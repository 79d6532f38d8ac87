"""Prompts that the policy solves are left out of later epochs (ScaleRL, Khatri et al. 2025: no positive resampling).

    groups of a learned step ──▶ note ──▶ solved ──▶ the order of each epoch that begins ``behind`` groups later

When an epoch's order is drawn depends on who was fast; what it is drawn from must not. So of all that is known then,
only the groups count that are learned from by then in any case: ``behind`` is more than can be on their way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from overlap.config.fields import Config
from overlap.core import Group, reaches


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
