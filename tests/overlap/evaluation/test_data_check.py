"""Does the data judge rightly: references, empty answers, first examples."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from finished_steps import JUDGED

from overlap.core import LeftOut, Probe, Prompt
from overlap.core.errors import ConfigError
from overlap.evaluation import data_check
from overlap.evaluation.data_check import DataReport, check_problems
from overlap.task import Task
from sandbox import Case, Judgement, Problem, Program, SandboxError, ToolchainMissing, Verdict
from sandbox.core.nouns import CaseResult
from sandbox.errors import CheckerError, InvalidProblem

SUM = Problem("sum", "stdio", (Case("1 2", "3"),))
FAULT, MISSING = "fault", "missing"
OWN = {error.__name__: error for error in (InvalidProblem, CheckerError)}


class Known(Task):
    """Its prompts carry their probes."""

    def prompts(self, tokenizer: Any, split: str) -> Sequence[Prompt]:
        return []

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float:
        return 0.0

    def probes(self, prompt: Prompt) -> Iterable[Probe]:
        return iter(prompt.data)


async def says(problem: Problem, program: Program) -> Judgement:
    """The verdict is the program's text."""
    if program.source == FAULT:
        raise SandboxError("no disk")
    if program.source in OWN:
        raise OWN[program.source]("its checker crashed")
    if program.source == MISSING:
        raise ToolchainMissing("no compiler")
    verdict = Verdict(program.source)
    case = CaseResult(0, verdict, 0.1, 0.1, 1, "" if verdict == "AC" else "it says so")
    return replace(JUDGED, verdict=verdict, cases=(case,), weak=False)


def prompt(id: str, *references: str, empty: str = "WA", example: str = "WA") -> Prompt:
    given = [Probe("reference", SUM, tuple(map(Program, references)))] if references else []
    given += [Probe("empty", SUM, (Program(empty),)), Probe("example", SUM, (Program(example),))]
    return Prompt(id, (), data=given, place=f"rows.jsonl:{id}")


def check(*prompts: Prompt) -> DataReport:
    return asyncio.run(asyncio.wait_for(check_problems(says, Known(), prompts), 30))


def test_each_reason_is_counted_with_its_first_place() -> None:
    rejected = [prompt(str(n), says) for n, says in ((2, "WA"), (3, "TLE"), (4, "WA"))]
    report = check(prompt("1", "AC"), *rejected, prompt("5", empty="AC", example="AC"))
    assert report.lines() == [
        "4 of 5 problems bring a reference, 3 of those are rejected",
        "  2 WA, first rows.jsonl:2 (test 1: it says so)",
        "  1 TLE, first rows.jsonl:3 (test 1: it says so)",
        "1 accept an empty answer, first rows.jsonl:5",
        "1 accept the first example printed (a note), first rows.jsonl:5",
    ]
    assert not report.clean
    assert report.verdict() == "4 of 5 rows have a finding, 0 a note alone"
    assert check(prompt("1", "AC")).clean


def test_a_row_that_gave_no_prompt_is_a_finding_and_what_may_be_meant_so_is_a_note() -> None:
    noted = check(prompt("1", "AC", example="AC"))
    assert (noted.clean, noted.verdict()) == (True, "0 of 1 rows have a finding, 1 a note alone")
    assert [(row["findings"], row["notes"]) for row in noted.rows()] == [([], ["accepts the first example printed"])]
    torn = replace(noted, left_out=(LeftOut("rows.jsonl:9", "malformed", "has no tests"),))
    assert not torn.clean
    assert torn.rows()[1]["findings"] == ["left out: malformed"]
    chosen = replace(noted, left_out=(LeftOut("rows.jsonl:9", "tests missing", by_choice=True),))
    assert (chosen.clean, chosen.rows()[1]["notes"]) == (True, ["left out: tests missing"])
    remarked = check(replace(prompt("1", "AC"), notes=("with weight, which has no effect",)))
    assert (remarked.clean, remarked.rows()[0]["notes"]) == (True, ["with weight, which has no effect"])
    assert (torn.rows()[1]["place"], torn.rows()[1]["message"]) == ("rows.jsonl:9", "has no tests")


@pytest.mark.parametrize(
    ("references", "verdict", "rejected"),
    [
        (("CE", "AC"), "AC", False),
        (("CE", "WA"), "CE", True),
        (("WA", FAULT), "could not be judged", False),  # it might have been the right one
        ((FAULT, "AC"), "AC", False),
    ],
)
def test_of_several_references_one_that_is_accepted_will_do(
    references: tuple[str, ...], verdict: str, rejected: bool
) -> None:
    (found,) = check(prompt("1", *references)).findings
    assert (found.reference, found.rejected, bool(found.fault)) == (verdict, rejected, verdict == data_check.FAILED)


def test_our_own_fault_is_told_as_that_and_is_no_finding_of_the_data() -> None:
    report = check(prompt("1", FAULT), prompt("2", "AC"), prompt("3", empty=FAULT))
    assert report.findings[0].reference == "could not be judged"
    assert report.clean
    assert report.lines() == [
        "2 of 3 problems bring a reference, 0 of those are rejected",
        "0 accept an empty answer",
        "0 accept the first example printed (a note)",
        "2 could not be judged by our fault (a note), first rows.jsonl:1 (SandboxError: no disk)",
    ]


@pytest.mark.parametrize("name", OWN)
def test_a_problem_that_can_judge_no_program_is_a_finding(name: str) -> None:
    report = check(prompt("1", name, empty=name, example=name), prompt("2", empty=name))
    assert not any(not finding.faults for finding in report.findings)
    assert report.lines() == [
        "1 of 2 problems bring a reference, 1 of those are rejected",
        f"  1 {name}, first rows.jsonl:1 (its checker crashed)",
        "0 accept an empty answer",
        "0 accept the first example printed (a note)",
        f"2 can judge no program, first rows.jsonl:1 ({name}: its checker crashed)",
    ]


def test_a_machine_that_cannot_judge_ends_it_and_an_error_of_the_task_comes_out_as_itself() -> None:
    class Torn(Known):
        def probes(self, prompt: Prompt) -> Iterable[Probe]:
            raise ConfigError("data.train", "rows.jsonl", "was moved")

    with pytest.raises(ConfigError, match="no compiler"):
        check(prompt("1", MISSING))
    with pytest.raises(ConfigError, match="was moved"):
        asyncio.run(check_problems(says, Torn(), [prompt("1")]))
