"""Run one program's cases on several idle workers, with the result that one worker would give.

Worthwhile only for slow cases on idle cores: each part costs a message, a parsed problem and a worker that another job
may need. So it is decided by expectation, and never for a problem without an earlier judgement.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Final

from sandbox.core.nouns import Case, Judgement, Verdict, drop_later_excerpts
from sandbox.core.problem import Problem

PROGRAM_S_MIN: Final = 0.2
CASE_S_MIN: Final = 0.03
BODY_BYTES_MAX: Final = 4 << 20
_KINDS: Final = ("stdio", "function", "assert")
_PROBLEM_FIELDS: Final = {"id", "kind", "cases", "fn_name", "preamble", "compare", "limits", "language"}
_CASE_FIELDS: Final = {"input", "expected"}

AskCase = Callable[[int], Awaitable[Judgement]]


def lanes(problem: Problem, body_bytes: int, case_s: float | None, idle: int) -> int:
    """Return how many workers to use; 1 means that the program is judged as a whole."""
    count = len(problem.cases)
    if case_s is None or case_s < CASE_S_MIN or case_s * count < PROGRAM_S_MIN:
        return 1
    if body_bytes > BODY_BYTES_MAX or not _is_plain(problem):
        return 1
    return max(1, min(idle, count))


def _is_plain(problem: Problem) -> bool:
    """Return whether its cases are judged independently, and its verdict follows from theirs alone."""
    return (
        problem.kind in _KINDS
        and _has_only(problem, _PROBLEM_FIELDS)
        and all(_has_only(case, _CASE_FIELDS) for case in problem.cases)
    )


def _has_only(noun: Problem | Case, names: set[str]) -> bool:
    return all(item.name in names or getattr(noun, item.name) == item.default for item in dataclasses.fields(noun))


async def judge_apart(ask: AskCase, count: int, width: int, *, stop: bool, first_alone: bool) -> Judgement:
    """Judge cases 0 to count - 1 by `ask`, `width` at a time, and cancel cases that an earlier failure makes needless.
    `first_alone`: the first case also compiles, and the others use the result.
    """
    work = _Apart(ask, count, stop)
    try:
        if first_alone:
            await work.one()
        running = [asyncio.create_task(work.lane()) for _ in range(width)]
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    except _CompileError as error:
        return dataclasses.replace(error.judgement, total=count)
    return merge_judgements([work.parts[index] for index in range(min(count, work.end))], count)


def merge_judgements(parts: list[Judgement], total: int) -> Judgement:
    """Parts in the order of their cases, of which only the last may have failed unless all were to run."""
    cases = drop_later_excerpts([case for part in parts for case in part.cases])
    return dataclasses.replace(
        parts[0],
        verdict=next((case.verdict for case in cases if case.verdict is not Verdict.AC), Verdict.AC),
        cases=cases,
        passed=sum(case.verdict is Verdict.AC for case in cases),
        total=total,
        weak=any(part.weak for part in parts),
    )


class _CompileError(Exception):
    def __init__(self, judgement: Judgement) -> None:
        super().__init__()
        self.judgement = judgement


class _Apart:
    def __init__(self, ask: AskCase, count: int, stop: bool) -> None:
        self.ask = ask
        self.stop = stop
        self.next = 0
        self.end = count
        """Cases from here on are not wanted."""
        self.parts: dict[int, Judgement] = {}
        self.asking: dict[int, asyncio.Task[Judgement]] = {}

    async def lane(self) -> None:
        while self.next < self.end:
            await self.one()

    async def one(self) -> None:
        """The next case, unless a failure before it ends it."""
        index, self.next = self.next, self.next + 1
        task = self.asking[index] = asyncio.ensure_future(self.ask(index))
        try:
            await asyncio.wait([task])
        finally:
            del self.asking[index]
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            return
        if index >= self.end:
            task.exception()
            return
        part = task.result()
        if part.verdict is Verdict.CE:
            raise _CompileError(part)
        self.parts[index] = part
        if self.stop and part.verdict is not Verdict.AC:
            self.end = index + 1
            for later, other in self.asking.items():
                if later > index:
                    other.cancel()
