"""The command ``overlap``: train, ctl, rollout, replay, filter, check-data, export, cluster, fields.

Exit codes: 0 done, 2 bad input (one line, nothing lost), 1 the run failed (one line), 130 Ctrl-C, 143 SIGTERM,
129 the terminal was closed.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from overlap.commands import add_cluster
from overlap.errors import ConfigError, OverlapError, RunDirError

if TYPE_CHECKING:  # what takes time to import is imported where signals are heard
    from overlap.config import Config


_COMMANDS = {
    "pause": "finish what is underway, and take no further step until resume",
    "resume": "go on after a pause",
    "drain": "admit no prompt any more; the run ends when its complete steps are learned",
    "save": "write a checkpoint between two steps",
    "status": "print what the run is doing, where it stands and how full it is, as JSON",
    "stop": "end the run as Ctrl-C does, and keep what it learned",
}
"""What ``overlap ctl`` takes."""
ELSEWHERE = ("verify.workers=1",)
"""Overrides where a run is planned for other hardware: how many cores that has is not known."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    args = _parse(argv)
    return ending_in_order(lambda: int(args.run_command(args)))


def ending_in_order(work: Callable[[], int]) -> int:
    """Do the work of a command; returns its exit code, and says in one line what ended it early."""
    from overlap.process import exit_code, handle_interrupts

    with handle_interrupts() as interrupts:
        try:
            code = work()
            interrupts.check()
            return code
        except OverlapError as error:
            _tell(_first_line(error))
            return error.exit_code
        except KeyboardInterrupt as interrupt:
            exec("")  # has the interpreter forget one that left an exec, as a dataclass's: `-m` would end by SIGINT
            _tell("interrupted")
            return exit_code(interrupt)
        except BrokenPipeError:  # who reads our output has seen enough
            return 128 + signal.SIGPIPE
        finally:
            _flush()


