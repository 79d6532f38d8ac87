"""The report on a package, as lines for people and as JSON. Text of programs and validators cannot forge a line."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from sandbox.core.checks import printable
from sandbox.core.nouns import MIB
from sandbox.packages.grading import Grade
from sandbox.packages.inputs import Inputs
from sandbox.packages.package import Package
from sandbox.verify.outputs import Outputs
from sandbox.verify.runner import Judged
from sandbox.verify.verify import TimeLimit


def print_lines(lines: Iterable[str]) -> None:
    """Print each on a line of its own, in any terminal's encoding."""
    encoding = sys.stdout.encoding or "ascii"
    for line in lines:
        print(printable(line).encode(encoding, "backslashreplace").decode(encoding), flush=True)


def log_lines(log: str) -> list[str]:
    """Return the compiler's output, marked as foreign."""
    return [f"| {line}" for line in log.rstrip().splitlines()]


def package_lines(package: Package) -> Iterator[str]:
    settings = package.settings
    cases, groups = len(package.cases), sum(1 for _ in package.tree.groups()) - 1
    decides = "its own output validator" if package.validator else "the default output validator"
    types = ", ".join(sorted(settings.types))
    yield f"{printable(package.name)}: {settings.version}, {types}; {cases} cases in {groups} groups; {decides}"
    yield from note_lines(package)


def note_lines(package: Package) -> Iterator[str]:
    yield from (f"note: {printable(note)}" for note in package.notes)


def limit_line(limit: TimeLimit) -> str:
    return f"time limit {limit.seconds:g} s ({printable(limit.origin)})"


def input_lines(inputs: Inputs, *, verbose: int) -> Iterator[str]:
    """A line for all inputs, and one for each validator that refuses some of them; with `verbose`, for each refusal."""
    if not inputs.validators:
        return
    invalid = f", {inputs.invalid - len(inputs.passed_over)} of {inputs.invalid} invalid ones refused" * bool(
        inputs.invalid
    )
    word = "SURPRISE" if inputs.surprises else "ok"
    yield f"{word:8}  inputs: {inputs.accepted} accepted by {', '.join(map(printable, inputs.validators))}{invalid}"
    for name in inputs.validators:
        mine = [each for each in inputs.refusals if each.validator == name]
        for index, each in enumerate(mine if verbose else mine[:1]):
            more = f" (and {len(mine) - 1} more)" if len(mine) > 1 and not index and not verbose else ""
            what = f"refuses data/{each.case}.in: " if each.case else ""
            yield f"          ! {printable(name)} {what}{printable(each.why)}{more}"
    yield from (f"          ! no input validator refuses data/{printable(name)}.in" for name in inputs.passed_over)


def output_lines(outputs: Outputs) -> Iterator[str]:
    """A line for all outputs of which the author knows what they are, and one for each that is judged otherwise."""
    if not outputs.valid and not outputs.invalid:
        return
    word = "SURPRISE" if outputs.surprises else "ok"
    yield f"{word:8}  outputs: {outputs.valid} valid, {outputs.invalid} invalid"
    yield from (f"          ! the output validator {printable(text)}" for text in outputs.surprises)


def submission_lines(judged: Judged, width: int, *, scoring: bool, verbose: int) -> Iterator[str]:
    """A line for the submission and one for each surprise and note; with `verbose`, one for each case."""
    name = printable(judged.name)
    if judged.skipped:
        yield f"skipped   {name:{width}}  {printable(judged.skipped)}"
    elif judged.failed:
        yield f"FAILED    {name:{width}}  {printable(judged.failed)[:300]}"
    if judged.skipped or judged.failed:
        yield from (f"          note: {printable(text)}" for text in judged.notes)
        return
    word = "SURPRISE" if judged.surprises else "ok"
    yield f"{word:8}  {name:{width}}  {_grade(judged.grade, scoring):10}  {judged.slowest_s:7.3f} s  {judged.expected}"
    yield from (f"          ! {printable(text)}" for text in judged.surprises)
    yield from (f"          note: {printable(text)}" for text in judged.notes)
    if judged.outcome is not None and not judged.outcome.compiled and judged.judgement is not None:
        yield from (f"          {line}" for line in log_lines(judged.judgement.compile_log)[:20])
    cases = list(case_lines(judged, feedback=verbose > 1))
    if not verbose:  # the first case that was not accepted
        cases = [line for line in cases if judged.surprises and not line.startswith("AC ")][:1]
    yield from (f"          {line}" for line in cases)


def case_lines(judged: Judged, *, feedback: bool) -> Iterator[str]:
    if judged.outcome is None:
        return
    for name, case in judged.cases:
        verdict = judged.outcome.results[name].verdict
        usage = f"{case.cpu_s:8.3f} s cpu {case.wall_s:8.3f} s wall {case.memory_bytes / MIB:8.1f} MiB"
        message = f"{case.verdict}: {case.message}" if case.message else ""
        yield f"{verdict:4} {printable(name):24} {usage}  {printable(message)}".rstrip()
        if feedback:
            yield from (f"     {file}: {printable(line)}" for file, text in case.feedback for line in text.splitlines())


def group_lines(judged: Judged, *, scoring: bool) -> Iterator[str]:
    if judged.outcome is not None:
        for name, grade in judged.outcome.grades.items():
            if name:
                yield f"{_grade(grade, scoring):10} {printable(name)}"


def final_line(judged: Judged, limit: TimeLimit, *, scoring: bool) -> str:
    done = judged.judgement
    how = "" if done is None else f", tier {done.tier}, {done.toolchain}"
    accepted = 0 if judged.outcome is None else sum(each.verdict == "AC" for each in judged.outcome.results.values())
    return (
        f"{_grade(judged.grade, scoring)}  {accepted} of {len(judged.cases)} cases that ran, {limit_line(limit)}{how}"
    )


def _grade(grade: Grade, scoring: bool) -> str:
    return f"{grade.verdict} {grade.score:g}" if scoring and grade.verdict != "CE" else grade.verdict


def as_json(judged: Judged, *, scoring: bool) -> dict[str, Any]:
    """Numbers that JSON has not (an infinite score) are texts."""
    compiled = judged.outcome is not None and judged.outcome.compiled
    results = judged.outcome.results if judged.outcome else {}
    grades = judged.outcome.grades if judged.outcome else {}
    done = judged.judgement
    return {
        "name": judged.name,
        "language": judged.language,
        "skipped": judged.skipped or None,
        "failed": judged.failed or None,
        "verdict": None if judged.skipped or judged.failed else judged.grade.verdict,
        "score": _number(judged.grade.score) if scoring and compiled else None,
        "slowest_s": judged.slowest_s,
        "expected": judged.expected,
        "surprises": list(judged.surprises),
        "notes": list(judged.notes),
        "groups": [
            {"name": name, "verdict": grade.verdict, "score": _number(grade.score) if scoring else None}
            for name, grade in grades.items()
        ],
        "cases": [
            {
                "name": name,
                "verdict": results[name].verdict,
                "found": case.verdict.value,
                **{key: getattr(case, key) for key in ("cpu_s", "wall_s", "memory_bytes", "message")},
                "feedback": dict(case.feedback),
            }
            for name, case in judged.cases
        ],
        "compile_log": done.compile_log if done else "",
        "tier": done.tier if done else None,
        "toolchain": done.toolchain if done else None,
    }


def _number(score: float) -> float | str:
    return score if math.isfinite(score) else str(score)
