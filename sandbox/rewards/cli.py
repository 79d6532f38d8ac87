"""The commands `sandbox zoo` and `sandbox check-reward`.

Exit code 0: no findings. 1: findings. 2: bad input, or the function cannot be called.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from sandbox.core.checks import printable
from sandbox.core.nouns import Judgement, Program
from sandbox.core.problem import Kind, Problem
from sandbox.errors import SandboxError
from sandbox.languages.table import LANGUAGES
from sandbox.rewards.styles import STYLES

if TYPE_CHECKING:
    from sandbox.rewards.check import Findings, Options, Tried
    from sandbox.zoo.exhibits import Entry, LabelledProgram

_MOST: Final = 1_000_000
_HELP: Final = """
The function is called in the style of its trainer, which its parameters tell (or --style):

    plain     reward(problem: dict, program: str, language: str) -> float | bool | None
    trl       reward(prompts, completions, **columns) -> list of float | None
    verl      compute_score(data_source, solution_str, ground_truth, extra_info) -> float | {"score": float}

In the plain style, problem is Problem.to_json(): id, kind (stdio, function, assert), cases [{input, expected}],
fn_name, preamble, compare, limits. The others get the program in a code fence (--bare: without one), and a row with
columns of public data sets (prompt, reward_model, verification_info, input_output, test_list, label, ...), or those
that --row makes. A coroutine is awaited. Full reward means a score of at least --accept; None means "I cannot judge
this". The module is imported from the current directory or the path, once per worker. Each call runs in a child process
of its own, in an empty directory, with a deadline; nothing else protects this machine from the zoo's programs, so those
that would fill its memory or its process table run only with --harmful.
"""
_TARGET: Final = "module:function"


def add_parsers(actions: Any, judge: Callable[[Problem, Program], Judgement], cores: int) -> None:
    """`actions`: the subparsers of the main parser. `judge` says what the sandbox makes of a program of the zoo;
    `cores` is the number of cores that calls may use.
    """
    zoo = actions.add_parser(
        "zoo",
        help="run the hack zoo against a reward function, or list it",
        description="Runs every hostile program of the zoo, and its honest twin." + _HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    zoo.add_argument("target", nargs="?", metavar=_TARGET, help="without it, the zoo is listed")
    zoo.add_argument("--only", action="append", metavar="ID", help="an entry by id or row; can be repeated")
    zoo.add_argument("--show", metavar="ID", help="one program, or an entry by id or row: source, problem, verdict now")
    zoo.set_defaults(action=_zoo, judge=judge)
    check = actions.add_parser(
        "check-reward",
        help="test a reward function: wrong rewards, leaks, latency",
        description="Runs labelled programs and the zoo through a reward function." + _HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("target", metavar=_TARGET)
    check.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help='more labelled programs, JSONL: {"problem", "program", "right": true|false, "language", "id"}',
    )
    check.add_argument("--no-zoo", action="store_true", help="labelled programs only")
    check.add_argument(
        "--show",
        metavar="ID",
        help="one sample: program, problem, what the function and the sandbox say of it, and why",
    )
    check.set_defaults(action=_check, judge=judge)
    row = "a function that makes the row (a dict of columns) of a problem, for a function that reads your own columns"
    for part in (zoo, check):
        add = part.add_argument
        add("--style", choices=("auto", *STYLES), default="auto", help="how the function is called")
        add("--row", metavar=_TARGET, default="", help=row)
        add("--bare", action="store_true", help="answers are programs without a code fence")
        add("--kind", action="append", choices=get_args(Kind), help="problems of this kind only; can be repeated")
        text = "programs in this language only; can be repeated"
        add("--language", action="append", choices=tuple(LANGUAGES), help=text)
        add("--accept", type=float, default=1.0, help="a score that is full reward (default %(default)s)")
        add("--deadline-s", type=float, default=10.0, help="seconds per call (default %(default)s)")
        add("--repeats", type=int, default=2, help="calls per program (default %(default)s)")
        add("--workers", type=int, default=cores, help="concurrent calls (default %(default)s)")
        add("--harmful", action="store_true", help="also run programs that may harm this machine")
        add("--json", action="store_true")


def _zoo(options: argparse.Namespace) -> int:
    from sandbox.zoo import catalogue

    if options.show is not None:
        if options.target is not None or options.only or options.json:
            raise SandboxError("--show prints one program for people; leave out module:function, --only and --json")
        from sandbox.rewards.show import show

        return show(options.show, options.judge)
    entries = catalogue.entries()
    if options.only:
        known = {entry.id for entry in entries} | {str(entry.row) for entry in entries}
        if unknown := [name for name in options.only if name not in known]:
            raise SandboxError(f"--only {unknown[0]}: no entry has this id or row; see `sandbox zoo`")
        entries = tuple(entry for entry in entries if {entry.id, str(entry.row)} & set(options.only))
    if options.target is None:
        _list(entries, as_json=options.json)
        return 0
    return _report(options, _chosen(options, catalogue.labelled_programs(entries, harmful=options.harmful)))


def _list(entries: Iterable[Entry], *, as_json: bool) -> None:
    if as_json:
        keys = ("id", "row", "title", "mechanism", "own_test")
        counts = ({"attacks": len(entry.attacks), "twins": len(entry.honest)} for entry in entries)
        rows = ({key: getattr(entry, key) for key in keys} for entry in entries)
        print(json.dumps([row | count for row, count in zip(rows, counts, strict=True)]))
        return
    for entry in entries:
        counted = f"{len(entry.attacks)} hostile, {len(entry.honest)} honest"
        print(f"{entry.row:3}  {entry.id:26} {entry.title}  ({counted})\n{'':32}{entry.mechanism}")


def _check(options: argparse.Namespace) -> int:
    from sandbox.zoo import catalogue

    samples = list(catalogue.labelled_pairs())
    if options.samples:
        samples += _read_samples(options.samples)
    if not options.no_zoo:
        samples += catalogue.labelled_programs(harmful=options.harmful)
    if options.show is not None:
        if options.json:
            raise SandboxError("--show prints one sample for people; leave out --json")
        from sandbox.rewards.show import show_checked

        return show_checked(options.show, samples, _how(options), options.judge)
    return _report(options, _chosen(options, samples))


def _read_samples(path: Path) -> Iterator[LabelledProgram]:
    """A JSONL file: {"problem", "program", "right": true or false} and, if need be, "language", "id" and "row", the
    columns that the data has for it.
    """
    from sandbox.zoo.exhibits import LabelledProgram

    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            data = json.loads(line)
            forms = (
                ("right", bool, "true or false"),
                ("program", str, "text"),
                ("row", dict | None, "an object of columns"),
            )
            for key, kind, form in forms:
                if not isinstance(data, dict) or not isinstance(data.get(key), kind):
                    raise ValueError(f'"{key}" must be {form}')
            problem = Problem.from_json(data.get("problem"))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        program = Program(data["program"], data.get("language", "python"))
        name = str(data.get("id", where))
        yield LabelledProgram(name, problem, program, right=data["right"], row=data.get("row"))


def _chosen(options: argparse.Namespace, samples: Iterable[LabelledProgram]) -> list[LabelledProgram]:
    """The samples of the kinds and languages that are asked for. Raises SandboxError where there is none."""
    kinds, languages = options.kind or get_args(Kind), options.language or LANGUAGES
    chosen = [one for one in samples if one.problem.kind in kinds and one.program.language in languages]
    if not chosen:
        raise SandboxError("--kind, --language: no program is of these; leave one of them out")
    return chosen


def _how(options: argparse.Namespace) -> Options:
    """Raises SandboxError for numbers that are out of bounds."""
    from sandbox.rewards.check import Options

    for name in ("deadline_s", "repeats", "workers"):
        if not 0 < getattr(options, name) <= _MOST:
            raise SandboxError(f"--{name.replace('_', '-')} {getattr(options, name)}: must be above 0, at most {_MOST}")
    if not math.isfinite(options.accept):
        raise SandboxError(f"--accept {options.accept}: must be a number that a score can reach")
    numbers = options.accept, options.deadline_s, options.repeats, options.workers
    return Options(options.target, *numbers, options.style, options.row, options.bare)


def _report(options: argparse.Namespace, samples: list[LabelledProgram]) -> int:
    from sandbox.rewards.check import check_reward

    findings, tried = check_reward(_how(options), samples)
    if len(findings.masked) == findings.samples:
        raise SandboxError(f"{options.target}: it returned None for all {findings.samples} programs")
    if options.json:
        replies = {one.sample.id: one.replies for one in tried}
        print(json.dumps({"clean": findings.clean, **asdict(findings), "replies": replies}))
    else:
        _print(findings, tried)
    return 0 if findings.clean else 1


def _print(findings: Findings, tried: list[Tried]) -> None:
    hostile, right = {one.sample.id for one in tried if one.sample.hostile}, sum(one.sample.right for one in tried)
    programs = f"{right} right, {findings.samples - len(hostile) - right} wrong, {len(hostile)} hostile"
    print(f"{findings.target} ({findings.style}): {findings.samples} programs ({programs}), {findings.calls} calls")
    paid = len(hostile.intersection(findings.false_accepts))
    for title, count, note in (
        ("false accepts", len(findings.false_accepts), f"{paid} hostile, {len(findings.false_accepts) - paid} wrong"),
        ("false rejects", len(findings.false_rejects), ""),
        ("crashes", len(findings.crashes), ""),
        ("hangs", len(findings.hangs), ""),
        ("run-to-run disagreement", len(findings.disagreements), ""),
        ("leaked processes", findings.leaked_processes, ""),
        ("leaked files", findings.leaked_files, ""),
        ("not judged (None)", len(findings.masked), "no finding"),
    ):
        print(f"  {title:24} {count:5}  {note}".rstrip())
    if (p50 := findings.latency_p50_s) is not None and (p99 := findings.latency_p99_s) is not None:
        print(f"  {'latency p50 / p99':24} {p50 * 1e3:.1f} / {p99 * 1e3:.1f} ms")
    for found in findings.findings:
        detail = f": {printable(found.detail)}" if found.detail else ""
        print(f"{found.severity:8}  {found.kind:14} {printable(found.id)}{detail}")
    if findings.findings:
        print("(--show ID: the program, its problem, and why)")
    print("clean" if findings.clean else "FOUND SOMETHING")
