"""The tree of an episode: its branches, and where each leaves an earlier one."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

from overlap.record.row_shapes import unpacked_ints


class EpisodeBranch(NamedTuple):
    """``parent``: the branch with which it shares the longest beginning, ``shared`` tokens; None of the first one.
    Branches are numbered from 1, in the order in which they were sampled; the last one has the answer that was judged.
    """

    number: int
    parent: int | None
    shared: int
    tokens: int
    finish: str
    text: str


def branches(row: Mapping[str, Any]) -> list[EpisodeBranch]:
    """The branches of a whole row; one where the answer has no forks."""
    found: list[EpisodeBranch] = []
    earlier: list[array[int]] = []
    last = {**row, "text": row["answer"]}
    for number, branch in enumerate((*(row.get("forks") or ()), last), 1):
        own = unpacked_ints(branch.get("token_ids") or "")
        ids = unpacked_ints(branch.get("prompt_token_ids") or "") + own
        shared = [_shared(ids, other) for other in earlier]
        parent = max(range(len(shared)), key=shared.__getitem__) + 1 if shared else None
        share = max(shared, default=0)
        found.append(EpisodeBranch(number, parent, share, len(own), branch["finish"], branch["text"]))
        earlier.append(ids)
    return found


def _shared(one: array[int], other: array[int]) -> int:
    """Number of tokens that both begin with."""
    least = min(len(one), len(other))
    if one[:least] == other[:least]:
        return least
    low, high = 0, least  # one[:low] is shared, one[:high] is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle)
    return low


def depth(found: list[EpisodeBranch], number: int) -> int:
    """Number of ancestors of a branch, its parent included; 0 for a branch without a parent."""
    parent = found[number - 1].parent
    return 0 if parent is None else 1 + depth(found, parent)
