"""The commands `sandbox run | judge | verify | serve | doctor | bench | zoo | check-reward`.

Exit code 0: accepted, or nothing wrong. 1: not accepted, or findings. 2: bad input, or the sandbox failed. For signals
and a closed output pipe see `sandbox.terminal`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TextIO

from sandbox import judge, terminal
from sandbox.core.checks import printable
from sandbox.core.nouns import MIB, SOURCE_BYTES_MAX, Case, Judgement, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.differences import first_failure_lines
from sandbox.errors import SandboxError
from sandbox.languages.table import LANGUAGES, by_suffix, find_language
from sandbox.pool.quotas import cores
from sandbox.rewards import cli as cli_reward
from sandbox.serve import cli as cli_serve


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = next((word for word in arguments if not word.startswith("-")), "")
        parser.refuse(f"not known here: {' '.join(unknown)}", f"{parser.prog} {command}")
    return terminal.attend(lambda: _act(options))


def _act(options: argparse.Namespace) -> int:
    try:
        return int(options.action(options))
    except (SandboxError, OSError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        said = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.filename is not None:
            said = f"{error.filename}: cannot be opened ({error.strerror})"
        _say(f"sandbox: error: {said}", sys.stderr)
        return 2


def _say(text: str, stream: TextIO | None = None) -> None:
    """Print one line; characters that could forge another line or that the terminal cannot show are escaped."""
    terminal.print_coloured([printable(text)], stream)


class _Parser(argparse.ArgumentParser):
    """Refuses a command line in one line, as all bad input is."""

    def error(self, message: str) -> NoReturn:
        self.refuse(message, self.prog)

    def refuse(self, message: str, prog: str) -> NoReturn:
        said = printable(" ".join(message.split()))
        self.exit(2, f"sandbox: error: {said}; `{prog} --help` lists what there is\n")


def _parser() -> _Parser:
    parser = _Parser(prog="sandbox", description="Judge programs in a jail.")
    actions = parser.add_subparsers(
        required=True, metavar="run | judge | verify | serve | doctor | bench | zoo | check-reward"
    )

    def command(name: str, text: str, action: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        """A command whose own help begins with what the list says of it."""
        made: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
        made.set_defaults(action=action)
        return made

    run = command("run", "run a program on stdin in a jail; show its output and what it used", _run)
    run.add_argument("program", type=Path)
    run.add_argument("--input", type=Path, help="a file for the program's stdin; default: the command's stdin")
    run.add_argument("--cpu-s", type=float, default=Limits().cpu_s, help="CPU seconds (default %(default)s)")
    run.add_argument("--wall-s", type=float, help="wall seconds (default 3 * cpu + 2)")
    run.add_argument("--memory-mib", type=int, default=Limits().memory_bytes // MIB, help="MiB (default %(default)s)")
    verdict = command("judge", "judge a program by a problem: a verdict per case", _judge)
    verdict.add_argument("problem", type=Path, help="problem.json, the form of Problem.to_json(), or a problem package")
    verdict.add_argument("program", type=Path, help="a file; for a package, a directory of files as well")
    verdict.add_argument("--all", action="store_true", help="problem.json: run all cases, also after one that failed")
    diff = "also show the first failed case: input, expected beside got, stderr"
    verdict.add_argument("--diff", action="store_true", help=diff)
    bench = command("bench", "milliseconds per program on this machine, and the tier", _bench)
    bench.add_argument("--rounds", type=int, default=30, help="programs per figure (default %(default)s)")
    doctor = command("doctor", "what this machine can isolate, and how to repair what it cannot", _doctor)
    verify = command("verify", "judge all submissions of a problem package, expected against found", _verify)
    _describe_verify(verify)
    serve = cli_serve.add_serve_parser(actions)
    cli_reward.add_parsers(actions, judge, cores())
    for part in (run, verdict):
        part.add_argument("--language", help="language of the program; default: by the suffix of its file")
    for part in (verdict, verify):
        part.add_argument("--time-limit", type=float, metavar="S", help="CPU seconds, instead of the package's")
    packages = "installed packages that a Python program may import, for example numpy"
    for part in (run, verdict, verify, serve):
        part.add_argument("--packages", nargs="+", default=(), metavar="NAME", help=packages)
    for part in (run, verdict, verify, serve, bench, doctor):
        part.add_argument("--isolation", choices=("auto", "A", "B", "C"), default="auto", help="default: A, or else B")
    for part in (run, verdict, verify, bench, doctor):
        part.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _describe_verify(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judge all submissions of a Kattis/ICPC problem package, and compare the verdicts with its authors' "
        "expectations."
    )
    parser.epilog = (
        "Each submission has a line: ok, SURPRISE (found is not what is expected), skipped (and why) or FAILED "
        "(the validator or the sandbox did). A note names a part of the package that is not followed. Exit code 0: as "
        "expected. 1: surprises. 2: the package cannot be judged, or the sandbox or a validator failed."
    )
    parser.add_argument("package", type=Path, help="directory of a Kattis/ICPC problem package")
    verbose = "a line per case; -vv: with the validator's feedback"
    parser.add_argument("--verbose", "-v", action="count", default=0, help=verbose)


def _program(options: argparse.Namespace) -> Program:
    if options.program.is_dir():
        raise SandboxError(f"{options.program}: is a directory; give one file (a package takes directories as well)")
    language = find_language(options.language) if options.language else by_suffix(options.program.suffix)
    if language is None:
        known = ", ".join(LANGUAGES)
        raise SandboxError(
            f"{options.program}: no language has the suffix {options.program.suffix!r}; give --language, one of {known}"
        )
    with options.program.open("rb") as file:
        source = file.read(SOURCE_BYTES_MAX + 1)  # a longer source is refused by the compiler
    return Program(source.decode("utf-8", "surrogateescape"), language.name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs. Raises ValueError for a repeated key, of which `json` would take the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is there twice: leave one out")
    return found


def _judge(options: argparse.Namespace) -> int:
    if options.diff and options.json:
        raise SandboxError("--diff is for people: --json has what each failed case printed, as cases[..].got")
    if options.problem.is_dir() or options.problem.suffix.lower() in (".zip", ".kpp"):
        from sandbox.packages.verify import judge_package

        return judge_package(options)
    if options.time_limit is not None:
        raise SandboxError("--time-limit is for packages; set limits.cpu_s in problem.json")
    try:
        problem = Problem.from_json(json.loads(options.problem.read_text("utf-8"), object_pairs_hook=_unique))
    except (ValueError, RecursionError) as error:
        said = "nested too deep" if isinstance(error, RecursionError) else str(error)
        if isinstance(error, json.JSONDecodeError):
            said = f"is not JSON: {error}; give a problem.json, then the program"
        raise SandboxError(f"{options.problem}: {said}") from error
    done = judge(
        problem,
        _program(options),
        stop_at_first_failure=not options.all,
        isolation=options.isolation,
        packages=options.packages,
    )
    if options.json:
        print(json.dumps(done.to_json()))
    else:
        _print_judgement(done)
        if options.diff:
            terminal.print_coloured(first_failure_lines(problem, done.cases))
    return 0 if done.verdict is Verdict.AC else 1


def _verify(options: argparse.Namespace) -> int:
    from sandbox.packages.verify import verify

    return verify(options)


def _print_judgement(done: Judgement) -> None:
    for line in done.compile_log.rstrip().split("\n") if done.compile_log.strip() else ():
        _say("| " + line.replace("\t", "    "))
    for case in done.cases:
        usage = f"{case.cpu_s:8.3f} s cpu {case.wall_s:8.3f} s wall {case.memory_bytes / MIB:8.1f} MiB"
        _say(f"{case.index + 1:4}  {case.verdict:4} {usage}  {case.message}".rstrip())
    weak = ", weak" if done.weak else ""
    ran = len(done.cases)
    stopped = f" ({ran} judged; --all judges the others)" if 0 < ran < done.total else ""
    print(f"{done.verdict}  {done.passed} of {done.total} cases{stopped}, tier {done.tier}, {done.toolchain}{weak}")


def _run(options: argparse.Namespace) -> int:
    from sandbox.judging.judge import run_once

    program = _program(options)
    text = options.input.read_bytes() if options.input else sys.stdin.buffer.read()
    limits = Limits(cpu_s=options.cpu_s, wall_s=options.wall_s, memory_bytes=options.memory_mib * MIB)
    case = Case(text.decode("utf-8", "surrogateescape"), "-")
    problem = Problem("run", "stdio", (case,), limits=limits)
    result, output, errors, tier = run_once(problem, program, isolation=options.isolation, packages=options.packages)
    if options.json:
        fields = ("verdict", "message", "cpu_s", "wall_s", "memory_bytes")
        texts = {"stdout": output.decode("utf-8", "replace"), "stderr": errors.decode("utf-8", "replace")}
        print(json.dumps({name: getattr(result, name) for name in fields} | {"tier": tier} | texts))
    else:
        sys.stdout.buffer.write(output)
        sys.stdout.flush()
        sys.stderr.buffer.write(errors)
        usage = f"{result.cpu_s:.3f} s cpu, {result.wall_s:.3f} s wall, {result.memory_bytes / MIB:.1f} MiB"
        _say(f"[{result.verdict} {result.message}; {usage}, tier {tier}]", sys.stderr)
    return 0 if result.verdict is Verdict.AC else 1


def _doctor(options: argparse.Namespace) -> int:
    from sandbox.doctor.doctor import examine

    report = examine()
    asked = None if options.isolation == "auto" else options.isolation
    passed = {line.name for line in report.lines if line.passed}
    fine = report.tier is not None if asked is None else asked == "C" or f"tier {asked}" in passed
    if options.json:
        print(json.dumps({**asdict(report), "asked": options.isolation, "fine": fine}))
        return 0 if fine else 2
    for line in report.lines:
        print(f"{'PASS' if line.passed else 'FAIL'}  {line.name:36}  {line.detail}".rstrip())
        if not line.passed:
            print(f"      repair: {line.repair}")
    print(f"tier  {report.tier or 'none: only --isolation C is possible, which does not isolate'}")
    if not fine and asked:
        print(f"tier {asked} is not available here; a weaker tier is never used in its place")
    return 0 if fine else 2


def _bench(options: argparse.Namespace) -> int:
    from sandbox.doctor.doctor import measure_languages

    if options.rounds < 1:
        raise SandboxError(f"--rounds {options.rounds}: must be at least 1")
    found = measure_languages(options.isolation, options.rounds)
    if options.json:
        print(json.dumps(found))
        return 0
    for figure in found["figures"]:
        print(f"{figure['name']:28} " + (f"{figure['ms']:8.2f} ms" if figure["ms"] is not None else figure["note"]))
    print(f"median of {found['rounds']} programs, tier {found['tier']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
