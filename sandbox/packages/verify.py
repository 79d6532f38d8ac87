"""Judges submissions of a package, and compares their verdicts with the verdicts that the authors expect.

accepted ones ── run ─▶ time limit ─▶ all the others ── run at it ─▶ Judged
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, Self

from sandbox.build.builder import Builder
from sandbox.core.nouns import CaseResult, Isolation, Judgement, Verdict
from sandbox.errors import CheckerError, InvalidProblem, Starved, ToolchainMissing, WorkerDied
from sandbox.judging.control import JailKeeper
from sandbox.judging.judge import Judge
from sandbox.kernel import inherited
from sandbox.kernel.clear import remove_tree
from sandbox.kernel.orphan_cleanup import reserve_directory
from sandbox.packages.package import Package
from sandbox.packages.programs import Submission

UNKNOWN_LIMIT_S: Final = 60.0
"""CPU seconds of a run that the time limit is still to be made of."""


@dataclass(frozen=True, slots=True)
class Judged:
    submission: Submission
    judgement: Judgement | None = None
    surprises: tuple[str, ...] = ()
    skipped: str = ""
    """Reason why it was not run."""
    failed: str = ""
    """Reason why there is no verdict: the validator or the sandbox failed."""

    @property
    def verdict(self) -> str:
        return code(self.judgement.verdict) if self.judgement else ""

    @property
    def slowest_s(self) -> float:
        return max((case.cpu_s for case in self.judgement.cases), default=0.0) if self.judgement else 0.0


def code(verdict: Verdict) -> str:
    """The format's name: AC WA TLE RTE CE."""
    return "RTE" if verdict in (Verdict.RE, Verdict.MLE, Verdict.OLE, Verdict.SEC) else verdict.value


class PackageJudge:
    """One jail for all submissions of a package; use as a context manager. Methods raise SandboxError."""

    def __init__(self, package: Package, *, isolation: Isolation = "auto", packages: Sequence[str] = ()) -> None:
        self.package = package
        self._isolation: Isolation = isolation
        self._packages = tuple(packages)
        self._runs: dict[str, Judged] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            builds = reserve_directory()  # if this process is killed, the next one that starts a jail removes it
            stack.callback(remove_tree, builds)
            inherited.make_directory(builds, 0o711)
            self._builder = Builder(os.path.join(builds, "build"))
            self._keeper = JailKeeper(self._isolation, packages=self._packages, shared=self._builder.shared)
            stack.callback(self._keeper.close)
            self._keeper.use(lambda jail: None)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def time_limit(self, given_s: float | None, submissions: Iterable[Submission]) -> tuple[float, str]:
        """CPU seconds, and where they are from. Raises InvalidProblem if nothing bounds them."""
        if given_s is not None:
            return given_s, "--time-limit"
        if self.package.time_limit_s is not None:
            return self.package.time_limit_s, self.package.time_limit_from
        slowest, origin, whys = -1.0, "", []
        for each in submissions:
            if not each.in_time:
                whys += [f"{each.name}: {each.skipped}"] * bool(each.skipped)
                continue
            self._runs[each.name] = run = self._run(each, UNKNOWN_LIMIT_S)
            if run.judgement is None or run.judgement.verdict in (Verdict.CE, Verdict.TLE):
                whys.append(f"{each.name}: {run.skipped or run.failed or run.verdict}")
            elif run.slowest_s > slowest:
                slowest, origin = run.slowest_s, each.name
        if not origin:
            raise InvalidProblem(
                f"{self.package.path}: there is no time limit, and no submission that runs here bounds it "
                f"({'; '.join(whys[:3]) or 'there is none'}); give --time-limit"
            )
        steps = max(1, math.ceil(slowest * self.package.ac_to_limit / self.package.resolution_s - 1e-9))
        return steps * self.package.resolution_s, f"{origin} took {slowest:.3f} s, times {self.package.ac_to_limit:g}"

    def judge(self, submission: Submission, limit_s: float) -> Judged:
        """Judge at a time limit, and compare with what is expected."""
        if submission.program is None:
            return Judged(submission, skipped=submission.skipped)
        judged = self._runs.get(submission.name) or self._run(submission, limit_s)
        if judged.judgement is None or not submission.expected:
            return judged
        found, expected = judged.verdict, submission.expected
        names = [f" in {self.package.names[each.index]}" for each in judged.judgement.cases]
        surprise = f"expected {' or '.join(expected)}, found {found}{names[-1] if found != 'AC' and names else ''}"
        return judged if found in expected else replace(judged, surprises=(surprise,))

    def _run(self, submission: Submission, cpu_s: float) -> Judged:
        program, asked = submission.program, ""
        assert program is not None

        def wanted(index: int, results: Sequence[CaseResult]) -> bool:
            nonlocal asked
            asked = f"{self.package.names[index]}: "
            return all(case.verdict is Verdict.AC for case in results)

        problem = replace(self.package.problem, limits=replace(self.package.problem.limits, cpu_s=cpu_s))
        try:
            done = self._keeper.use(lambda jail: Judge(jail, self._builder, wanted=wanted).judge(problem, program))
        except (ToolchainMissing, ValueError) as error:
            return Judged(submission, skipped=str(error))
        except (CheckerError, Starved, WorkerDied) as error:
            return Judged(submission, failed=f"{asked}{error}")
        return Judged(submission, done)
