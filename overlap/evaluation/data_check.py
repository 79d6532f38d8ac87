"""Checks the tests of a problem set with programs whose verdict is known (``Task.probes``).

    prompts ──▶ probes ──▶ sandbox pool ──▶ Finding per prompt ──▶ DataReport

A problem that rejects its own reference punishes right answers; one that accepts an empty answer rewards any answer.
Judging thousands of references takes minutes, so no run does it at its start: ``overlap check-data`` does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlap.core import LeftOut, Probe, Prompt, Task
from overlap.core.aio import unwrapped
from overlap.core.errors import ConfigError, one_line
from sandbox.core.nouns import Judgement, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import CheckerError, InvalidProblem, IsolationUnavailable, SandboxError, ToolchainMissing

if TYPE_CHECKING:
    from overlap.config.fields import Config
    from sandbox.pool.pool import Pool

IN_FLIGHT = 32
"""Problems whose probes are judged at once: enough to keep every worker busy."""
FAILED = "could not be judged"
OWN_FAULTS = (InvalidProblem, CheckerError)
"""Errors of the sandbox that are the problem's own: it, or its checker, can judge no program."""
JudgeProgram = Callable[[Problem, Program], Awaitable[Judgement]]
"""``sandbox.Pool.judge``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Results of the probes of one prompt."""

    id: str
    place: str
    reference: str = ""
    """Verdict of its reference, the name of one of ``OWN_FAULTS``, ``FAILED``, or "" where the data has none. Where
    there are several, that of the first that is accepted.
    """
    message: str = ""
    """Reason that the reference is not accepted."""
    empty: bool = False
    """An empty answer is accepted."""
    example: bool = False
    """An answer that prints (or returns) the first example is accepted."""
    weak: bool = False
    """Its reference was accepted on a token that a program could forge."""
    broken: str = ""
    """Reason that the problem can judge no program."""
    fault: str = ""
    """Reason that one of its probes could not be judged: our fault, which says nothing of the data."""
    remarks: tuple[str, ...] = ()
    """``Prompt.notes`` of its row."""

    @property
    def rejected(self) -> bool:
        return self.reference not in ("", FAILED, Verdict.AC)

    @property
    def faults(self) -> list[str]:
        """Faults of the problem, which would reward wrong answers or refuse right ones."""
        found = [f"its reference is rejected: {self.reference}"] if self.rejected else []
        found += ["accepts an empty answer"] if self.empty else []
        return found + ([f"can judge no program: {self.broken}"] if self.broken else [])

    @property
    def notes(self) -> list[str]:
        """Findings that its owner may intend, or that say nothing of the problem."""
        found = [*self.remarks, *(["accepts the first example printed"] if self.example else [])]
        found += ["judged beside the program, which could forge that"] if self.weak else []
        return found + ([f"{FAILED}: {self.fault}"] if self.fault else [])

    def to_json(self) -> dict[str, Any]:
        row = {name: value for name, value in asdict(self).items() if name != "remarks"}
        return {"place": row.pop("place"), "findings": self.faults, "notes": self.notes, **row}


