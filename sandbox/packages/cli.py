"""The commands `sandbox verify PACKAGE` and `sandbox judge PACKAGE SUBMISSION`.

Exit code 0: as expected (or accepted). 1: surprises (or rejected). 2: bad input, or the sandbox or a validator failed.
The modules that read and judge packages are imported on first use.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox import terminal
from sandbox.core.checks import printable
from sandbox.core.nouns import MIB, Verdict
from sandbox.differences import first_failure_lines
from sandbox.errors import CheckerError, InvalidProblem, SandboxError

if TYPE_CHECKING:
    from sandbox.packages.package import Package
    from sandbox.packages.programs import Submission
    from sandbox.packages.verify import Judged


def add_parser(actions: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        "verify",
        help="judge all submissions of a problem package, expected against found",
        description="Judge all submissions of a Kattis/ICPC problem package, and compare the verdicts with those that "
        "its authors expect.",
        epilog="Each submission has a line: ok, SURPRISE (found is not what is expected), skipped (and why) or FAILED "
        "(the validator or the sandbox did). A note names a part of the package that is not followed. Exit code 0: as "
        "expected. 1: surprises. 2: the package cannot be judged, or the sandbox or a validator failed.",
    )
    parser.add_argument("package", type=Path, help="directory of a Kattis/ICPC problem package")
    parser.add_argument(
        "--verbose", "-v", action="count", default=0, help="a line per case; -vv: with the validator's feedback"
    )
    parser.set_defaults(action=verify)
    return parser


def is_package(path: Path) -> bool:
    """Raises InvalidProblem for an archive of one."""
    if path.suffix.lower() in (".zip", ".kpp"):
        raise InvalidProblem(f"{path}: archives are not supported; unpack it, and give the directory")
    return path.is_dir()


def verify(options: argparse.Namespace) -> int:
    """Raises SandboxError, OSError."""
    from sandbox.packages.verify import judging

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
    from sandbox.packages.programs import Submission, read_program
    from sandbox.packages.verify import judging

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
    from sandbox.packages.package import read_package
    from sandbox.packages.programs import read_submissions

    if options.time_limit is not None and not 0 < options.time_limit < 1e6:
        raise SandboxError(f"--time-limit {options.time_limit:g}: must be a number of seconds above 0")
    if not is_package(path):
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
    from sandbox.packages.verify import code

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
    from sandbox.packages.verify import code

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
