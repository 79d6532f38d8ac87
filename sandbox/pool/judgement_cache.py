"""Judge equal work once: one caller judges, the others wait for its result, and it is kept for later callers.

consumes  a key and a way to judge          produces  the judgement, and whether it came from the cache
waits for the caller that judges; its cancellation or failure concerns only itself: the next waiter judges instead

A judgement that another run might not repeat is not shared, and an error is never kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from sandbox.core.nouns import CaseResult, Judgement, Limits, Verdict
from sandbox.judging import control

KEPT_MAX: Final = 4096
KEPT_BYTES_MAX: Final = 64 << 20
_CASE_BYTES: Final = 400


class JudgementCache:
    """Single flight, and a cache that drops the least recently used entry."""

    def __init__(self, kept_max: int = KEPT_MAX, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self.kept_max, self.kept_bytes_max = kept_max, kept_bytes_max
        self.kept_bytes = 0
        self.kept: OrderedDict[str, Judgement] = OrderedDict()
        self._flying: dict[str, asyncio.Future[tuple[Judgement | None, bool]]] = {}
        self._toolchains: dict[str, str] = {}

    async def get(self, key: str, limits: Limits, judge: Callable[[], Awaitable[Judgement]]) -> tuple[Judgement, bool]:
        """Return the judgement, and True when another caller had it judged."""
        while (flying := self._flying.get(key)) is not None:
            shared, alone = await asyncio.shield(flying)  # one waiter's cancellation is not the others'
            if shared is not None:
                return shared, True
            if alone:
                return await judge(), False
        if (kept := self.kept.get(key)) is not None:
            self.kept.move_to_end(key)
            return kept, True
        mine = self._flying[key] = asyncio.get_running_loop().create_future()
        made, alone = None, False
        try:
            done = await judge()
            alone = not repeatable(done, limits)
            made = None if alone else done
            return done, False
        finally:
            del self._flying[key]
            if made is not None:
                self._keep(key, made)
            mine.set_result((made, alone))

    def _keep(self, key: str, done: Judgement) -> None:
        if self._toolchains.get(done.language, done.toolchain) != done.toolchain:  # upgraded meanwhile
            self.kept.clear()
            self.kept_bytes = 0
        self._toolchains[done.language] = done.toolchain
        self.kept[key] = done
        self.kept_bytes += _bytes(done)
        while len(self.kept) > self.kept_max or self.kept_bytes > self.kept_bytes_max:
            self.kept_bytes -= _bytes(self.kept.popitem(last=False)[1])


def repeatable(done: Judgement, limits: Limits) -> bool:
    """Return False when the wall clock or a dying judge influenced the verdict, so that it might differ at another
    time. A TLE within the CPU limit came from the wall backstop; a run past its wall limit was starved of cores.
    """
    return not any(
        case.message.startswith(control.TOOK_DOWN)
        or case.wall_s >= limits.wall_limit_s
        or (case.verdict is Verdict.TLE and case.cpu_s <= limits.cpu_s)
        for case in done.cases
    )


def _bytes(done: Judgement) -> int:
    return _CASE_BYTES + 4 * len(done.compile_log) + sum(map(_case_bytes, done.cases))


def _case_bytes(case: CaseResult) -> int:
    shown = (part for excerpt in (case.got, case.stderr) if excerpt for part in (excerpt.head, excerpt.tail))
    return _CASE_BYTES + 4 * sum(map(len, (case.message, *(text for _, text in case.feedback), *shown)))
