"""The commands `sandbox zoo` and `sandbox check-reward`.

Exit code 0: no findings. 1: findings. 2: bad input, or the function cannot be called.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from sandbox.core import Judgement, Problem, Program, printable
from sandbox.errors import SandboxError

_MOST: Final = 1_000_000
_HELP: Final = """
The function is called as

    reward(problem: dict, program: str, language: str) -> float | bool | None

problem is Problem.to_json(): id, kind (stdio, function, assert), cases [{input, expected}], fn_name, preamble, compare,
limits. A coroutine is awaited. Full reward means a score of at least --accept; None means "I cannot judge this". The
module is imported from the current directory or the path, once per worker. Each call runs in a child process of its
own, in an empty directory, with a deadline; nothing else protects this machine from the zoo's programs, so those that
would fill its memory or its process table run only with --harmful.
"""


def add_parsers(actions: Any, judge: Callable[[Problem, Program], Judgement]) -> None:
    """`actions`: the subparsers of the main parser. `judge` says what the sandbox makes of a program of the zoo."""
    zoo = actions.add_parser(
        "zoo",
        help="run the hack zoo against a reward function, or list it",
        description="Runs every hostile program of the zoo, and its honest twin." + _HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    zoo.add_argument("target", nargs="?", metavar="module:function", help="without it, the zoo is listed")
    zoo.add_argument("--only", action="append", metavar="ID", help="an entry by id or row; can be repeated")
    zoo.add_argument("--show", metavar="ID", help="one program, or an entry by id or row: source, problem, verdict now")
    zoo.set_defaults(action=_zoo, judge=judge)
    check = actions.add_parser(
        "check-reward",
        help="test a reward function: wrong rewards, leaks, latency",
        description="Runs labelled programs and the zoo through a reward function." + _HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("target", metavar="module:function")
    check.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help='more labelled programs, JSONL: {"problem", "program", "right": true|false, "language", "id"}',
    )
    check.add_argument("--no-zoo", action="store_true", help="labelled programs only")
    check.set_defaults(action=_check)
    cores = len(os.sched_getaffinity(0))
    for part in (zoo, check):
        part.add_argument("--accept", type=float, default=1.0, help="a score that is full reward (default %(default)s)")
        part.add_argument("--deadline-s", type=float, default=10.0, help="seconds per call (default %(default)s)")
        part.add_argument("--repeats", type=int, default=2, help="calls per program (default %(default)s)")
        part.add_argument("--workers", type=int, default=cores, help="concurrent calls (default %(default)s)")
        part.add_argument("--harmful", action="store_true", help="also run programs that may harm this machine")
        part.add_argument("--json", action="store_true")


def _zoo(options: argparse.Namespace) -> int:
    from sandbox import zoo

    if options.show is not None:
        if options.target is not None or options.only or options.json:
            raise SandboxError("--show prints one program for people; leave out module:function, --only and --json")
        from sandbox.rewards.show import show

        return show(options.show, options.judge)
    entries = zoo.entries()
    if options.only:
        known = {entry.id for entry in entries} | {str(entry.row) for entry in entries}
        if unknown := [name for name in options.only if name not in known]:
            raise SandboxError(f"--only {unknown[0]}: no entry has this id or row; see `sandbox zoo`")
        entries = tuple(entry for entry in entries if {entry.id, str(entry.row)} & set(options.only))
    if options.target is None:
        _list(entries, as_json=options.json)
        return 0
    return _report(options, list(zoo.labelled_programs(entries, harmful=options.harmful)))


def _list(entries: Iterable[Any], *, as_json: bool) -> None:
    if as_json:
        keys = ("id", "row", "title", "mechanism", "own_test")
        rows = [
            {**{key: getattr(entry, key) for key in keys}, "attacks": len(entry.attacks), "twins": len(entry.honest)}
            for entry in entries
        ]
        print(json.dumps(rows))
        return
    for entry in entries:
        counts = f"{len(entry.attacks)} hostile, {len(entry.honest)} honest"
        print(f"{entry.row:3}  {entry.id:26} {entry.title}  ({counts})\n{'':32}{entry.mechanism}")


def _check(options: argparse.Namespace) -> int:
    from sandbox import zoo
    from sandbox.rewards.check import read_samples
    from sandbox.zoo import pairs

    samples = list(pairs.labelled_pairs())
    if options.samples:
        samples += read_samples(options.samples)
    if not options.no_zoo:
        samples += zoo.labelled_programs(harmful=options.harmful)
    return _report(options, samples)


def _report(options: argparse.Namespace, samples: list[Any]) -> int:
    from sandbox.rewards.check import Options, check_reward

    for name in ("deadline_s", "repeats", "workers"):
        if not 0 < getattr(options, name) <= _MOST:
            raise SandboxError(f"--{name.replace('_', '-')} {getattr(options, name)}: must be above 0, at most {_MOST}")
    if not math.isfinite(options.accept):
        raise SandboxError(f"--accept {options.accept}: must be a number that a score can reach")
    how = Options(options.target, options.accept, options.deadline_s, options.repeats, options.workers)
    findings, tried = check_reward(how, samples)
    if len(findings.masked) == findings.samples:
        raise SandboxError(f"{options.target}: it returned None for all {findings.samples} programs")
    if options.json:
        replies = {one.sample.id: one.replies for one in tried}
        print(json.dumps({"clean": findings.clean, **asdict(findings), "replies": replies}))
    else:
        _print(findings, tried)
    return 0 if findings.clean else 1


def _print(findings: Any, tried: list[Any]) -> None:
    hostile = sum(one.sample.hostile for one in tried)
    right = sum(one.sample.right for one in tried)
    wrong = findings.samples - hostile - right
    print(f"{findings.target}: {findings.samples} programs ({right} right, {wrong} wrong, {hostile} hostile)", end="")
    print(f", {findings.calls} calls")
    groups = {one.sample.id: one.sample.hostile for one in tried}
    paid = sum(groups[name] for name in findings.false_accepts)
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
    if findings.latency_p50_s is not None:
        print(f"  {'latency p50 / p99':24} {findings.latency_p50_s * 1e3:.1f} / {findings.latency_p99_s * 1e3:.1f} ms")
    for title, names in (
        ("false accept", findings.false_accepts),
        ("false reject", findings.false_rejects),
        ("crash", findings.crashes),
        ("hang", findings.hangs),
        ("disagreement", findings.disagreements),
    ):
        for name in names:
            print(f"{title:14} {printable(name)}")
    print("clean" if findings.clean else "FOUND SOMETHING")
