"""What is added to a task's reward before it becomes an advantage. Metrics and records keep the task's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlap.core import Scored

DEEPEST = -0.5
"""Punishment of a response at the limit."""


@dataclass(frozen=True, slots=True)
class Overlong:
    """Responses of more than ``limit - interval`` tokens are punished; ``interval`` 0: none is."""

    limit: int = 0
    interval: int = 0


def overlong_punishment(length: int, overlong: Overlong) -> float:
    """0 for ``length`` tokens up to ``limit - interval``, then falling evenly to ``DEEPEST`` at ``limit``.

    DAPO's soft overlong punishment (Yu et al. 2025, section 3.4, eq. 13; verl ``reward_manager/dapo.py``), halved:
    DAPO's rewards are -1 and 1, those of a task here 0 to 1, so the advantages are DAPO's.
    """
    over = length - (overlong.limit - overlong.interval)
    if not overlong.interval or over <= 0:
        return 0.0
    return DEEPEST * min(1.0, over / overlong.interval)


def punishments(samples: Sequence[Scored], overlong: Overlong) -> tuple[float, ...]:
    """[G]; empty where nothing is punished by the configuration."""
    if not overlong.interval:
        return ()
    return tuple(overlong_punishment(s.trajectory.sampled, overlong) for s in samples)
