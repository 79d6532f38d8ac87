"""Find the same problem in other words. Statements are compared by their words: marks, case and layout do not count.

Two that have most of their runs of ``RUN`` words in common are one problem, as where one has a title, or another
heading, or is cut short. Short statements, of which runs say little, are the same only where all words are.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

RUN = 8
"""Words in a run."""
SHARE = 0.7
"""Share of the shorter statement's runs that the other must contain for the two to be alike."""
FEWEST = 10
"""A statement with fewer runs is compared whole."""
_WORD = re.compile(r"[a-z0-9]+")


def words_of(statement: str) -> tuple[str, ...]:
    """The words of a statement, in lower case."""
    return tuple(_WORD.findall(statement.lower()))


def runs_of(words: tuple[str, ...]) -> set[int]:
    """Hashes of all runs of ``RUN`` words. The same within a process only."""
    return {hash(words[at : at + RUN]) for at in range(len(words) - RUN + 1)}


class Statements:
    """Statements by their words, for the question which of them another one is."""

    def __init__(self, named: Iterable[tuple[str, str]]) -> None:
        """``named``: (name, statement) pairs."""
        self._whole: dict[tuple[str, ...], str] = {}
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._having: defaultdict[int, list[int]] = defaultdict(list)
        for name, statement in named:
            words = words_of(statement)
            self._whole.setdefault(words, name)
            runs = runs_of(words)
            if len(runs) >= FEWEST:
                for run in runs:
                    self._having[run].append(len(self._names))
                self._names.append(name)
                self._sizes.append(len(runs))

    def __len__(self) -> int:
        return len(self._whole)

    def same(self, statement: str) -> str:
        """The name of a statement that is the same problem; "" for none."""
        words = words_of(statement)
        if words in self._whole:
            return self._whole[words]
        runs = runs_of(words)
        if len(runs) < FEWEST:
            return ""
        shared = Counter(self._those_with(runs))
        alike = (n for n, count in shared.most_common() if count >= SHARE * min(len(runs), self._sizes[n]))
        return next((self._names[n] for n in alike), "")

    def _those_with(self, runs: Iterable[int]) -> Iterator[int]:
        for run in runs:
            yield from self._having.get(run, ())
