"""The commands `sandbox verify PACKAGE` and `sandbox judge PACKAGE SUBMISSION`: verdicts of submissions, compared with
the verdicts that the authors expect.

accepted ones ── run ─▶ time limit ─▶ all the others ── run at it ─▶ Judged

Exit code 0: as expected (or accepted). 1: surprises (or rejected). 2: bad input, or the sandbox or a validator failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sandbox import terminal
from sandbox.build.builder import Builder
from sandbox.core.checks import printable
from sandbox.core.nouns import MIB, CaseResult, Isolation, Judgement, Verdict
from sandbox.differences import first_failure_lines
from sandbox.errors import CheckerError, InvalidProblem, SandboxError, Starved, ToolchainMissing, WorkerDied
from sandbox.judging.control import JailKeeper
from sandbox.judging.judge import Judge
from sandbox.kernel import inherited
from sandbox.kernel.clear import remove_tree
from sandbox.kernel.orphan_cleanup import reserve_directory
from sandbox.packages.package import Package, read_package
from sandbox.packages.programs import Submission, read_program, read_submissions

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


@contextmanager
def judging(package: Package, isolation: Isolation, packages: Sequence[str]) -> Iterator[PackageJudge]:
    """One jail for all submissions of a package. Raises SandboxError."""
    with ExitStack() as stack:
        builds = reserve_directory()  # if this process is killed, the next one that starts a jail removes it
        stack.callback(remove_tree, builds)
        inherited.make_directory(builds, 0o711)
        builder = Builder(os.path.join(builds, "build"))
        keeper = JailKeeper(isolation, packages=tuple(packages), shared=builder.shared)
        stack.callback(keeper.close)
        keeper.use(lambda jail: None)
        yield PackageJudge(package, builder, keeper)


class PackageJudge:
    """See `judging`. Methods raise SandboxError."""

    def __init__(self, package: Package, builder: Builder, keeper: JailKeeper) -> None:
        self.package, self._builder, self._keeper = package, builder, keeper
        self._runs: dict[str, Judged] = {}

    def time_limit(self, given_s: float | None, submissions: Iterable[Submission]) -> tuple[float, str]:
        """CPU seconds, and where they are from. Raises InvalidProblem if nothing bounds them."""
        if given_s is not None:
            return given_s, "--time-limit"
        if self.package.time_limit is not None:
            return self.package.time_limit
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


# --- the commands -----------------------------------------------------------------------------------------------------


def verify(options: argparse.Namespace) -> int:
    """Raises SandboxError, OSError."""
    package, submissions = _read(options, options.package)
    say = (lambda *lines: None) if options.json else _print
    decides = "the default output validator" if package.problem.compare == "kattis" else "its own output validator"
    types = ", ".join(sorted(package.types))
    say(f"{package.problem.id}: {package.version}, {types}; {len(package.names)} cases; {decides}")
    say(*(f"note: {note}" for note in package.notes))
    found: list[Judged] = []
    with judging(package, options.isolation, options.packages) as jailed:
        limit = jailed.time_limit(options.time_limit, submissions)
        say(f"time limit {limit[0]:g} s ({limit[1]})")
        for submission in submissions:
            found.append(jailed.judge(submission, limit[0]))
            say(*_submission_lines(package, found[-1], options.verbose))
    failed = [each for each in found if each.failed]
    ran = [each for each in found if each.judgement]
    surprises = sum(len(each.surprises) for each in found)
    if options.json:
        report = _head(package, limit) | {"notes": package.notes, "cases": package.names, "surprises": surprises}
        print(json.dumps(report | {"submissions": [_as_json(package, each) for each in found]}))
    more = f", {len(failed)} failed" if failed else ""
    say(f"{len(ran)} submissions judged, {len(found) - len(ran) - len(failed)} skipped{more}, {surprises} surprises")
    if failed:
        raise CheckerError(f"submissions/{failed[0].submission.name}: {failed[0].failed}")
    if not ran:
        raise InvalidProblem(f"{options.package}: no submission could be judged")
    return 1 if surprises else 0


def judge_package(options: argparse.Namespace) -> int:
    """`sandbox judge` with a directory for a problem: one submission, which need not be in the package. Raises
    SandboxError, OSError.
    """
    if options.all:
        raise SandboxError("--all is for problem.json; a package is judged until a case fails")
    package, submissions = _read(options, options.problem)
    path = options.program.absolute()
    root = package.path.absolute() if path.is_relative_to(package.path.absolute()) else path.parent
    submission = Submission(path.name, read_program(path, root, options.language or ""))
    with judging(package, options.isolation, options.packages) as jailed:
        limit = jailed.time_limit(options.time_limit, submissions)
        judged = jailed.judge(submission, limit[0])
    done = judged.judgement
    if done is None:
        raise SandboxError(f"{path}: {judged.failed or judged.skipped}")
    if options.json:
        print(json.dumps(_head(package, limit) | {"package_notes": package.notes} | _as_json(package, judged)))
    else:
        _print(*(f"note: {note}" for note in package.notes), *_case_lines(package, judged, feedback=False))
        where = f"{done.passed} of {len(done.cases)} cases that ran, time limit {limit[0]:g} s ({limit[1]})"
        _print(f"{judged.verdict}  {where}, tier {done.tier}, {done.toolchain}")
        if options.diff:
            terminal.print_coloured(first_failure_lines(package.problem, done.cases))
    return 0 if judged.verdict == "AC" else 1


def _read(options: argparse.Namespace, path: Path) -> tuple[Package, list[Submission]]:
    if options.time_limit is not None and not 0 < options.time_limit < 1e6:
        raise SandboxError(f"--time-limit {options.time_limit:g}: must be a number of seconds above 0")
    if path.suffix.lower() in (".zip", ".kpp"):
        raise InvalidProblem(f"{path}: archives are not supported; unpack it, and give the directory")
    if not path.is_dir():
        raise InvalidProblem(f"{path}: is no directory; give the directory of a problem package")
    package = read_package(path)
    scoring = "scoring" in package.types
    return package, list(read_submissions(path, legacy=package.legacy, scoring=scoring))


def _print(*lines: str) -> None:
    """Print each on a line of its own: text of a program cannot forge a line."""
    terminal.print_coloured(map(printable, lines))


def _submission_lines(package: Package, judged: Judged, verbose: int) -> Iterator[str]:
    """A line for the submission, each surprise and each note; with `verbose`, one for each case."""
    submission = judged.submission
    if judged.judgement is None:
        yield f"{'FAILED' if judged.failed else 'skipped':8}  {submission.name}  {judged.failed or judged.skipped}"
    else:
        word = "SURPRISE" if judged.surprises else "ok"
        found = f"{judged.verdict:4}  {judged.slowest_s:7.3f} s"
        yield f"{word:8}  {submission.name:40}  {found}  {'/'.join(submission.expected)}"
    yield from (f"          ! {text}" for text in judged.surprises)
    yield from (f"          note: {text}" for text in submission.notes)
    lines = list(_case_lines(package, judged, feedback=verbose > 1))
    if not verbose:  # the compiler's log, or the case that was not accepted
        lines = [line for line in lines if judged.surprises and not line.startswith("AC ")]
    yield from (f"          {line}" for line in lines)


def _case_lines(package: Package, judged: Judged, *, feedback: bool) -> Iterator[str]:
    if judged.judgement is None:
        return
    if judged.judgement.verdict is Verdict.CE:
        yield from (f"| {line}" for line in judged.judgement.compile_log.rstrip().splitlines()[:20])
    for case in judged.judgement.cases:
        usage = f"{case.cpu_s:8.3f} s cpu {case.wall_s:8.3f} s wall {case.memory_bytes / MIB:8.1f} MiB"
        message = f"{case.verdict}: {case.message}" if case.message else ""
        yield f"{code(case.verdict):4} {printable(package.names[case.index]):24} {usage}  {message}".rstrip()
        if feedback:
            yield from (f"     {file}: {line}" for file, text in case.feedback for line in text.splitlines())


def _head(package: Package, limit: tuple[float, str]) -> dict[str, Any]:
    head = {"package": package.problem.id, "version": package.version, "types": sorted(package.types)}
    return head | {"time_limit_s": limit[0], "time_limit_from": limit[1]}


def _as_json(package: Package, judged: Judged) -> dict[str, Any]:
    submission, done = judged.submission, judged.judgement
    report: dict[str, Any] = {"cases": [], **(done.to_json() if done else {})} | {
        "name": submission.name,
        "expected": "/".join(submission.expected),
        "surprises": judged.surprises,
        "notes": submission.notes,
        "skipped": judged.skipped or None,
        "failed": judged.failed or None,
        "slowest_s": judged.slowest_s,
        "verdict": judged.verdict or None,
    }
    for case in report["cases"]:
        case |= {"name": package.names[case["index"]], "found": case["verdict"], "feedback": dict(case["feedback"])}
        case["verdict"] = code(Verdict(case["verdict"]))
    return report
