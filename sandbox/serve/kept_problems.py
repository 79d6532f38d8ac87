"""Problems that came before: many programs are sent for one, and each brings it whole.

An equal JSON object gives the same Problem, which is then neither checked nor sent to the pool's supervisor again.
"""

from __future__ import annotations

import hashlib
import marshal
from collections import OrderedDict
from typing import Any, Final

from sandbox.core.nouns import MIB
from sandbox.core.problem import Problem

KEPT_BYTES: Final = 256 * MIB
_CASE_BYTES: Final = 500
"""Bytes of a case beside its texts, and of its JSON object."""
_NO_REFERENCES: Final = 2
"""The version of marshal whose bytes follow from the values alone, and not from what else refers to them."""


class KeptProblems:
    """The problems that were used last, together of about the given number of bytes at most."""

    def __init__(self, bytes_max: int = KEPT_BYTES) -> None:
        self.bytes_max, self.bytes = bytes_max, 0
        self._names: dict[int, str] = {}
        self._kept: OrderedDict[str, tuple[Problem, int]] = OrderedDict()

    def find(self, given: Any) -> Problem:
        """The problem that a JSON object holds. Raises InvalidProblem."""
        try:
            packed = marshal.dumps(given, _NO_REFERENCES)
        except ValueError:  # nested too deep for a problem
            return Problem.of(given)
        name = f"kept:{hashlib.sha256(packed).hexdigest()}"
        if (kept := self._kept.get(name)) is None:
            problem = Problem.of(given)
            kept = self._kept[name] = problem, len(packed) + _CASE_BYTES * len(problem.cases)
            self.bytes += kept[1]
            self._names[id(problem)] = name
        self._kept.move_to_end(name)
        while self.bytes > self.bytes_max and len(self._kept) > 1:
            problem, size = self._kept.popitem(last=False)[1]
            self.bytes -= size
            del self._names[id(problem)]
        return kept[0]

    def name(self, problem: Problem) -> str:
        """The name by which a client may ask for it again; it follows from the content. "" where it is not kept."""
        return self._names.get(id(problem), "")

    def named(self, name: str) -> Problem | None:
        """The problem of this name, while it is kept."""
        kept = self._kept.get(name)
        return kept and kept[0]
