"""Try again in another jail where one fails, and decide who is at fault when judges die: a control program, the
language's own sample, is judged in the same way.

If every judge dies under a program, before and after the control program was judged correctly, the program killed them
and gets a verdict; otherwise it could pass its failure off as the sandbox's. `errors.Deaths` says how many deaths
count, and how often a run is tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from sandbox.core.checks import printable
from sandbox.core.nouns import Case, CaseResult, Isolation, Judgement, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import Deaths, Starved, TookDown, WorkerDied
from sandbox.jail.jail import Jail
from sandbox.languages.language import Language

T = TypeVar("T")

TOOK_DOWN: Final = "took down its judge"
_PROBLEM: Final = Problem("control", "stdio", (Case("3 4\n", "7"),), limits=Limits(cpu_s=10.0))


def sample(language: Language) -> tuple[Problem, Program]:
    """Return the control program and its problem."""
    return _PROBLEM, Program(language.samples.adds, language.name)


def take_down(problem: Problem, control: Judgement, error: TookDown) -> Judgement:
    """Return the judgement of a program under which judges died before the control program and after it, the last by
    `error`. Raises `error` where the sandbox may be at fault. The case is unknown, so each has this result.
    """
    if control.verdict is not Verdict.AC:
        raise error
    message = printable(f"{TOOK_DOWN}, whenever it was tried: {error}")
    return replace(
        control,
        problem_id=problem.id,
        verdict=Verdict.RE,
        cases=tuple(CaseResult(n, Verdict.RE, 0.0, 0.0, 0, message[:300]) for n in range(len(problem.cases))),
        passed=0,
        total=len(problem.cases),
        compile_log="",
        queue_s=0.0,
        run_s=0.0,
        earned=0.0 if problem.subtasks else None,
    )


class JailKeeper:
    """Holds a jail, started on first use and replaced where it fails. `close` ends it."""

    def __init__(self, isolation: Isolation, **options: Any) -> None:
        """`options`: those of Jail."""
        self._isolation, self._options = isolation, options
        self._jail: Jail | None = None

    def use(self, work: Callable[[Jail], T]) -> T:
        """Return the result of `work`, which is called anew in a fresh jail. Raises TookDown, SandboxError."""
        deaths = Deaths()
        while True:
            try:
                if self._jail is None:
                    self._jail = Jail(self._isolation, **self._options)
                    self._isolation = self._jail.tier  # the tier that `auto` found: the next jail must not be weaker
                return work(self._jail)
            except (Starved, WorkerDied) as error:
                last = deaths.add(error, handed=self._jail is not None)
                self.close()
                if last is not None:
                    raise last from None

    def close(self) -> None:
        """Safe to call twice."""
        jail, self._jail = self._jail, None
        if jail is not None:
            jail.close()


def in_fresh_jails(work: Callable[[Jail], T], isolation: Isolation, **options: Any) -> T:
    """Do one thing in a jail of its own. Raises as `JailKeeper.use`."""
    keeper = JailKeeper(isolation, **options)
    try:
        return keeper.use(work)
    finally:
        keeper.close()
