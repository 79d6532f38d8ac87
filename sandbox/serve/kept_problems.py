"""Problems that came before: many programs are sent for one, and each brings it whole.

An equal JSON object gives the same Problem, which is then neither checked nor sent to the pool's supervisor again.
"""

from __future__ import annotations

import hashlib
import marshal
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from sandbox.core.nouns import MIB
from sandbox.core.problem import Problem

KEPT_BYTES: Final = 256 * MIB
_CASE_BYTES: Final = 500
"""Of a case beside its texts, and of its JSON object."""
_NO_REFERENCES: Final = 2
"""The version of marshal whose bytes follow from the values alone, and not from what else refers to them."""


class KeptProblems:
    """The problems that were used last, together of at most about so many bytes."""

    def __init__(self, bytes_max: int = KEPT_BYTES) -> None:
        self.bytes_max, self.bytes = bytes_max, 0
        self._names: dict[int, str] = {}
        self._named: dict[str, Problem] = {}
        self._kept: OrderedDict[tuple[Callable[[Any], Problem], bytes], tuple[Problem, int]] = OrderedDict()

    def find(self, given: Any, make: Callable[[Any], Problem] = Problem.of) -> Problem:
        """The problem that ``make``, a function of a module, reads in a JSON value. Raises InvalidProblem."""
        try:
            packed = marshal.dumps(given, _NO_REFERENCES)
        except ValueError:  # nested too deep for a problem
            return make(given)
        key = make, hashlib.sha256(packed).digest()
        if (kept := self._kept.get(key)) is None:
            problem = make(given)
            kept = self._kept[key] = problem, len(packed) + _CASE_BYTES * len(problem.cases)
            self.bytes += kept[1]
            if make == Problem.of:
                self._names[id(problem)] = name = f"kept:{key[1].hex()}"
                self._named[name] = problem
        self._kept.move_to_end(key)
        while self.bytes > self.bytes_max and len(self._kept) > 1:
            problem, size = self._kept.popitem(last=False)[1]
            self.bytes -= size
            self._named.pop(self._names.pop(id(problem), ""), None)
        return kept[0]

    def name(self, problem: Problem) -> str:
        """The name by which a client may ask for it again; it follows from the content. "" where it is not kept."""
        return self._names.get(id(problem), "")

    def named(self, name: str) -> Problem | None:
        """The problem of this name, while it is kept."""
        return self._named.get(name)
