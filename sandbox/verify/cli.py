"""The commands `sandbox verify PACKAGE` and `sandbox judge PACKAGE SUBMISSION`.

Exit code 0: as expected (or accepted). 1: surprises (or rejected). 2: bad input, or the sandbox failed. The modules
that read and judge packages are imported on first use.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandbox import terminal
from sandbox.differences import first_failure_lines
from sandbox.errors import CheckerError, InvalidProblem, SandboxError

if TYPE_CHECKING:
    from sandbox.packages.inputs import Inputs
    from sandbox.packages.package import Package
    from sandbox.verify.outputs import Outputs
    from sandbox.verify.runner import Judged
    from sandbox.verify.verify import TimeLimit


def add_parser(actions: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        "verify",
        help="judge all submissions of a problem package, expected against found",
        description="Judge all submissions of a Kattis/ICPC problem package, and hold what is found against what its "
        "authors expect.",
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
    from sandbox.packages.inputs import Inputs
    from sandbox.packages.package import read_package
    from sandbox.verify import report
    from sandbox.verify.outputs import Outputs
    from sandbox.verify.runner import Runner
    from sandbox.verify.verify import PackageVerifier, TimeLimit

    _check_time_limit(options)
    if not is_package(options.package):
        raise InvalidProblem(f"{options.package}: is no directory; give the directory of a problem package")
    package = read_package(options.package)
    scoring = package.settings.scoring
    if not options.json:
        report.print_lines(report.package_lines(package))
    found: list[Judged] = []
    inputs, outputs, limit = Inputs(), Outputs(), None
    width = max((len(name) for name, _ in package.submissions()), default=0)
    with Runner(package, isolation=options.isolation, packages=options.packages) as runner:
        for each in PackageVerifier(package, runner).verify(options.time_limit):
            if isinstance(each, TimeLimit):
                limit = each
                lines = [report.limit_line(each)]
            elif isinstance(each, Inputs):
                inputs = each
                lines = list(report.input_lines(each, verbose=options.verbose))
            elif isinstance(each, Outputs):
                outputs = each
                lines = list(report.output_lines(each))
            else:
                found.append(each)
                lines = list(report.submission_lines(each, width, scoring=scoring, verbose=options.verbose))
            if not options.json:
                report.print_lines(lines)
    failed = [each for each in found if each.failed]
    ran = [each for each in found if not each.skipped and not each.failed]
    surprises = inputs.surprises + len(outputs.surprises) + sum(len(each.surprises) for each in found)
    if options.json:
        print(json.dumps(_verified(package, inputs, outputs, limit, found, surprises)))
    else:
        skipped = len(found) - len(ran) - len(failed)
        more = f", {len(failed)} failed" if failed else ""
        print(f"{len(ran)} submissions judged, {skipped} skipped{more}, {surprises} surprises")
    if failed:
        raise CheckerError(f"submissions/{failed[0].name}: {failed[0].failed}")
    if not ran:
        raise InvalidProblem(f"{options.package}: no submission could be judged")
    return 1 if surprises else 0


def _verified(
    package: Package, inputs: Inputs, outputs: Outputs, limit: TimeLimit | None, found: list[Judged], surprises: int
) -> dict[str, Any]:
    from sandbox.verify import report

    settings = package.settings
    return {
        "package": package.name,
        "version": settings.version,
        "types": sorted(settings.types),
        "notes": list(package.notes),
        "time_limit_s": limit.seconds if limit else None,
        "time_limit_from": limit.origin if limit else None,
        "cases": [case.name for case in package.cases],
        "inputs": asdict(inputs),
        "outputs": asdict(outputs),
        "surprises": surprises,
        "submissions": [report.as_json(each, scoring=settings.scoring) for each in found],
    }


def judge_package(options: argparse.Namespace) -> int:
    """`sandbox judge` with a directory for a problem. Raises SandboxError, OSError."""
    from sandbox.packages.package import read_package
    from sandbox.packages.programs import Unsupported
    from sandbox.verify import report
    from sandbox.verify.verify import judge_one

    _check_time_limit(options)
    if options.all:
        raise SandboxError(
            "--all is for problem.json; the settings of a package say which cases are run after one that fails"
        )
    package = read_package(options.problem)
    scoring = package.settings.scoring
    try:
        judged, limit = judge_one(
            package,
            options.program,
            time_limit_s=options.time_limit,
            isolation=options.isolation,
            packages=options.packages,
            language=options.language or "",
        )
    except Unsupported as error:
        raise SandboxError(f"{options.program}: {error}") from error
    if options.json:
        head: dict[str, Any] = {"package": package.name, "package_notes": list(package.notes)}
        head |= {"time_limit_s": limit.seconds, "time_limit_from": limit.origin}
        print(json.dumps(head | report.as_json(judged, scoring=scoring)))
    else:
        report.print_lines([*report.note_lines(package), *_judged_lines(judged, limit, scoring)])
        if options.diff and judged.judgement is not None:
            lines = first_failure_lines(package.problem(limit.seconds), judged.judgement.cases)
            terminal.print_coloured(lines)
    return 0 if judged.grade.verdict == "AC" else 1


def _judged_lines(judged: Judged, limit: TimeLimit, scoring: bool) -> list[str]:
    from sandbox.verify import report

    log = judged.judgement.compile_log if judged.judgement else ""
    lines = [*report.log_lines(log), *(f"note: {note}" for note in judged.notes)]
    lines += [*report.case_lines(judged, feedback=False), *report.group_lines(judged, scoring=scoring)]
    return [*lines, report.final_line(judged, limit, scoring=scoring)]


def _check_time_limit(options: argparse.Namespace) -> None:
    limit = options.time_limit
    if limit is not None and not 0 < limit < 1e6:
        raise SandboxError(f"--time-limit {limit:g}: must be a number of seconds above 0")
