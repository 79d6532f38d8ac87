"""Judges submissions of a package, and holds what is found against what their authors say.

    lower bounds (accepted) ── run ─▶ time limit ─▶ all the others ── run ─▶ Outcome at that limit ─▶ surprises

A submission runs once, under the time limit with its safety margin; a case that took longer than the limit itself is
TLE. So one run says what the verdict is, and whether a little more time would have changed it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sandbox.core.nouns import Isolation
from sandbox.errors import CheckerError, InvalidProblem, InvalidProgram, Starved, ToolchainMissing, WorkerDied
from sandbox.languages.table import find_language
from sandbox.packages.expectations import Expected, Rule, surprises
from sandbox.packages.inputs import Inputs
from sandbox.packages.links import check_links
from sandbox.packages.package import Package
from sandbox.packages.programs import Sources, Unsupported, read_sources
from sandbox.verify.outputs import Outputs
from sandbox.verify.runner import Judged, Runner

UNKNOWN_LIMIT_S: Final = 60.0
"""CPU seconds of a run that the time limit is still to be made of."""
LIMIT_S_MAX: Final = 1e6


@dataclass(frozen=True, slots=True)
class Submission:
    name: str
    """Relative to submissions/."""
    sources: Sources
    expected: Expected


@dataclass(frozen=True, slots=True)
class TimeLimit:
    seconds: float
    origin: str


class PackageVerifier:
    """Of one package, by a runner that is ready."""

    def __init__(self, package: Package, runner: Runner) -> None:
        self.package = package
        self.runner = runner

    def verify(self, time_limit_s: float | None = None) -> Iterator[Judged | TimeLimit | Inputs | Outputs]:
        """Inputs, outputs, the time limit, each submission as it is done. Raises InvalidProblem without a limit."""
        known, rest = self._submissions()
        yield self.runner.check_inputs()
        yield self.runner.check_outputs()
        limit = self.fixed_limit(time_limit_s)
        first: dict[str, Judged] = {}
        if limit is None:
            limit, first = self._infer(known)
        yield limit
        yield from rest
        for submission in sorted(
            known, key=lambda each: (each.name not in first, bool(each.expected.upper), each.name)
        ):
            yield self._verify(submission, limit, first.get(submission.name))

    def fixed_limit(self, time_limit_s: float | None = None) -> TimeLimit | None:
        timing = self.package.settings.timing
        if time_limit_s is not None:
            return TimeLimit(time_limit_s, "--time-limit")
        return None if timing.fixed_s is None else TimeLimit(timing.fixed_s, timing.fixed_by)

    def inferred_limit(self) -> TimeLimit:
        """From the submissions that bound it. Raises InvalidProblem when there are none."""
        return self._infer(self._submissions()[0])[0]

    def _submissions(self) -> tuple[list[Submission], list[Judged]]:
        """Those of which something is said, and those that are passed over."""
        author, folder = self.package.author, self.package.path / "submissions"
        known, rest = [], []
        for path in sorted(folder.glob("*")):
            if path.is_file() and path.name[0] not in ".-" and path != author.file:
                why = "it lies in no folder that says what is expected of it"
                rest.append(Judged(path.name, None, None, skipped=why))
        for name, path in self.package.submissions():
            try:
                sources = read_sources(path, self.package.leaving)
            except (InvalidProblem, OSError) as error:
                rest.append(
                    Judged(name, None, None, skipped=str(error).replace(f"{path}: ", "").replace(f"{folder}/", ""))
                )
                continue
            expected = author.expected(name, sources)
            if expected.rules:
                known.append(Submission(name, sources, expected))
            else:
                why = f"nobody says what is expected of submissions/{path.parent.name}/"
                rest.append(Judged(name, None, None, skipped=why, notes=expected.notes))
        return known, rest

    def _infer(self, known: list[Submission]) -> tuple[TimeLimit, dict[str, Judged]]:
        timing = self.package.settings.timing
        runs: dict[str, Judged] = {}
        whys: dict[str, str] = {}
        slowest, origin = -1.0, ""
        for submission in known:
            if not submission.expected.lower:
                continue
            try:
                judged = self.runner.run(submission.sources, submission.expected, UNKNOWN_LIMIT_S, math.inf)
            except (Unsupported, ToolchainMissing):
                continue
            except (CheckerError, InvalidProgram) as error:
                whys[submission.name] = str(error)
                continue
            runs[submission.name] = judged
            taken = max((_slowest(judged, rule) for rule in submission.expected.lower), default=0.0)
            if judged.cases and slowest < taken <= UNKNOWN_LIMIT_S:
                slowest, origin = taken, submission.name
        if not origin:
            too_long = f"takes more than {UNKNOWN_LIMIT_S:g} s"
            whys |= {name: too_long if judged.cases else "does not compile" for name, judged in runs.items()}
            why = "; ".join(f"{name}: {text}" for name, text in whys.items())
            which = "no submission that runs here bounds it" + (f" ({why})" if why else "")
            raise InvalidProblem(f"{self.package.path}: there is no time limit, and {which}; give --time-limit")
        steps = max(1, math.ceil(slowest * timing.ac_to_limit / timing.resolution_s - 1e-9))
        limit = steps * timing.resolution_s
        if limit > LIMIT_S_MAX:
            raise InvalidProblem(
                f"{self.package.path}: {origin} took {slowest:.3f} s, and {timing.ac_to_limit:g} times that is no time "
                "limit; give --time-limit"
            )
        return TimeLimit(limit, f"{origin} took {slowest:.3f} s, times {timing.ac_to_limit:g}"), runs

    def _verify(self, submission: Submission, limit: TimeLimit, judged: Judged | None) -> Judged:
        said = submission.expected
        high = limit.seconds * self.package.settings.timing.limit_to_tle
        try:
            judged = judged or self.runner.run(submission.sources, said, high, limit.seconds)
            outcome = self.runner.outcome(judged, limit.seconds)
        except (Unsupported, ToolchainMissing, InvalidProgram) as error:
            return Judged(submission.name, None, None, expected=said.says(), skipped=str(error), notes=said.notes)
        except (CheckerError, Starved, WorkerDied) as error:
            return Judged(submission.name, None, None, expected=said.says(), failed=str(error), notes=said.notes)
        notes = [*said.notes, *judged.notes, *self._margins(submission, judged, limit)]
        found = (*surprises(said, outcome), *self.runner.grader.out_of_range(outcome.grades))
        return replace(
            judged, name=submission.name, outcome=outcome, expected=said.says(), surprises=found, notes=tuple(notes)
        )

    def _margins(self, submission: Submission, judged: Judged, limit: TimeLimit) -> Iterator[str]:
        """Where the safety margins around the time limit do not hold on this machine."""
        timing = self.package.settings.timing
        for rule in submission.expected.lower:
            taken = _slowest(judged, rule)
            if limit.seconds < taken * timing.ac_to_limit * (1 - 1e-9):
                yield f"took {taken:.3f} s, and {timing.ac_to_limit:g} times that exceeds the limit"
        for rule in submission.expected.upper:
            taken = _slowest(judged, rule)
            if limit.seconds < taken < limit.seconds * timing.limit_to_tle * 0.99:
                yield f"took {taken:.3f} s, less than {timing.limit_to_tle:g} times the limit"


def _slowest(judged: Judged, rule: Rule) -> float:
    return max((result.cpu_s for name, result in judged.cases if rule.covers(name)), default=0.0)


def judge_one(
    package: Package,
    path: Path,
    *,
    time_limit_s: float | None = None,
    isolation: Isolation = "auto",
    packages: Sequence[str] = (),
    language: str = "",
) -> tuple[Judged, TimeLimit]:
    """One submission, which need not lie in the package. Raises Unsupported, SandboxError."""
    if path.is_dir():
        check_links(path)
    sources = read_sources(path.absolute(), [link.absolute() for link in package.leaving])
    code = find_language(language).package_code if language else ""
    said = Expected((), code)
    with Runner(package, isolation=isolation, packages=packages) as runner:
        runner.program(sources, said)  # before the time limit is looked for, which takes long
        verifier = PackageVerifier(package, runner)
        limit = verifier.fixed_limit(time_limit_s) or verifier.inferred_limit()
        judged = runner.run(sources, said, limit.seconds, limit.seconds)
        return replace(judged, name=path.name, outcome=runner.outcome(judged, limit.seconds)), limit
