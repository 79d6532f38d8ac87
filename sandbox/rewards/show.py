"""`sandbox zoo --show ID`: one program of the zoo, why it is there, and what the judge says of it now.
`sandbox check-reward TARGET --show ID`: also what a reward function says of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from sandbox import terminal
from sandbox.core.checks import printable
from sandbox.core.nouns import Judgement, Program
from sandbox.core.problem import Problem
from sandbox.differences import first_failure_lines
from sandbox.errors import SandboxError
from sandbox.rewards.check import Options, RewardFinding, check_reward
from sandbox.zoo import pairs
from sandbox.zoo.catalogue import entries, labelled_programs
from sandbox.zoo.exhibits import Attack, Entry, LabelledProgram


def show(name: str, judge: Callable[[Problem, Program], Judgement]) -> int:
    """Print one program by its id, or all of an entry by the entry's id or row, with what `judge` says of each.

    Returns 0 where each verdict is right, else 1. Raises SandboxError for an unknown name, with similar names,
    and for failures of the sandbox.
    """
    found = _find(name)
    right = True
    for number, (program, entry, attack) in enumerate(found):
        if number:
            print()
        terminal.print_coloured(_about(program, entry, attack))
        done = judge(program.problem, program.program)
        right &= _is_right(done, program, attack)
        terminal.print_coloured(_said(done, program, attack))
    return 0 if right else 1


def show_checked(
    name: str, samples: Sequence[LabelledProgram], how: Options, judge: Callable[[Problem, Program], Judgement]
) -> int:
    """Print one of the samples by its id, what `judge` says of it, and what the reward function of `how` says and why
    that is wrong.

    Returns 0 where nothing is wrong with the rewards, else 1. Raises SandboxError.
    """
    found = {sample.id: sample for sample in samples}
    if name not in found:
        near = get_close_matches(name, found, n=4, cutoff=0.5)
        hint = f"near it: {', '.join(near)}" if near else "a run without --show lists those with findings"
        raise SandboxError(f"--show {printable(name)}: no sample has this id; {hint}")
    sample = found[name]
    findings, tried = check_reward(how, [sample])
    about = _known().get(name, [(sample, None, None)])[0]
    terminal.print_coloured(_about(*about))
    terminal.print_coloured(_said(judge(sample.problem, sample.program), sample, about[2]))
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


Found = tuple[LabelledProgram, Entry | None, Attack | None]


@cache
def _known() -> dict[str, list[Found]]:
    """Return what can be shown, by its id: a program alone, or all of an entry or a row."""
    known: dict[str, list[Found]] = {}
    for entry in entries():
        programs = list(labelled_programs([entry], harmful=True))
        rows: list[Found] = [
            (program, entry, entry.attacks[number] if number < len(entry.attacks) else None)
            for number, program in enumerate(programs)
        ]
        for row in rows:
            known[row[0].id] = [row]
        known[entry.id] = rows
        known.setdefault(str(entry.row), []).extend(rows)
    known.update((program.id, [(program, None, None)]) for program in pairs.labelled_pairs())
    return known


def _find(name: str) -> list[Found]:
    known = _known()
    if name not in known:
        near = get_close_matches(name, known, n=4, cutoff=0.5) or [each for each in known if name and name in each][:4]
        hint = f"near it: {', '.join(near)}" if near else "`sandbox zoo` lists the entries"
        raise SandboxError(f"--show {printable(name)}: no program or entry of the zoo has this id; {hint}")
    if not known[name]:
        raise SandboxError(f"--show {printable(name)}: this row has no program; a test attacks our own process instead")
    return known[name]


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


def _is_right(done: Judgement, program: LabelledProgram, attack: Attack | None) -> bool:
    if attack is not None:
        return done.verdict in attack.verdicts(done.tier)
    return (done.verdict == "AC") == program.right


def _said(done: Judgement, program: LabelledProgram, attack: Attack | None) -> Iterator[str]:
    want = " or ".join(attack.verdicts(done.tier)) if attack else "AC" if program.right else "not AC"
    yield f"  expected {want}; the sandbox says {done.verdict}, tier {done.tier}" + ", weak" * done.weak
    for line in done.compile_log.rstrip().split("\n")[:20] if done.compile_log.strip() else ():
        yield printable(f"  | {line}")
    yield from (f"  {line}" for line in first_failure_lines(program.problem, done.cases)[1:])
