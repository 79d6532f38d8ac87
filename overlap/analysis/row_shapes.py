"""What the rows of a run's files have to be before anything is computed with them: their keys, each with its types."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

from overlap.core import Packed

Shape = Mapping[str, tuple[type, ...]]

_WHOLE, _TEXT, _FLAG, _LIST, _OBJECT = (int,), (str,), (bool,), (list,), (dict,)
_NUMBER, _NUMBER_OR_NONE, _WHOLE_OR_NONE = (int, float), (int, float, NoneType), (int, NoneType)
_TEXT_OR_NONE, _EXCERPT = (str, NoneType), (str, dict, NoneType)

GROUP: Shape = {
    **dict.fromkeys(("split", "prompt_id", "dropped"), _TEXT),
    **dict.fromkeys(("step", "group", "samples", "solved", "failed"), _WHOLE),
    **dict.fromkeys(("truncated", "tokens", "weak", "programs"), _WHOLE),
    **dict.fromkeys(("reward", "reward_std"), _NUMBER_OR_NONE),
    "verdicts": _OBJECT,
    "learned": _FLAG,
}  # fmt: skip
"""A row of ``groups.jsonl``."""
STEP: Shape = {"step": _WHOLE}
"""A row of ``metrics.jsonl``: the columns differ with the version."""
SUMMARY: Shape = {"exit": _TEXT}
"""``summary.json``."""
HEAD: Shape = {
    **dict.fromkeys(("split", "id", "prompt_id", "failure", "dropped", "finish", "node", "program_sha256"), _TEXT),
    **dict.fromkeys(("schema", "step", "group", "sample", "tokens", "turns", "branches"), _WHOLE),
    **dict.fromkeys(("generate_s", "queue_s", "verify_s"), _NUMBER),
    **dict.fromkeys(("reward", "advantage"), _NUMBER_OR_NONE),
    **dict.fromkeys(("passed", "total"), _WHOLE_OR_NONE),
    **dict.fromkeys(("weak", "truncated"), _FLAG),
    **dict.fromkeys(("kept_as", "versions"), _LIST),
    "parts": _OBJECT, "verdict": _TEXT_OR_NONE,
}  # fmt: skip
"""The small values of a sample."""
BULK: Shape = {"prompt": _TEXT, "answer": _TEXT}
"""What every sample has behind its head, those of the earlier format too."""
LATER: Shape = {
    "program": (dict, NoneType), "tests": _LIST, "dialog": _TEXT_OR_NONE, "forks": _LIST,
    "kind": _TEXT, "compile_log": _TEXT, "prefill": _TEXT,
}  # fmt: skip
"""What it may have, beside ``PACKED_COLUMNS``."""
_TEST: Shape = {"index": _WHOLE, "verdict": _TEXT}
_TEST_LATER: Shape = {
    **dict.fromkeys(("input", "expected", "got", "stderr"), _EXCERPT), "message": _TEXT,
    **dict.fromkeys(("cpu_s", "wall_s", "memory_bytes"), _NUMBER_OR_NONE),
    **dict.fromkeys(("exit", "signal"), _WHOLE_OR_NONE),
}  # fmt: skip
_ITEMS: Shape = {"kept_as": _TEXT, "parts": _NUMBER, "verdicts": _WHOLE}
"""What a list or an object holds."""
_EXCERPT_KEYS: Shape = {"head": _TEXT, "tail": _TEXT, "bytes": _WHOLE, "sha256": _TEXT}


def unpacked_ints(text: str) -> array[int]:
    """The int32 values of a row's base64 text, [T]."""
    found: Packed[int] = Packed.from_base64("i", text)
    return found.array


def unpacked_floats(text: str) -> array[float]:
    """The float32 values of a row's base64 text, [T]."""
    found: Packed[float] = Packed.from_base64("f", text)
    return found.array


def unpacked_bytes(text: str) -> bytes:
    """The bytes of a row's base64 text, [T]."""
    return base64.b64decode(text, validate=True)


PACKED_COLUMNS: Mapping[str, Callable[[str], Sequence[float]]] = {
    "token_ids": unpacked_ints,
    "prompt_token_ids": unpacked_ints,
    "mask": unpacked_bytes,
    "logprobs": unpacked_floats,
    "learner_logprobs": unpacked_floats,
}
"""The columns with a number for each token, as base64, and how each is unpacked. All but that of the prompt have a
number for each of ``token_ids``.
"""


def check_row(row: Any, shape: Shape, *, may: bool = False) -> None:
    """Raise ValueError where ``row`` is no object, or a value is missing (unless it ``may`` be) or of another type."""
    if type(row) is not dict:
        raise ValueError("it is no object")
    for name, types in shape.items():
        if name not in row:
            if may:
                continue
            raise ValueError(f"{name} is missing")
        if type(row[name]) not in types:
            raise ValueError(f"{name} is {str(row[name])[:40]!r}")


def check_alike(rows: Iterable[Any], shape: Shape) -> None:
    """The same for many rows: one with the keys and types of a row that was right is right, too."""
    right: set[tuple[tuple[str, ...], tuple[type, ...]]] = set()
    for row in rows:
        form = (tuple(row), tuple(map(type, row.values()))) if type(row) is dict else ((), ())
        if form not in right:
            check_row(row, shape)  # raises for what is no object
            right.add(form)
        _check_items(row)


def _check_items(row: Mapping[str, Any]) -> None:
    """Raise ValueError where a list or an object of a row holds something else than it should."""
    for name, types in _ITEMS.items():
        held = row.get(name, ())
        if not all(type(item) in types for item in (held.values() if type(held) is dict else held)):
            raise ValueError(f"{name} is {str(held)[:40]!r}")
    spans = row.get("versions", ())
    if not all(type(span) is list and set(map(type, span)) == {int} for span in spans):
        raise ValueError(f"versions is {str(spans)[:40]!r}")


def check_rows(rows: Iterable[Any], shape: Shape) -> None:
    """The same for the rows of a file; the error says the row's number."""
    for number, row in enumerate(rows, 1):
        try:
            check_row(row, shape)
            _check_items(row)
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from error


def check_bulk(row: Any) -> None:
    """Raise ValueError where the texts, the program or the tests of a whole sample are of another form."""
    check_row(row, BULK)
    check_row(row, LATER, may=True)
    _check_packed(row)
    if row.get("program") is not None:
        check_row(row["program"], {"source": _TEXT, "language": _TEXT_OR_NONE})
    for test in row.get("tests") or ():
        check_row(test, _TEST)
        check_row(test, _TEST_LATER, may=True)
        for name in ("input", "expected", "got", "stderr"):
            if type(test.get(name)) is dict:
                check_row(test[name], _EXCERPT_KEYS)
    for fork in row.get("forks") or ():
        check_row(fork, {"text": _TEXT, "finish": _TEXT})
        _check_packed(fork)


def _check_packed(branch: Mapping[str, Any]) -> None:
    """Raise ValueError where the numbers of a branch's tokens cannot be unpacked, or are not one a token."""
    counts = {}
    for name in sorted(PACKED_COLUMNS.keys() & branch.keys()):
        try:
            counts[name] = len(PACKED_COLUMNS[name](branch[name]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} cannot be unpacked: {error}") from error
    of_tokens = {name: count for name, count in counts.items() if count and name != "prompt_token_ids"}
    if len(set(of_tokens.values())) > 1:
        raise ValueError(f"there are {', '.join(f'{count} {name}' for name, count in of_tokens.items())}")