@dataclass(frozen=True, slots=True)
class DataReport:
    """All findings, in the order of the prompts, and the rows that gave no prompt."""

    findings: tuple[Finding, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def clean(self) -> bool:
        """True when there is nothing but notes."""
        return not any(row["findings"] for row in self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """One for each row of the data, in the order of the data: what is wrong with it, and what is noted."""
        rows = [finding.to_json() for finding in self.findings]
        for row in self.left_out:
            why = [f"left out: {row.reason}"]
            findings, notes = ([], why) if row.by_choice else (why, [])
            rows.append({"place": row.place, "findings": findings, "notes": notes, "message": row.detail})
        return sorted(rows, key=lambda row: in_file(row["place"]))

    def verdict(self) -> str:
        """The last line of the report: how many rows have a finding, and how many a note alone."""
        rows = self.rows()
        bad = sum(bool(row["findings"]) for row in rows)
        noted = sum(bool(row["notes"]) for row in rows if not row["findings"])
        return f"{bad} of {len(rows)} rows have a finding, {noted} a note alone"

    def lines(self) -> list[str]:
        """The report for the user: counts by reason, each with its first place."""
        having = [f for f in self.findings if f.reference]
        rejected = [f for f in having if f.rejected]
        weak = sum(f.weak for f in having)
        said = (
            f"{len(having)} of {len(self.findings)} problems bring a reference, {len(rejected)} of those are rejected"
        )
        lines = [said + (f"; {weak} are judged beside the program, which could forge that (a note)" if weak else "")]
        for verdict, count in Counter(f.reference for f in rejected).most_common():
            first = next(f for f in rejected if f.reference == verdict)
            lines.append(f"  {count} {verdict}, first {_place(first, first.message)}")
        for text, always, found in (
            ("accept an empty answer", True, [(f, f.message) for f in self.findings if f.empty]),
            ("accept the first example printed (a note)", True, [(f, f.message) for f in self.findings if f.example]),
            ("can judge no program", False, [(f, f.broken) for f in self.findings if f.broken]),
            (f"{FAILED} by our fault (a note)", False, [(f, f.fault) for f in self.findings if f.fault]),
        ):
            if found or always:
                lines.append(f"{len(found)} {text}" + (f", first {_place(*found[0])}" if found else ""))
        return lines


def in_file(place: str) -> tuple[str, int]:
    """Return a key that sorts places such as "train.jsonl:12" in the order of their files' lines."""
    name, _, row = place.rpartition(":")
    return (name, int(row)) if row.isdecimal() else (place, 0)


def _place(finding: Finding, why: str) -> str:
    return (finding.place or finding.id) + (f" ({why})" if why else "")


async def check_problems(
    judge: JudgeProgram, task: Task, prompts: Sequence[Prompt], *, progress: Callable[[int], None] | None = None
) -> DataReport:
    """Judge all probes of ``prompts``; at most ``IN_FLIGHT`` prompts are under way.

    Raises ConfigError where the machine cannot isolate, or a package or toolchain is missing, and what the task raises.
    """
    places = asyncio.Semaphore(IN_FLIGHT)
    done = 0

    async def one(prompt: Prompt) -> Finding:
        nonlocal done
        async with places:
            finding = await _probe(judge, task, prompt)
        done += 1
        if progress is not None:
            progress(done)
        return finding

    with unwrapped():
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one(prompt)) for prompt in prompts]
        except ExceptionGroup as group:  # an error raised in an `except*` would be wrapped by Python before 3.11.4
            if (unable := group.subgroup((IsolationUnavailable, ToolchainMissing))) is None:
                raise
            raise ConfigError("verify.isolation", "auto", str(unable.exceptions[0])) from group
    return DataReport(tuple(task.result() for task in running))


async def _probe(judge: JudgeProgram, task: Task, prompt: Prompt) -> Finding:
    said: dict[str, Any] = {}
    for probe in task.probes(prompt):
        verdict, cause, weak = await _best(judge, probe)
        if probe.kind == "reference":
            said["reference"], said["message"], said["weak"] = verdict, cause, weak
        else:
            said[probe.kind] = verdict == Verdict.AC
        if verdict == FAILED:
            said.setdefault("fault", cause)
        if verdict in (error.__name__ for error in OWN_FAULTS):
            said.setdefault("broken", f"{verdict}: {cause}")
    return Finding(prompt.id, prompt.place, remarks=prompt.notes, **said)


async def _best(judge: JudgeProgram, probe: Probe) -> tuple[str, str, bool]:
    """(verdict, cause, weak) of the first program that is accepted, else of one that could not be judged, for it might
    have been, else of the first.
    """
    outcomes: list[tuple[str, str, bool]] = []
    for program in probe.programs:
        try:
            judgement = await judge(probe.problem, program)
        except SandboxError as error:
            if isinstance(error, IsolationUnavailable | ToolchainMissing):
                raise
            kind, own = type(error).__name__, isinstance(error, OWN_FAULTS)
            outcomes.append((kind, str(error), False) if own else (FAILED, f"{kind}: {error}", False))
        else:
            outcomes.append((str(judgement.verdict), _cause(judgement), judgement.weak))
            if judgement.verdict is Verdict.AC:
                return outcomes[-1]
    unjudged = [outcome for outcome in outcomes if outcome[0] == FAILED]
    return (unjudged or outcomes or [(FAILED, "there is no program", False)])[0]


def _cause(judgement: Judgement) -> str:
    failed = [case for case in judgement.cases if case.verdict is not Verdict.AC]
    if failed:
        return f"test {failed[0].index + 1}: {failed[0].message}"
    return one_line(judgement.compile_log)


def open_pool(cfg: Config, task: Task, scratch: Path) -> Pool:
    """The sandbox that a run of ``cfg`` would use, on all cores; its files are in ``scratch``.

    Raises ConfigError for a package that is not there.
    """
    from sandbox.pool.pool import Pool

    try:
        return Pool(isolation=cfg.verify.isolation, packages=task.packages, directory=str(scratch))
    except ToolchainMissing as error:
        raise ConfigError("task.packages", task.packages, str(error)) from error
