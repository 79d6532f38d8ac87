"""What a server counts of its requests, in memory that does not grow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram of answer times."""


@dataclass(slots=True)
class ServerCounts:
    """Answers by route and status, and how long they took."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    seconds: float = 0.0
    left: int = 0
    """Clients that left before their answer."""

    def add(self, route: str, status: int, seconds: float) -> None:
        self.answers[route, status] += 1
        self.seconds += seconds
        self.buckets[next((n for n, most in enumerate(BUCKETS_S) if seconds <= most), len(BUCKETS_S))] += 1
