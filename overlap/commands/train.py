"""``overlap train`` up to the run itself: its configuration, and ``--dry-run``, which prints the plan and stops."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import yaml

from overlap.config.docs import changed_lines
from overlap.config.fields import Config
from overlap.config.load import last_override, load_config
from overlap.core.errors import ConfigError
from overlap.core.json_types import to_json_types
from overlap.hooks.checks import named_callbacks, named_trackers
from overlap.placement.fit import check_fit
from overlap.placement.memory import memory_plan
from overlap.placement.table import memory_lines
from overlap.process.scratch import scratch_directory
from overlap.record.resume import stored_config
from overlap.run import training
from overlap.run.disk import disk_need
from overlap.run.kept_rollouts import NEEDS, rollouts_in
from overlap.run.plan import devices_plan, devices_plan_lines, memory_inputs, plan_lines
from overlap.run.run_inputs import check_place, prepare
from overlap.run.seating import seat

ANY_CORES = ("verify.workers=1",)
"""Overrides for a plan of other hardware: the number of its cores is not known."""


def train_command(args: argparse.Namespace) -> int | Iterator[str]:
    """Train; or yield the lines of the plan."""
    resume = args.resume or args.resume_with_changes
    if args.devices:
        return _plan_devices(args)
    if args.all and not args.dry_run:
        raise ConfigError("--all", True, "it lists every field in a dry run: use it with --dry-run")
    cfg = _kept_config(args) if args.from_rollouts else _resumed_config(args) if resume else config_of(args)
    if args.dry_run:
        with_changes, every = args.resume_with_changes, args.all
        return dry_run(cfg, args.from_rollouts, resume=resume, with_changes=with_changes, every_field=every)
    training.run_training(cfg, resume=resume, with_changes=args.resume_with_changes, rollouts=args.from_rollouts)
    return 0


def config_of(args: argparse.Namespace) -> Config:
    """The configuration of a command: its file, then its overrides. Raises ConfigError."""
    return load_config(args.config, args.overrides)


def _resumed_config(args: argparse.Namespace) -> Config:
    """Without ``--config`` a resumed run takes the configuration in its directory."""
    if args.config is not None:
        return config_of(args)
    given = last_override(args.overrides, "run.dir")
    folder = Config().run.dir if given is None else given
    return load_config(stored_config(folder), [*args.overrides, *([f"run.dir={folder}"] if given is None else [])])


def _kept_config(args: argparse.Namespace) -> Config:
    """Without ``--config`` a run from kept samples takes the configuration of the run that kept them."""
    beside = rollouts_in(args.from_rollouts)[1]
    if args.config is not None or beside is None:
        return load_config(args.config, [*NEEDS, *args.overrides])
    return load_config(beside, [*NEEDS, f"run.dir={Config().run.dir}", *args.overrides])


def _plan_devices(args: argparse.Namespace) -> Iterator[str]:
    if not args.dry_run or args.resume or args.resume_with_changes or args.from_rollouts or args.all:
        way_out = "it plans the memory of other hardware: use it with --dry-run, and without --resume or kept samples"
        way_out += ", and without --all" if args.all else ""
        raise ConfigError("--devices", args.devices, way_out)
    return plan_devices(load_config(args.config, [*args.overrides, *ANY_CORES]), args.devices)


def plan_devices(cfg: Config, devices: str) -> Iterator[str]:
    """Yield what a run needs in memory on ``devices`` ("8x80"), for which the policy's ``config.json`` is enough.
    Raises ConfigError where it would not fit.
    """
    asked, seats = devices_plan(cfg, devices)
    yield from (f"{name:<13} {value}" for name, value in devices_plan_lines(asked, seats))
    yield from (f"{name:<13} {value}" for name, value in memory_lines(memory_plan(asked, seats), seats))
    check_fit(asked, seats)


def dry_run(
    cfg: Config, rollouts: str, *, resume: bool, with_changes: bool, every_field: bool = False
) -> Iterator[str]:
    """Yield the configuration and the plan of a run. Raises ConfigError where the run could not start.

    Of the configuration those fields that differ from their defaults, or with ``every_field`` all of them: then the
    lines are a YAML file, with the plan in its comments.
    """
    check_place(cfg, resume=resume)
    named_callbacks(cfg), named_trackers(cfg)
    with scratch_directory() as (scratch, _):
        inputs = prepare(cfg, None, scratch)
    placed = seat(cfg, engine=not rollouts)
    kept = training.open_rollouts(inputs, rollouts, resume=resume) if rollouts else None
    if resume:
        training.check_resume(inputs, with_changes=with_changes)
    asked = memory_inputs(inputs, kept)
    memory = memory_plan(asked, placed.seats)
    plan = plan_lines(inputs, asked, placed.seats, memory, kept) + placed.lines()
    lines = [f"{name:<13} {value}" for name, value in plan]
    if every_field:
        yield yaml.safe_dump(to_json_types(cfg.to_dict()), sort_keys=False, allow_unicode=True)
        yield from (f"# {line}".rstrip() for line in lines)
    else:
        yield from (*changed_lines(cfg), "", *lines)
    placed.check(asked)
    disk_need(asked, len(inputs.heldout)).check(cfg.run.dir)
