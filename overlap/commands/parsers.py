"""The commands of ``overlap`` and their arguments. The work of each is imported when it is asked for, so that
``--help`` and ``overlap ctl`` start at once.

A command sets ``run_command``, which takes the arguments and returns the exit code, or yields the lines of its output
and may return the exit code then.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from overlap.process.atomic import is_stdout
from sandbox.core.checks import printable

_AS_WRITTEN = argparse.RawDescriptionHelpFormatter
Subparsers = Any
"""Return value of ``argparse.ArgumentParser.add_subparsers``, which has no public type."""
Run = Callable[[argparse.Namespace], int | Iterator[str]]
_CTL_COMMANDS = {
    "pause": "finish the samples in flight, and take no further step until resume",
    "resume": "continue after a pause",
    "drain": "admit no further prompts; the run ends when its complete steps are learned",
    "save": "write a checkpoint between two steps",
    "status": "print what the run is doing, its position and how full it is, as JSON",
    "stop": "end the run as Ctrl-C does, and save the policy",
}
STYLES = ("plain", "trl", "verl")
_BY_HAND = """\
Run `overlap cluster up` on one machine: it prints the command for the others. Run `overlap cluster down` on each of
them at the end. A cluster requires a token and has no dashboard. Options after -- go to `ray start`: -- --num-gpus=2
Exit codes: 0 done, 1 Ray did not start, stop or answer, 2 bad input.
"""


def add_commands(commands: Subparsers) -> None:
    """Add the parsers of all commands."""
    training = (_train, _rollout, _filter, _check_data, _export, _ctl, _cluster)
    reading = (_show, _view, _report, _fields, _doctor, _init)
    for add in (*training, *reading):
        add(commands)


def _train(commands: Subparsers) -> None:
    train = _add(commands, "train", _later("train", "train_command"), "train a policy")
    _add_config(train)
    _add_reward(train)
    text = "print the fields that differ from their defaults and the plan, and stop"
    train.add_argument("--dry-run", action="store_true", help=text)
    train.add_argument("--all", action="store_true", help="with --dry-run: print every field, as a YAML file")
    text = "with --dry-run: plan the memory of other hardware; 8x80 is eight GPUs of 80 GiB each"
    train.add_argument("--devices", default="", metavar="NxGIB", help=text)
    train.add_argument("--resume", action="store_true", help="continue the run in run.dir from its newest checkpoint")
    text = "as --resume, even if seed, data, model or loss have changed; config.yaml records what changed"
    train.add_argument("--resume-with-changes", action="store_true", help=text)
    text = "train on the samples that another run kept (run.samples=all), without an engine"
    train.add_argument("--from-rollouts", default="", metavar="RUN", help=text)


def _rollout(commands: Subparsers) -> None:
    text = "sample answers to prompts and score them, without a learner; or judge again what a run has kept"
    rollout = _add(commands, "rollout", _later("answering", "rollout_command"), text)
    _add_config(rollout)
    _add_reward(rollout)
    text = "prompts to answer (heldout; of kept answers both)"
    rollout.add_argument("--split", choices=("train", "heldout"), default=None, help=text)
    rollout.add_argument(
        "--limit", type=positive, default=None, metavar="N", help="answers to the first N prompts only"
    )
    text = "judge the answers of a run, or of a file of --out, by other tests, task or reward, and show what changed"
    rollout.add_argument("--answers", type=Path, default=None, metavar="RUN", help=text)
    text = "write the answers as JSONL, for `overlap show`"
    rollout.add_argument("--out", type=Path, default=None, metavar="FILE", help=text)


def _filter(commands: Subparsers) -> None:
    text = "measure pass@k of each problem and keep the problems that are solved sometimes"
    made = _add(commands, "filter", _later("standalone", "filter_command"), text)
    _add_config(made)
    _add_reward(made)
    made.add_argument("--samples", type=positive, default=16, metavar="K", help="samples per problem (16)")
    made.add_argument("--low", type=float, default=0.05, help="lowest pass rate to keep (0.05)")
    made.add_argument("--high", type=float, default=0.9, help="highest pass rate to keep (0.9)")
    made.add_argument("--train", type=_whole, default=0, metavar="N", help="keep at most N problems to train on (all)")
    made.add_argument("--heldout", type=_whole, default=0, metavar="N", help="hold out N of the problems kept (0)")
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSONL file to write")


def _check_data(commands: Subparsers) -> None:
    text = (
        "judge the reference solutions of a problem file, an empty answer and the first example printed; "
        "exit code 1 if a row cannot be used or a problem looks wrong, 0 if there are notes alone"
    )
    check = _add(commands, "check-data", _later("check_data", "check_data_command"), text)
    check.add_argument("file", metavar="FILE", help="a source as in data.train: a file, a folder, a split, a hub id")
    _add_reward(check)
    check.add_argument(
        "--out", type=Path, default=None, metavar="JSONL", help="write a row of findings and notes per row of the data"
    )
    check.add_argument("--limit", type=positive, default=None, metavar="N", help="judge the first N problems only")
    _add_config(check)


def _export(commands: Subparsers) -> None:
    export = _add(commands, "export", _run_export, "write the policy of a checkpoint in Hugging Face format")
    export.add_argument("run", metavar="RUN", help="run directory, for instance runs/first")
    export.add_argument("--step", type=positive, default=None, metavar="N", help="step of the checkpoint (the newest)")
    export.add_argument("--out", type=Path, default=None, metavar="DIR", help="folder to write (RUN/policy-step-N)")
    text = "upload it, with a model card, to this repository of the Hugging Face hub"
    export.add_argument("--push", default="", metavar="OWNER/NAME", help=text)
    export.add_argument("--private", action="store_true", help="with --push: make a repository that others cannot see")


def _run_export(args: argparse.Namespace) -> Iterator[str]:
    from overlap.commands.exporting import export

    made = export(args.run, step=args.step, out=args.out, push=args.push, private=args.private)
    yield f"{made.path}: the policy after step {made.step} (version {made.version})"
    if made.url:
        yield f"{made.url}: uploaded, with its model card"


def _ctl(commands: Subparsers) -> None:
    rows = "\n".join(f"  {name:<7} {what}" for name, what in _CTL_COMMANDS.items())
    more = (
        f"commands:\n{rows}\n\n"
        "A run that is starting keeps a command until it is up; one that is about to end refuses it.\n"
        "Exit codes: 0 done, 1 refused or not answered, 2 there is no such run."
    )
    ctl = _add(commands, "ctl", _run_ctl, "pause, resume, drain, save or stop a run, or print its status", more)
    ctl.add_argument("run", metavar="RUN", help="its run directory, for instance runs/latest")
    ctl.add_argument("wish", metavar="COMMAND", choices=tuple(_CTL_COMMANDS), help="one of the commands below")


def _run_ctl(args: argparse.Namespace) -> Iterator[str]:
    import json

    from overlap.run.control_socket import ask

    answer = ask(args.run, args.wish)
    yield answer["done"] if "done" in answer else json.dumps(answer, indent=1)


def _cluster(commands: Subparsers) -> None:
    text = "start, show or stop a cluster of machines (for cluster.address) by hand"
    cluster = commands.add_parser("cluster", help=text, description=text, epilog=_BY_HAND, formatter_class=_AS_WRITTEN)
    kinds = cluster.add_subparsers(required=True, metavar="up|status|down")
    text = "start a node on this machine: the head of a new cluster or, with --join, a further node of one"
    up = _add(kinds, "up", _later("cluster", "up_command"), text, _BY_HAND)
    text = "address by which other machines reach this one (default: its only one), and port of the head (6379)"
    up.add_argument("--address", default="", metavar="HOST[:PORT]", help=text)
    up.add_argument("--join", default="", metavar="HOST:PORT", help="address of the head of the cluster to join")
    up.add_argument("--loopback", action="store_true", help="listen on 127.0.0.1: a cluster of this machine alone")
    up.add_argument("--block", action="store_true", help="run until a signal comes, then stop the node")
    up.add_argument("words", nargs="*", metavar="-- --NAME=VALUE", help="options of `ray start`")
    text = "print the nodes of a cluster, and whether it requires a token"
    status = _add(kinds, "status", _later("cluster", "status_command"), text, _BY_HAND)
    text = "address of the head (default: the head on this machine)"
    status.add_argument("address", nargs="?", default="", metavar="HOST:PORT", help=text)
    text = "file with the cluster's token (default: RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH; on a new head a new token)"
    for parser in (up, status):
        parser.add_argument("--token-file", default="", metavar="FILE", help=text)
    text = "stop the node that `up` started on this machine, with all its processes"
    _add(kinds, "down", _later("cluster", "down_command"), text, _BY_HAND)


def _show(commands: Subparsers) -> None:
    text = "show the samples of a run: what there is, a group side by side, or why one sample got its reward"
    shown = _add(commands, "show", _later("show", "show_command"), text)
    _add_samples(shown)
    shown.add_argument("--step", type=_whole, default=None, metavar="N", help="samples of step N")
    shown.add_argument(
        "--group", type=_whole, default=None, metavar="G", help="a group side by side; the newest of its number"
    )
    shown.add_argument("--sample", default="", metavar="S", help="one sample: g17s3, or 3 with --group 17")
    shown.add_argument("--failed", action="store_true", help="samples that did not pass, each with the reason")
    shown.add_argument("--dropped", action="store_true", help="groups that were not trained on, each with the reason")
    shown.add_argument("--eval", action="store_true", help="samples of evaluations instead of training")
    shown.add_argument("--problem", default="", metavar="ID", help="a problem over the steps, and its samples")
    shown.add_argument(
        "--diff", action="store_true", help="the first failing test of each: what was expected, what came"
    )
    shown.add_argument("--limit", type=positive, default=20, metavar="N", help="samples or groups in a list (20)")
    text = "write the samples, whole, to this .jsonl or .parquet file instead of showing them"
    shown.add_argument("--out", type=Path, default=None, metavar="FILE", help=text)


def _view(commands: Subparsers) -> None:
    text = "look at a run in a browser, also while it goes on: curves, warnings, samples to filter, sort and search"
    view = _add(commands, "view", _run_view, text)
    _add_samples(view)
    view.add_argument("--port", type=_port, default=8710, metavar="N", help="port on 127.0.0.1 (8710; 0: any free one)")
    view.add_argument("--open", action="store_true", help="open the page in the browser of this machine")


def _run_view(args: argparse.Namespace) -> int:
    from overlap.inspect.routes import serve_run

    serve_run(args.run, port=args.port, open_browser=args.open)
    return 0


def _add_samples(parser: argparse.ArgumentParser) -> None:
    text = "run directory, for instance runs/first, or a file that `overlap rollout --out` has written"
    parser.add_argument("run", metavar="RUN", help=text)


def _doctor(commands: Subparsers) -> None:
    text = (
        "check this machine for a training run: what is lacking, and the command that mends it; "
        "exit code 1 if a run would fail, 0 if there are notes alone"
    )
    doctor = _add(commands, "doctor", _later("doctor", "doctor_command"), text)
    doctor.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_config(doctor)


def _init(commands: Subparsers) -> None:
    text = "write a folder with a task of your own: three problems, configuration, test, README"
    init = _add(commands, "init", _later("starting", "init_command"), text)
    init.add_argument("folder", metavar="DIR", help="a new folder, or an empty one")


def _report(commands: Subparsers) -> None:
    text = "write a run's report: outcome, warnings, curves, samples; of several runs, their comparison"
    report = _add(commands, "report", _run_report, text)
    report.add_argument("runs", nargs="+", metavar="RUN", help="run directory, for instance runs/first")
    text = "HTML file to write (RUN/report.html; of several runs report.html)"
    report.add_argument("--out", type=Path, default=None, metavar="FILE", help=text)


def _run_report(args: argparse.Namespace) -> Iterator[str]:
    from overlap.inspect.compare import comparison_lines
    from overlap.inspect.health import run_warnings
    from overlap.inspect.report import write_report
    from overlap.inspect.run_data import load_run

    runs = [load_run(run) for run in args.runs]
    path = write_report(*runs, out=args.out)
    made = [f"{printable(str(path))}: open it in a browser"] if path.is_file() and not is_stdout(path) else []
    if len(runs) == 1:
        yield from (f"WARNING  {warning}" for warning in run_warnings(runs[0]))
    else:
        yield from comparison_lines(runs)
    yield from made


def _fields(commands: Subparsers) -> None:
    text = "list the fields of the configuration: name, default, meaning"
    fields = _add(commands, "fields", _run_fields, text)
    fields.add_argument("name", nargs="?", default="", metavar="NAME", help="a section (learn) or a field (learn.lr)")


def _run_fields(args: argparse.Namespace) -> Iterator[str]:
    from overlap.config.docs import field_lines

    yield from field_lines(args.name)


def _later(module: str, name: str) -> Run:
    """A function of a module of this package, which is imported when it is called."""
    return lambda args: getattr(import_module(f"overlap.commands.{module}"), name)(args)


def _add(commands: Subparsers, name: str, run: Run, text: str, more: str | None = None) -> argparse.ArgumentParser:
    layout = _AS_WRITTEN if more else argparse.HelpFormatter
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, epilog=more, formatter_class=layout
    )
    made.set_defaults(run_command=run)
    return made


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=None, metavar="FILE", help="YAML file of the configuration")
    text = "set a field of the configuration (`overlap fields` lists them)"
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.field=value", help=text)


def _add_reward(parser: argparse.ArgumentParser) -> None:
    text = "the rewards are those of a function of another trainer: data.task and data.options.reward (docs/rewards.md)"
    parser.add_argument("--reward", default="", metavar="MODULE:FUNCTION", help=text)
    text = "the trainer that it was written for: data.options.style (found by its parameters)"
    parser.add_argument("--style", choices=("auto", *STYLES), default="", help=text)


def _whole(text: str, low: int | None = None, high: int | None = None, said: str = "") -> int:
    with suppress(ValueError):
        value = int(text)
        if (low is None or value >= low) and (high is None or value <= high):
            return value
    raise argparse.ArgumentTypeError(f"{text!r}: use a whole number{said}")


def positive(text: str) -> int:
    """A whole number of the command line, 1 or more."""
    return _whole(text, 1, said=", 1 or more")


def _port(text: str) -> int:
    return _whole(text, 0, 65_535, said=" from 0 to 65535")
