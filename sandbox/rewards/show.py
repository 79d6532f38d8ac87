"""`sandbox zoo --show ID`: one program of the zoo, why it is there, and what the judge says of it now.
`sandbox check-reward TARGET --show ID`: also what a reward function says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from itertools import zip_longest
from typing import Any

from sandbox import terminal
from sandbox.core.checks import printable
from sandbox.core.nouns import Judgement, Program
from sandbox.core.problem import Problem
from sandbox.differences import first_failure_lines
from sandbox.errors import SandboxError
from sandbox.rewards.check import Options, RewardFinding, check_reward
from sandbox.zoo import catalogue
from sandbox.zoo.catalogue import entries, labelled_programs
from sandbox.zoo.exhibits import Attack, Entry, LabelledProgram

Shown = tuple[LabelledProgram, Entry | None, Attack | None]


def show(name: str, judge: Callable[[Problem, Program], Judgement]) -> int:
    """Print one program by its id, or all of an entry by the entry's id or row, with what `judge` says of each.

    Returns 0 where each verdict is right, else 1. Raises SandboxError for an unknown name, with similar names,
    and for failures of the sandbox.
    """
    right = True
    for number, shown in enumerate(_find(name)):
        if number:
            print()
        right &= _print(shown, judge)
    return 0 if right else 1


def show_checked(
    name: str, samples: Sequence[LabelledProgram], how: Options, judge: Callable[[Problem, Program], Judgement]
) -> int:
    """Print one of the samples by its id, what `judge` says of it, and what the reward function of `how` says and why
    that is wrong.

    Returns 0 where nothing is wrong with the rewards, else 1. Raises SandboxError.
    """
    found = {sample.id: sample for sample in samples}
    _refuse_unknown(name, found, "no sample has this id", "a run without --show lists those with findings")
    findings, tried = check_reward(how, [found[name]])
    _print(_known().get(name, [(found[name], None, None)])[0], judge)
    terminal.print_coloured(_replied(how, findings.style, tried[0].replies, findings.findings))
    return 0 if findings.clean else 1


def _replied(how: Options, style: str, replies: list[dict[str, Any]], findings: list[RewardFinding]) -> Iterator[str]:
    for number, reply in enumerate(replies, 1):
        said = "did not answer" if reply["hang"] else reply["error"] or f"returned {reply['score']}"
        took = f" after {reply['latency_s'] * 1e3:.1f} ms" if reply["latency_s"] is not None else ""
        yield f"  call {number} of {printable(how.target)} ({style}): {printable(said)}{took}"
    for found in findings:
        yield f"  {found.severity}: {found.kind}" + (f", {printable(found.detail)}" if found.detail else "")
    if not findings:
        yield "  nothing is wrong with that"


@cache
def _known() -> dict[str, list[Shown]]:
    """Return what can be shown, by its id: a program alone, or all of an entry or a row."""
    known: dict[str, list[Shown]] = {}
    for entry in entries():
        programs = zip_longest(labelled_programs([entry], harmful=True), entry.attacks)
        rows: list[Shown] = [(program, entry, attack) for program, attack in programs]
        known |= {row[0].id: [row] for row in rows} | {entry.id: rows}
        known.setdefault(str(entry.row), []).extend(rows)
    return known | {program.id: [(program, None, None)] for program in catalogue.labelled_pairs()}


def _find(name: str) -> list[Shown]:
    known = _known()
    _refuse_unknown(name, known, "no program or entry of the zoo has this id", "`sandbox zoo` lists the entries")
    if not known[name]:
        raise SandboxError(f"--show {printable(name)}: this row has no program; a test attacks our own process instead")
    return known[name]


def _refuse_unknown(name: str, known: Collection[str], why: str, way_out: str) -> None:
    if name not in known:
        near = get_close_matches(name, known, n=4, cutoff=0.5) or [each for each in known if name and name in each][:4]
        hint = f"near it: {', '.join(near)}" if near else way_out
        raise SandboxError(f"--show {printable(name)}: {why}; {hint}")


def _print(shown: Shown, judge: Callable[[Problem, Program], Judgement]) -> bool:
    """Print a program, and what `judge` says of it. Returns whether that is right."""
    program, _, attack = shown
    terminal.print_coloured(_about(*shown))
    done = judge(program.problem, program.program)
    terminal.print_coloured(_said(done, program, attack))
    return done.verdict in attack.verdicts(done.tier) if attack else (done.verdict == "AC") == program.right


def _about(program: LabelledProgram, entry: Entry | None, attack: Attack | None) -> Iterator[str]:
    problem = program.problem
    kind = "hostile" if program.hostile else "right" if program.right else "wrong"
    yield f"{program.id}: a {kind} program in {program.program.language}"
    if entry is not None:
        yield f"  row {entry.row}: {printable(entry.title)}"
        yield (
            f"  what stops it: {printable(entry.mechanism)}"
            if attack
            else "  does honestly what this row's attacks abuse"
        )
    if attack is not None and attack.fools:
        yield f"  careless graders that pay it: {attack.fools}"
    yield f"  problem {problem.id}: {problem.kind}{f', function {problem.fn_name}' if problem.fn_name else ''}"
    for case in problem.cases[:3]:
        expected = "" if case.expected is None else f" -> {case.expected!r}"
        yield printable(f"    {case.input!r}{expected}")
    if len(problem.cases) > 3:
        yield f"    and {len(problem.cases) - 3} more"
    for number, line in enumerate(program.program.source.rstrip("\n").split("\n"), 1):
        yield printable(f"  {number:4} | {line}".rstrip(), "")


def _said(done: Judgement, program: LabelledProgram, attack: Attack | None) -> Iterator[str]:
    want = " or ".join(attack.verdicts(done.tier)) if attack else "AC" if program.right else "not AC"
    yield f"  expected {want}; the sandbox says {done.verdict}, tier {done.tier}" + ", weak" * done.weak
    for line in done.compile_log.rstrip().split("\n")[:20] if done.compile_log.strip() else ():
        yield printable(f"  | {line}")
    yield from (f"  {line}" for line in first_failure_lines(program.problem, done.cases)[1:])
