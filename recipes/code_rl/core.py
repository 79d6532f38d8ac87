"""Nouns of the recipe: the CodeProblem that is made from a row, and the reasons why a row gives none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandbox.core.nouns import Case
from sandbox.core.problem import Problem

LANGUAGE = "other language"
NO_CODE = "no code task"
NO_TESTS = "no tests"
CONTRADICTORY = "tests contradict each other"
PACKAGE = "package not there"
UNJUDGEABLE = "cannot be judged"

REFERENCES_KEPT = 3
"""Reference solutions of a problem that are kept, the first ones; crawled sets sometimes begin with Python 2."""


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A problem of the recipe: the statement that the policy gets, and the tests that the sandbox judges by."""

    id: str
    statement: str
    """Natural language, without any prompt wrapping."""
    problem: Problem
    starter: str = ""
    """Code that the program begins with or must hold: a signature, a class, or an open ``def name(``."""
    references: tuple[str, ...] = ()
    """Whole programs of which the source says that they pass all tests."""
    level: int = 0
    """Difficulty by the source's own scale; 0 means unknown."""
    place: str = ""
    """Place of its row: "path:line"."""
    public: tuple[Case, ...] = ()
    """Cases that the statement shows, or that the source calls public: the policy may see them."""
    split: Any = None
    """The column ``split`` of its row, unchanged."""
    notes: tuple[str, ...] = ()
    """``Prompt.notes`` of its row."""