def command(main: Callable[[], int] = main) -> int:
    """As ``main``, for a process that ends then: it is deaf to signals once it has said its last word."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_at_once)
    from overlap.process import SIGNALS

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a name may hold what the terminal cannot show
    code = main()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return code


def _end_at_once(number: int, frame: FrameType | None) -> None:
    """Before a command has begun there is nothing to end in order, and an import may swallow an exception."""
    with suppress(OSError):
        os.write(2, b"overlap: interrupted\n")
    os._exit(128 + number)


def show(*lines: str) -> None:
    """The output of a command, on stdout. Raises RunDirError where it cannot be written."""
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunDirError(f"cannot write to stdout: {error.strerror or error}; send it elsewhere") from error


def _tell(line: str) -> None:
    with suppress(OSError):  # the terminal has gone
        print(f"overlap: {line}", file=sys.stderr)


def _flush() -> None:
    """Nobody may read any more: the interpreter would complain of that, and change the exit code."""
    try:
        if sys.stdout is not None:  # it is, where the program was started with its output closed
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _first_line(error: OverlapError) -> str:
    kind = "bad input: " if isinstance(error, ConfigError) else "failed: "
    return kind + " ".join(str(error).split())


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Overrides may stand anywhere, also between and behind options."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if "overrides" in args:
        args.overrides += [word for word in rest if "=" in word and not word.startswith("-")]
        rest = [word for word in rest if "=" not in word or word.startswith("-")]
    if rest:
        way_out = "; fields of the configuration are written section.field=value, as in learn.lr=1e-6"
        parser.error(f"unrecognized arguments: {' '.join(rest)}{way_out if 'overrides' in args else ''}")
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="overlap", description="Reinforcement learning on code, overlapped.")
    commands = parser.add_subparsers(required=True, metavar="command")
    train = _command(commands, "train", _train, "train a policy")
    train.add_argument("--dry-run", action="store_true", help="print the resolved config and the plan, and stop")
    text = "with --dry-run, plan the memory of other hardware: 8x80 is eight GPUs of 80 GiB each"
    train.add_argument("--devices", default="", metavar="NxGIB", help=text)
    train.add_argument("--resume", action="store_true", help="go on with the run in run.dir from its newest checkpoint")
    changes = "go on also where seed, data, model or loss are not what they were; config.yaml keeps what was changed"
    train.add_argument("--resume-with-changes", action="store_true", help=changes)
    train.add_argument("--from-rollouts", default="", metavar="RUN", help="learn from the samples that a run has kept")
    rollout = _command(commands, "rollout", _rollout, "sample and score without a trainer")
    rollout.add_argument("--split", choices=("train", "heldout"), default="heldout", help="prompts to answer")
    rollout.add_argument("--limit", type=_positive, default=None, metavar="N", help="answer the first N prompts only")
    rollout.add_argument("--out", type=Path, default=None, metavar="FILE", help="write the trajectories as JSONL")
    text = "keep the samples whole, for train --from-rollouts"
    rollout.add_argument("--rollouts", type=Path, default=None, metavar="FILE", help=text)
    filter_ = _command(commands, "filter", _filter, "measure pass@k per problem and keep those with a mixed outcome")
    filter_.add_argument("--samples", type=_positive, default=16, metavar="K", help="samples per problem (16)")
    filter_.add_argument("--low", type=float, default=0.05, help="keep from this pass rate on (0.05)")
    filter_.add_argument("--high", type=float, default=0.9, help="keep up to this pass rate (0.9)")
    filter_.add_argument("--train", type=int, default=0, metavar="N", help="keep at most N to train on (all)")
    filter_.add_argument("--heldout", type=int, default=0, metavar="N", help="hold N of the kept ones out (0)")
    filter_.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSONL to write")
    text = "make a Hugging Face checkpoint of a saved state"
    export = commands.add_parser("export", help=text, description=text)
    export.add_argument("run", metavar="RUN", help="run directory, for instance runs/first")
    export.add_argument("--step", type=_positive, default=None, metavar="N", help="step of the state (the newest)")
    export.add_argument("--out", type=Path, default=None, metavar="DIR", help="where to (RUN/policy-step-N)")
    export.set_defaults(run_command=_export)
    _add_ctl(commands)
    add_cluster(commands)
    commands.choices["cluster"].set_defaults(run_command=_cluster)
    text = "simulate the schedule of a run from what its parts took, also by another configuration; starts nothing"
    replay = commands.add_parser("replay", help=text, description=text)
    replay.add_argument("run", metavar="RUN", help="run directory, for instance runs/first")
    replay.add_argument("--trace", type=Path, default=None, metavar="FILE", help="write the simulated schedule there")
    _add_overrides(replay, _replay)
    text = "judge a problem file's own references, an empty answer and the first example; exit code 1: found something"
    check = commands.add_parser("check-data", help=text, description=text)
    check.add_argument("file", metavar="FILE", help="what data.train takes: a file, a folder, a split, a hub id")
    check.add_argument("--out", type=Path, default=None, metavar="JSONL", help="write a row of findings per problem")
    check.add_argument("--limit", type=_positive, default=None, metavar="N", help="judge the first N problems only")
    _add_config(check, _check_data)
    text = "list the fields of the configuration: name, default, meaning"
    named = commands.add_parser("fields", help=text, description=text)
    named.add_argument("name", nargs="?", default="", metavar="NAME", help="a section (learn) or a field (learn.lr)")
    named.set_defaults(run_command=_fields)
    return parser


def _add_ctl(commands) -> None:  # type: ignore[no-untyped-def]
    text = "pause, resume, drain, save, stop a run that goes on, or ask how it stands"
    rows = "\n".join(f"  {name:<7} {what}" for name, what in _COMMANDS.items())
    more = (
        f"commands:\n{rows}\n\n"
        "A run that is starting keeps a command until it is up; one that is about to end refuses it.\n"
        "Exit codes: 0 done, 1 refused or not answered, 2 no run goes on there."
    )
    layout = argparse.RawDescriptionHelpFormatter
    ctl = commands.add_parser("ctl", help=text, description=text, epilog=more, formatter_class=layout)
    ctl.add_argument("run", metavar="RUN", help="its run directory, for instance runs/latest")
    ctl.add_argument("wish", metavar="COMMAND", choices=tuple(_COMMANDS), help="one of those below")
    ctl.set_defaults(run_command=_ctl)


def _command(commands, name, run, text) -> argparse.ArgumentParser:  # type: ignore[no-untyped-def]
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    _add_config(parser, run)
    return parser


def _add_config(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    parser.add_argument("--config", type=Path, default=None, metavar="FILE", help="YAML file")
    _add_overrides(parser, run)


def _add_overrides(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    text = "override a field of the config (`overlap fields` lists them)"
    parser.add_argument("overrides", nargs="*", metavar="section.field=value", help=text)
    parser.set_defaults(run_command=run)


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: use a whole number, 1 or more")
    return value


def _config(args: argparse.Namespace) -> Config:
    from overlap.config import load_config

    return load_config(args.config, args.overrides)


def _resumed_config(args: argparse.Namespace) -> Config:
    """Without ``--config`` a resumed run goes by what it left in its directory."""
    from overlap.config import Config, load_config
    from overlap.record import stored_config

    if args.config is not None:
        return _config(args)
    where = [word.partition("=")[2] for word in args.overrides if word.partition("=")[0].strip() == "run.dir"]
    folder = where[-1] if where else Config().run.dir
    file = stored_config(folder)
    return load_config(file, [*args.overrides, *([] if where else [f"run.dir={folder}"])])


def _kept_config(args: argparse.Namespace) -> Config:
    """Without ``--config`` a run from kept samples goes by what the run that kept them has left beside them."""
    from overlap.config import Config, load_config
    from overlap.replay import NEEDS, rollouts_in

    beside = rollouts_in(args.from_rollouts)[1]
    if args.config is not None or beside is None:
        return load_config(args.config, [*NEEDS, *args.overrides])
    return load_config(beside, [*NEEDS, f"run.dir={Config().run.dir}", *args.overrides])


def _train(args: argparse.Namespace) -> int:
    from overlap.run import train

    resume = args.resume or args.resume_with_changes
    rollouts = args.from_rollouts
    if args.devices:
        return _plan_elsewhere(args)
    cfg = _kept_config(args) if rollouts else _resumed_config(args) if resume else _config(args)
    if args.dry_run:
        return dry_run(cfg, rollouts, resume=resume, with_changes=args.resume_with_changes)
    train(cfg, resume=resume, with_changes=args.resume_with_changes, rollouts=rollouts)
    return 0


def _plan_elsewhere(args: argparse.Namespace) -> int:
    from overlap.config import load_config

    if not args.dry_run or args.resume or args.resume_with_changes or args.from_rollouts:
        way_out = "memory of other hardware is only planned: use it with --dry-run, and neither resume nor kept samples"
        raise ConfigError("--devices", args.devices, way_out)
    return plan_elsewhere(load_config(args.config, [*args.overrides, *ELSEWHERE]), args.devices)


def plan_elsewhere(cfg: Config, devices: str) -> int:
    """Print what a run needs in memory on ``devices`` ("8x80"), of which the policy's ``config.json`` is enough. Raises
    ConfigError where it would not fit.
    """
    from overlap.placement import check_fit, memory_plan, memory_table
    from overlap.prepare import elsewhere, elsewhere_lines

    asked, seating = elsewhere(cfg, devices)
    seats = seating(cfg)
    show(*(f"{name:<11} {value}" for name, value in elsewhere_lines(asked, seats)))
    show("", *memory_table(memory_plan(asked, seats)))
    check_fit(asked, seating)
    return 0


def dry_run(cfg: Config, rollouts: str, *, resume: bool, with_changes: bool) -> int:
    import yaml

    from overlap.placement import memory_plan, memory_table
    from overlap.prepare import asked_for, check_place, plan_lines, prepare, seat
    from overlap.process import scratch_directory
    from overlap.record import plain
    from overlap.run import check_resume, open_rollouts

    check_place(cfg, resume=resume)
    with scratch_directory() as (scratch, _):
        prepared = prepare(cfg, None, scratch)
    seated = seat(cfg, engine=not rollouts)
    kept = open_rollouts(prepared, rollouts, resume=resume) if rollouts else None
    if resume:
        check_resume(prepared, with_changes=with_changes)
    asked = asked_for(prepared, kept)
    seats = seated.seating(cfg)
    memory = memory_plan(asked, seats)
    told = plan_lines(prepared, asked, seats, memory, kept) + seated.lines()
    lines = (f"{name:<11} {value}" for name, value in told)
    show(yaml.safe_dump(plain(cfg.to_dict()), sort_keys=False, allow_unicode=True), *lines)
    show("", *memory_table(memory))
    seated.check(asked)
    return 0


def _fields(args: argparse.Namespace) -> int:
    from overlap.config import field_lines

    show(*field_lines(args.name))
    return 0


def _export(args: argparse.Namespace) -> int:
    from overlap.commands import export_command

    folder, step, version = export_command(args.run, step=args.step, out=args.out)
    show(f"{folder}: the policy after step {step} (version {version})")
    return 0


def _ctl(args: argparse.Namespace) -> int:
    import json

    from overlap.run import ask

    answer = ask(args.run, args.wish)
    show(answer["done"] if "done" in answer else json.dumps(answer, indent=1))
    return 0


def _cluster(args: argparse.Namespace) -> int:
    with closing(args.lines(args)) as lines:
        for line in lines:
            show(line)
    return 0


def _replay(args: argparse.Namespace) -> int:
    from overlap.replay import replay

    show(*replay(args.run, args.overrides, trace=args.trace))
    return 0


def _rollout(args: argparse.Namespace) -> int:
    from overlap.commands import rollout_command

    return rollout_command(_config(args), split=args.split, limit=args.limit, out=args.out, keep=args.rollouts)


def _check_data(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from overlap.commands import check_data_command

    cfg = _config(args)
    cfg = replace(cfg, data=replace(cfg.data, train=args.file, heldout=""))  # a name, whatever YAML makes of it
    return check_data_command(cfg, limit=args.limit, out=args.out)


def _filter(args: argparse.Namespace) -> int:
    from overlap.commands import filter_command
    from overlap.evaluation import Bounds

    bounds = Bounds(args.low, args.high, args.train, args.heldout)
    return filter_command(_config(args), samples=args.samples, bounds=bounds, out=args.out)


if __name__ == "__main__":
    raise SystemExit(command())
