"""Data types of test data: a tree of groups with cases as its leaves, and the author's tests of validators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TestCase:
    name: str
    """Relative to data/, without a suffix."""
    input: Path
    answer: Path
    arguments: tuple[str, ...] = ()
    validator_arguments: tuple[str, ...] = ()
    input_arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of input validators, by their names; under "" those of each that has none of its own."""
    files: Path | None = None
    """A directory whose files the program finds beside it."""


@dataclass(frozen=True, slots=True)
class OldRules:
    """How a grader makes a group's result of its parts (testdata.yaml)."""

    stop: bool = True
    """on_reject: break."""
    custom: bool = False
    flags: tuple[str, ...] = ()
    accept_score: float = 1.0
    reject_score: float = 0.0
    low: float = float("-inf")
    high: float = float("inf")


@dataclass(frozen=True, slots=True)
class NewRules:
    """How a group's score is made of its parts (test_group.yaml)."""

    aggregation: str
    """pass-fail | sum | min"""
    max_score: float | None
    """None: unbounded."""
    require_pass: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseGroup:
    name: str
    """Relative to data/; "" for data itself."""
    rules: OldRules | NewRules
    parts: tuple[CaseGroup | TestCase, ...]

    def cases(self) -> Iterator[TestCase]:
        """All below it, in order."""
        for part in self.parts:
            if isinstance(part, TestCase):
                yield part
            else:
                yield from part.cases()

    def groups(self) -> Iterator[CaseGroup]:
        """Itself and all below it."""
        yield self
        for part in self.parts:
            if isinstance(part, CaseGroup):
                yield from part.groups()


@dataclass(frozen=True, slots=True)
class TestData:
    tree: CaseGroup
    invalid: tuple[TestCase, ...]
    """Inputs that an input validator must refuse; they have no answers."""
    outputs: tuple[OutputTest, ...]
    notes: tuple[str, ...]
    """What has no effect."""


@dataclass(frozen=True, slots=True)
class OutputTest:
    """An output of which the author knows what the output validator must say."""

    case: TestCase
    output: Path
    valid: bool
