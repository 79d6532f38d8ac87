"""Which problems a node has, so that each is sent to it once."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from typing import NamedTuple

from sandbox.core import Problem, Program

KEPT = 1024
"""Problems that a node keeps beside those that its jobs need."""
_DIGESTS = 4096


class Digest(NamedTuple):
    """``size``: bytes of the problem, as they are sent."""

    text: str
    size: int


class Digests:
    """Digests of problems, each computed once while the problem is in use."""

    def __init__(self, kept: int = _DIGESTS) -> None:
        self._kept, self._known = kept, OrderedDict[int, tuple[Problem, Digest]]()

    def of(self, problem: Problem) -> Digest:
        """Equal for problems that are judged alike."""
        known = self._known.get(id(problem))  # the entry holds the object, so no other can have its id
        if known is None:
            text = json.dumps(problem.to_json(), sort_keys=True)
            written = text.encode("utf-8", "surrogatepass")
            known = self._known[id(problem)] = problem, Digest(hashlib.sha256(written).hexdigest(), len(written))
            if len(self._known) > self._kept:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(id(problem))
        return known[1]


def same_key(digest: str, program: Program) -> str:
    """Equal for programs that are judged alike, by the problem of that digest."""
    text = f"{(digest, program.language, program.files, program.entry)!r}{program.source}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class NodeProblems:
    """What one node has of them."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept, self._there = kept, OrderedDict[str, None]()
        self._used = Counter[str]()

    def take(self, digest: str) -> bool:
        """A job needs it there. True when it has to be sent."""
        new = digest not in self._there
        self._there[digest] = None
        self._there.move_to_end(digest)
        self._used[digest] += 1
        return new

    def put_back(self, digest: str) -> None:
        """The job has ended, or is elsewhere."""
        self._used[digest] -= 1
        if not self._used[digest]:
            del self._used[digest]

    def clear(self) -> None:
        """Nobody knows what the node has."""
        self._there.clear()
        self._used.clear()

    def surplus(self) -> list[str]:
        """Those that the node is to forget: used longest ago, by no job."""
        gone: list[str] = []
        if len(self._there) <= self._kept:
            return gone
        for digest in list(self._there)[: len(self._there) - self._kept]:
            if digest not in self._used:
                del self._there[digest]
                gone.append(digest)
        return gone
