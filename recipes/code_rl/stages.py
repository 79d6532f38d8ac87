"""Training in stages, as one command: each is a run of its own, and begins with the policy of the one before.

    prepare data ──▶ stage 1: run, policy/ ──▶ stage 2: run from that policy ──▶ ...

The same command continues where it was stopped: a finished stage is skipped, one with a checkpoint continues from it,
one that was stopped before its first checkpoint is begun anew, beside the files that it left.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from overlap.cli import command, ending_in_order, print_output
from overlap.commands.exporting import export
from overlap.commands.train import ANY_CORES, dry_run, plan_devices
from overlap.config.fields import Config
from overlap.config.load import last_override, load_config, without_override
from overlap.core.errors import ConfigError
from overlap.record.checkpoint import latest, load_state
from overlap.record.ownership import check_out, holds_run, resolve
from overlap.record.run_files import RunFile, exported_policy
from overlap.record.run_summary import RunExit
from overlap.record.rundir import RunDir
from overlap.run.training import run_training
from recipes.code_rl.command_line import Parser
from recipes.code_rl.prepare import AGAINST, FEWEST_TESTS, MARK, Preparation

State = Literal["finished", "saved", "begun", "new"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One run of the command."""

    file: Path
    cfg: Config

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def folder(self) -> Path:
        """Its run directory."""
        return resolve(self.cfg.run.dir)

    @property
    def policy(self) -> Path:
        """The policy that the stage leaves at its end."""
        return RunFile.POLICY.of(self.folder)

    @property
    def exported(self) -> Path:
        """The policy of a stage that was stopped behind its last step: of its checkpoint."""
        checkpoint = latest(RunFile.CHECKPOINTS.of(self.folder))
        step = load_state(checkpoint).step if checkpoint is not None else self.cfg.run.steps
        return exported_policy(self.folder, step)

    def beginning_with(self, policy: Path) -> Stage:
        """Return this stage with ``policy`` as its first policy."""
        return replace(self, cfg=replace(self.cfg, model=replace(self.cfg.model, policy=str(policy))))

    def state(self) -> State:
        """Return the stage's state by the content of its directory: ``begun`` has a checkpoint to go on from, ``saved``
        that of its last step, and no policy.

        Raises ConfigError for one that has ended, and left neither a policy nor a checkpoint to make it of.
        """
        try:
            summary = json.loads(RunFile.SUMMARY.of(self.folder).read_bytes())
            how = RunExit.of(summary["exit"])
            enough = how is RunExit.ALL_SOLVED or summary["steps"] >= self.cfg.run.steps
            ended = how.complete and enough
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            ended = False
        if ended and (self.policy / "config.json").is_file():
            return "finished"
        checkpoint = latest(RunFile.CHECKPOINTS.of(self.folder))
        if checkpoint is None and ended:
            way_out = "holds a finished stage without its policy/: put that back, or give the folder another name"
            raise ConfigError("run.dir", str(self.folder), way_out)
        if checkpoint is None:
            return "new"
        return "saved" if load_state(checkpoint).step >= self.cfg.run.steps else "begun"


def stages_of(files: Sequence[Path], overrides: Sequence[str]) -> tuple[Stage, ...]:
    """The stages; overrides are for each of them, and ``run.dir`` is the folder that holds their directories.

    Raises ConfigError.
    """
    where, given = last_override(overrides, "run.dir"), without_override(overrides, "run.dir")
    stages: list[Stage] = []
    for file in files:
        cfg = load_config(file, given)
        if "{time}" in (folder := cfg.run.dir):
            raise ConfigError(
                "run.dir", folder, f"a stage is found again by its directory: take {{time}} out of {file}"
            )
        if where is not None:
            cfg = replace(cfg, run=replace(cfg.run, dir=str(Path(where) / Path(folder).name)))
        if cfg.run.dir in (stage.cfg.run.dir for stage in stages):
            raise ConfigError("run.dir", cfg.run.dir, "two stages would write there: give each another one")
        stage = Stage(file, cfg)
        stages.append(stage.beginning_with(stages[-1].policy) if stages else stage)
    _check_order(files, without_override(given, "model.policy"))
    return tuple(stages)


def _check_order(files: Sequence[Path], overrides: Sequence[str]) -> None:
    """Refuse a stage whose file names the policy of another of them that does not come right before it. Raises
    ConfigError.
    """
    named = [load_config(file, overrides) for file in files]
    made = [RunFile.POLICY.of(resolve(cfg.run.dir)) for cfg in named]
    for number, cfg in enumerate(named):
        wanted = Path(cfg.model.policy).absolute()
        if wanted in made and made.index(wanted) != number - 1:
            first = files[made.index(wanted)]
            way_out = f"begins with the policy of {first} (model.policy={cfg.model.policy}): put that right before it"
            raise ConfigError("STAGE.yaml", str(files[number]), way_out)


def set_aside(folder: Path) -> Path | None:
    """Make room for a stage that begins anew: what is in its place gets another name. Raises ConfigError where a run
    is still writing there.
    """
    if not folder.is_dir() or not holds_run(folder):
        return None
    RunDir.reopen(folder).close()
    number = next(n for n in range(1, 10**6) if not folder.with_name(f"{folder.name}.stopped-{n}").exists())
    return folder.rename(folder.with_name(f"{folder.name}.stopped-{number}"))


