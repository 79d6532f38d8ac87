"""The rows of a run's files as types: rows that are read are checked against them before anything is computed."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Required

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from overlap.core import Packed

_EXACT = ConfigDict(strict=True, extra="allow")
Span = Annotated[list[int], Field(min_length=3, max_length=3)]
"""Version, first token, end."""


@with_config(_EXACT)
class StepRow(TypedDict):
    """A row of ``metrics.jsonl``; its other columns are figures."""

    step: int


@with_config(_EXACT)
class SummaryFile(TypedDict):
    """Fields of every ``summary.json``."""

    exit: str


@with_config(_EXACT)
class GroupRow(TypedDict):
    """A row of ``groups.jsonl``: a group of a step, or a problem of an evaluation."""

    split: str
    step: int
    group: int
    prompt_id: str
    samples: int
    solved: int
    failed: int
    truncated: int
    tokens: int
    reward: float | None
    reward_std: float | None
    dropped: str
    verdicts: dict[str, int]
    weak: int
    programs: int
    learned: bool


@with_config(_EXACT)
class HeadRow(TypedDict):
    """The small values of a sample, which stand in front of its bulk."""

    schema: int
    split: str
    step: int | None
    """None of a sample that no step has taken yet."""
    group: int
    sample: int
    id: str
    prompt_id: str
    reward: float | None
    advantage: float | None
    parts: dict[str, float]
    verdict: str | None
    failure: str
    dropped: str
    kept_as: list[str]
    weak: bool
    passed: int | None
    total: int | None
    tokens: int
    finish: str
    truncated: bool
    turns: int
    branches: int
    versions: list[Span]
    generate_s: float
    queue_s: float
    verify_s: float
    node: str
    program_sha256: str


@with_config(_EXACT)
class ExcerptRow(TypedDict):
    """A long text by its ends: ``bytes`` is its whole length."""

    head: str
    tail: str
    bytes: int
    sha256: str


@with_config(_EXACT)
class ProgramRow(TypedDict):
    """The program that was judged."""

    source: str
    language: str | None


_Text = str | ExcerptRow | None


@with_config(_EXACT)
class CaseRow(TypedDict, total=False):
    """A test that ran."""

    index: Required[int]
    verdict: Required[str]
    message: str
    input: _Text
    expected: _Text
    got: _Text
    stderr: _Text
    cpu_s: float | None
    wall_s: float | None
    memory_bytes: int | None
    exit: int | None
    signal: int | None


@with_config(_EXACT)
class TokenRow(TypedDict, total=False):
    """The numbers of a branch's tokens, base64 each: ``PACKED_COLUMNS``."""

    token_ids: str
    prompt_token_ids: str
    logprobs: str
    learner_logprobs: str
    mask: str


@with_config(_EXACT)
class ForkRow(TokenRow, total=False):
    """A branch of an episode that a later one has left."""

    text: Required[str]
    finish: Required[str]
    restore: dict[str, Any]


@with_config(_EXACT)
class BulkRow(TokenRow, total=False):
    """The texts, the program, the tests and the tokens of a sample, behind its head."""

    prompt: Required[str]
    answer: Required[str]
    prefill: str
    dialog: str | None
    program: ProgramRow | None
    kind: str
    tests: list[CaseRow]
    compile_log: str
    forks: list[ForkRow]
    restore: dict[str, Any]
    """See ``sample_rows``."""


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
HEAD, GROUPS = TypeAdapter(HeadRow), TypeAdapter(list[GroupRow])
STEPS, SUMMARY, BULK = TypeAdapter(list[StepRow]), TypeAdapter(SummaryFile), TypeAdapter(BulkRow)


def check_form(shape: TypeAdapter[Any], value: Any) -> None:
    """Raise ValueError, in one line, where ``value`` is not of this shape."""
    try:
        shape.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        rows = [
            f"row {part + 1}" if at == 0 and type(part) is int else str(part) for at, part in enumerate(first["loc"])
        ]
        raise ValueError(f"{'.'.join(rows)}: {first['msg']}, not {str(first['input'])[:40]!r}") from None


def check_bulk(row: Mapping[str, Any]) -> None:
    """Raise ValueError where the texts, the program, the tests or the tokens of a whole sample are of another form."""
    check_form(BULK, row)
    for branch in (row, *(row.get("forks") or ())):
        _check_tokens(branch)


def _check_tokens(branch: Mapping[str, Any]) -> None:
    counts = {}
    for name in sorted(PACKED_COLUMNS.keys() & branch.keys()):
        counts[name] = len(PACKED_COLUMNS[name](branch[name]))
    of_tokens: Iterable[tuple[str, int]] = [(n, c) for n, c in counts.items() if c and n != "prompt_token_ids"]
    if len({count for _, count in of_tokens}) > 1:
        raise ValueError(f"there are {', '.join(f'{count} {name}' for name, count in of_tokens)}")
