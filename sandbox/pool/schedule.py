"""Schedule jobs: which is next, how long it will take, and how many may run at the same time.

Jobs of the lowest turn go first: callers use turns when they need one result before another. Within a turn the longest
expected job goes first, so that a batch does not end with one long job on one core. The expectation is the mean CPU
time of programs judged so far for the same problem and language, and before that the sum of the limits. Equal
expectations keep their order of arrival, and every eighth job is the one that has waited longest. No clock is used:
equal inputs give an equal order.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from sandbox.core.nouns import COMPILE_LIMITS, REFEREE_LIMITS, Judgement
from sandbox.core.problem import Problem
from sandbox.judging.interactive import INTERACTOR_END_S
from sandbox.languages.table import find_language
from sandbox.zygote.run_clock import WALL_STRETCH

KNOWN_MAX: Final = 4096
_MARGIN_S: Final = 60.0
_RUN_MARGIN_S: Final = 20.0
_COMPILED: Final = 3
"""Compilations of a job: a header, the program, and its checker or interactor."""
OLDEST_EVERY: Final = 8
_DRIFT: Final = 0.25

T = TypeVar("T")


def longest_s(problem: Problem) -> float:
    """Return the wall seconds after which a judgement must have ended by all its limits, on an overloaded machine too:
    a worker that still has it hangs.
    """
    compile_s = COMPILE_LIMITS.wall_limit_s * WALL_STRETCH
    each_s = problem.limits.wall_limit_s * WALL_STRETCH + _RUN_MARGIN_S
    if problem.kind == "assert":  # in a jail of the test's own, then beside the program; or compiled with it
        each_s = 2 * each_s if find_language(problem.language).warm else each_s + compile_s
    if problem.checker or problem.interactor:  # four runs of a checker for one output, to see whose fault it is
        each_s += WALL_STRETCH * (problem.referee_limits or REFEREE_LIMITS).wall_limit_s
    if problem.interactor:
        each_s += 2 * INTERACTOR_END_S
    return _MARGIN_S + _COMPILED * compile_s + each_s * problem.passes * len(problem.cases)


@dataclass(slots=True)
class _Spent:
    cpu_s: float = 0.0
    programs: int = 0
    cases: int = 0
    told_s: float = 0.0
    """The expectation that was given last."""


class History:
    """CPU seconds that programs spent, by problem and language; forgets the problem used longest ago."""

    def __init__(self, known_max: int = KNOWN_MAX) -> None:
        self.known_max = known_max
        self._spent: OrderedDict[tuple[str, str], _Spent] = OrderedDict()

    def record(self, problem_key: str, language: str, done: Judgement) -> None:
        spent = self._spent.setdefault((problem_key, language), _Spent())
        self._spent.move_to_end((problem_key, language))
        spent.cpu_s += sum(case.cpu_s for case in done.cases)
        spent.programs += 1
        spent.cases += len(done.cases)
        if len(self._spent) > self.known_max:
            self._spent.popitem(last=False)

    def expected_s(self, problem_key: str, language: str, problem: Problem) -> float:
        """CPU seconds of one program.

        The same number until the mean is a quarter away from it: or of many jobs for one problem, the jobs that came
        while the mean was lower would wait for all that come while it is higher.
        """
        spent = self._spent.get((problem_key, language))
        if spent is None:
            return problem.limits.cpu_s * len(problem.cases)
        mean = spent.cpu_s / spent.programs
        if abs(mean - spent.told_s) > _DRIFT * spent.told_s:
            spent.told_s = mean
        return spent.told_s

    def case_s(self, problem_key: str, language: str) -> float | None:
        """CPU seconds of one case; None when no case has run."""
        spent = self._spent.get((problem_key, language))
        return spent.cpu_s / spent.cases if spent is not None and spent.cases else None


class Backlog(Generic[T]):
    """Jobs that wait, by key: those of the lowest turn first. Within a turn the longest expected, and every eighth time
    the oldest.
    """

    def __init__(self) -> None:
        self._lines: dict[int, _Line[T]] = {}
        self._turns: list[int] = []
        self._turn_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._turn_of)

    def put(self, key: int, expected_s: float, job: T, turn: int = 0) -> None:
        """`key` increases with arrival; a job that is put back is the oldest of its turn."""
        if turn not in self._lines:
            self._lines[turn] = _Line()
            heapq.heappush(self._turns, turn)
        self._turn_of[key] = turn
        self._lines[turn].put(key, expected_s, job)

    def drop(self, key: int) -> None:
        """Forget a job; nothing when it does not wait."""
        turn = self._turn_of.pop(key, None)
        if turn is not None:
            self._lines[turn].drop(key)

    def take(self) -> T:
        """Raises IndexError when none waits."""
        while self._turns and not self._lines[self._turns[0]]:
            del self._lines[heapq.heappop(self._turns)]
        key, job = self._lines[self._turns[0]].take()
        del self._turn_of[key]
        return job


class _Line(Generic[T]):
    """The jobs of one turn."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[int, T] = OrderedDict()
        self._heap: list[tuple[float, int]] = []
        self._taken = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, key: int, expected_s: float, job: T) -> None:
        newest = next(reversed(self._jobs), key)
        self._jobs[key] = job
        if key < newest:
            self._jobs.move_to_end(key, last=False)
        heapq.heappush(self._heap, (-expected_s, key))

    def drop(self, key: int) -> None:
        del self._jobs[key]

    def take(self) -> tuple[int, T]:
        self._taken += 1
        if self._taken % OLDEST_EVERY == 0:
            return self._jobs.popitem(last=False)
        if len(self._heap) > 2 * len(self._jobs) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._jobs]
            heapq.heapify(self._heap)
        while True:
            key = heapq.heappop(self._heap)[1]
            if key in self._jobs:
                return key, self._jobs.pop(key)