def chained(stages: Sequence[Stage]) -> list[tuple[Stage, State]]:
    """Each stage with how far it is, and beginning with what the one before it leaves.

    Raises ConfigError for a stage that has begun while one before it has not ended: with a policy that is none of its.
    """
    found: list[tuple[Stage, State]] = []
    for stage in stages:
        state = stage.state()
        if found:
            before, how = found[-1]
            stage = stage.beginning_with(before.exported if how == "saved" else before.policy)
            if state != "new" and how in ("begun", "new"):
                way_out = f"began with another policy than {before.folder} is going to leave: give it another name"
                raise ConfigError("run.dir", str(stage.folder), way_out)
        found.append((stage, state))
    return found


def run_stages(stages: Sequence[Stage]) -> int:
    """Train the stages that are not finished, one after the other; returns the exit code.

    Raises what ``run_training`` does.
    """
    for number, (stage, state) in enumerate(chained(stages), start=1):
        title = f"stage {number} of {len(stages)}, {stage.name}"
        policy = stage.policy
        if state == "saved":
            policy = stage.exported
            if not policy.is_dir():
                export(str(stage.folder))
        if state in ("finished", "saved"):
            print_output(f"{title}: finished, its policy is {policy}")
            continue
        former = set_aside(stage.folder) if state == "new" else None
        aside = f" (stopped before its first checkpoint; what it left is {former})" if former else ""
        print_output(f"{title}: {'goes on' if state == 'begun' else 'begins'} in {stage.folder}{aside}")
        summary = run_training(stage.cfg, resume=state == "begun")
        if not RunExit.of(summary["exit"]).complete:
            print_output(f"{title}: {summary['exit']}; the same command goes on from here")
            return 0
    return 0


def show_stages(stages: Sequence[Stage], devices: str = "", *, every_field: bool = False) -> int:
    """Print the output of ``overlap train --dry-run``, its ``--devices`` and ``--all`` for each stage; a stage whose
    policy is still to be made is planned with the policy of the first stage, which has the same shape.
    """
    for number, (stage, state) in enumerate(chained(stages), start=1):
        cfg = stage.cfg
        print_output(f"# stage {number} of {len(stages)}, {stage.name}: {state}; it begins with {cfg.model.policy}")
        if state in ("finished", "saved"):
            continue
        if number > 1 and not Path(cfg.model.policy).is_dir():
            cfg = replace(cfg, model=replace(cfg.model, policy=stages[0].cfg.model.policy))
        resume = state == "begun"
        here = dry_run(cfg, "", resume=resume, with_changes=False, every_field=every_field)
        for line in plan_devices(cfg, devices) if devices else here:
            print_output(line)
    return 0


def prepared(args: argparse.Namespace) -> list[str]:
    """The overrides, with ``data.train`` for the data that ``--prepare`` names, which is made where it is missing."""
    own = last_override(args.overrides, "data.train") is not None
    if args.prepare is None or own:
        return list(args.overrides)
    if not args.prepare.is_file():
        if args.dry_run:
            print_output(f"# {args.prepare} is still to be made: planned with all rows of the sources")
            return list(args.overrides)
        args.prepare.parent.mkdir(parents=True, exist_ok=True)
        check_out(args.prepare, field="--prepare", ours=MARK)
        cfg = load_config(args.stages[0], args.overrides)
        asked = Preparation(cfg, (cfg.data.train,), AGAINST, FEWEST_TESTS, True, args.prepare)
        written = asked.run()
        print_output(*asked.outcome.lines(), written)
    return [*args.overrides, f"data.train={args.prepare}"]


def stages_parser() -> Parser:
    text = "Train in stages, each from the policy of the one before; the same command goes on where it was stopped."
    made = Parser(prog="train_deepcoder.sh", description=text)
    made.add_argument("stages", nargs="+", type=Path, metavar="STAGE.yaml", help="configurations, in their order")
    text = "split file to train on; made by DeepCoder's filters where it is missing"
    made.add_argument("--prepare", type=Path, default=None, metavar="FILE.jsonl", help=text)
    made.add_argument("--dry-run", action="store_true", help="print configuration and plan of each stage, and stop")
    made.add_argument("--all", action="store_true", help="with --dry-run, print every field of the configurations")
    text = "with --dry-run, plan the memory of other hardware: 8x80 is eight GPUs of 80 GiB each"
    made.add_argument("--devices", default="", metavar="NxGIB", help=text)
    return made


def staged(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    if args.all and (args.devices or not args.dry_run):
        raise ConfigError("--all", True, "it lists every field: use it with --dry-run, and without --devices")
    if args.devices:
        if not args.dry_run:
            raise ConfigError(
                "--devices", args.devices, "memory of other hardware is only planned: use it with --dry-run"
            )
        return show_stages(stages_of(args.stages, [*args.overrides, *ANY_CORES]), args.devices)
    stages_of(args.stages, args.overrides)  # wrong words are reported before anything is prepared
    stages = stages_of(args.stages, prepared(args))
    return show_stages(stages, every_field=args.all) if args.dry_run else run_stages(stages)


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit code."""
    args = stages_parser().parse(argv)
    return ending_in_order(lambda: staged(args))


if __name__ == "__main__":
    raise SystemExit(command(main))
