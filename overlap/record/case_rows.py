"""The tests of a sample in ``trajectories.jsonl``: input, expected and actual output, shortened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandbox.core.excerpt import Excerpt
from sandbox.core.nouns import Verdict

if TYPE_CHECKING:
    from sandbox.core.nouns import CaseResult
    from sandbox.core.problem import Problem

TESTS = 30
"""Tests of a sample that are written at most, of the tests that ran: the first failed ones, then the first of all."""
FAILED, FAILED_CHARS = 3, 1000
"""Number of failed tests that are written with longer texts, and the characters of such a text."""
OTHER_CHARS = 120
MESSAGE_CHARS = 500


@dataclass(slots=True)
class CaseRows:
    """Test rows of one step or evaluation: a text that several samples were tested with is shortened once."""

    _known: dict[tuple[str, int], Any] = field(default_factory=dict)

    def rows(self, cases: Sequence[CaseResult], problem: Problem | None) -> list[dict[str, Any]]:
        """The rows of the tests that ran, in their order; ``problem`` is what they were the tests of."""
        shown = [case for case in cases if case.verdict is not Verdict.AC][:FAILED]
        failed = {case.index for case in shown}
        if len(cases) > TESTS:
            others = [case for case in cases if case.index not in failed][: TESTS - len(shown)]
            cases = sorted((*shown, *others), key=lambda case: case.index)
        return [self._row(case, problem, FAILED_CHARS if case.index in failed else OTHER_CHARS) for case in cases]

    def _row(self, case: CaseResult, problem: Problem | None, limit: int) -> dict[str, Any]:
        asked = problem.cases[case.index] if problem and case.index < len(problem.cases) else None
        row = {
            "index": case.index,
            "verdict": str(case.verdict),
            "cpu_s": case.cpu_s,
            "wall_s": case.wall_s,
            "memory_bytes": case.memory_bytes,
            "message": case.message[:MESSAGE_CHARS],
            "exit": case.exit_code,
            "signal": case.signal,
            "input": self._text(asked.input if asked else None, limit),
            "expected": self._text(asked.expected if asked else None, limit),
            "got": _shorter(case.got, limit),
        }
        return row if case.stderr is None else {**row, "stderr": _shorter(case.stderr, limit)}

    def _text(self, text: str | None, limit: int) -> Any:
        if text is None:
            return None
        key = text, limit
        if key not in self._known:
            self._known[key] = Excerpt.of(text, limit).to_json()
        return self._known[key]


def _shorter(excerpt: Excerpt | None, limit: int) -> Any:
    """The excerpt as JSON, with at most about ``limit`` characters."""
    if excerpt is None or len(excerpt.head) + len(excerpt.tail) <= limit:
        return excerpt and excerpt.to_json()
    if excerpt.whole:
        return Excerpt.of(excerpt.head, limit).to_json()
    tail = limit // 4
    return Excerpt(excerpt.head[: limit - tail], excerpt.tail[-tail:], excerpt.size, excerpt.sha256).to_json()
