"""Work with an engine and a verifier but no learner: what ``rollout``, ``filter`` and evaluations share; and ``overlap
filter``, which measures pass@k of every problem and keeps those with a mixed outcome.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Generator, Task, Verifier
from overlap.core.errors import ConfigError
from overlap.evaluation.filter import SplitBounds, filter_problems
from overlap.placement.memory import MemoryNeed
from overlap.placement.planned_run import PlannedRun
from overlap.placement.seats import place_here
from overlap.placement.shapes import read_shape
from overlap.placement.table import memory_lines
from overlap.process.interrupts import handle_interrupts
from overlap.process.scratch import run_to_end, scratch_directory
from overlap.record.logs import Console, OpenConsole, quiet
from overlap.record.out_file import OutFile
from overlap.record.progress import Progress
from overlap.run.open_close import Component, open_components
from overlap.run.parts import PartFactory
from overlap.run.plan import episode_lines, left_out_lines, seats_lines
from overlap.run.run_inputs import RunInputs, prepare
from overlap.run.seating import RunPlacement, seat


@dataclass(frozen=True, slots=True)
class ServingParts:
    """An engine that serves the checkpoint itself, and a verifier."""

    inputs: RunInputs
    generator: Generator
    verifier: Verifier
    console: Console


def run_standalone(
    cfg: Config,
    work: Callable[[ServingParts], Awaitable[None]],
    *,
    task: Task | None = None,
    output: OpenConsole = quiet,
    check: Callable[[RunInputs], object] = id,
    preparing: Callable[[Path], RunInputs] | None = None,
    wanted: Callable[[], Collection[str]] = lambda: ("engine", "verifier"),
) -> None:
    """Start engine and verifier, do the work, close them. ``check`` may refuse the prompts before anything is started.

    ``task`` and ``output``: see ``run_training``. ``preparing`` loads the inputs in another way than ``prepare``.
    ``wanted``, called after that, returns which of "engine" and "verifier" are started: the work must do without the
    others.
    """
    with handle_interrupts() as interrupts, scratch_directory() as (scratch, reaper):
        inputs = preparing(scratch) if preparing is not None else prepare(cfg, task, scratch, output)
        check(inputs)
        started = wanted()
        cfg = inputs.cfg
        if "engine" in started:
            placed, asked, _ = place_engines(inputs)
            placement = placed.counted(asked)
        else:
            placement = place_here(cfg, learner=False)
        with output(log := scratch / "run.log") as console:
            for name, value in left_out_lines(inputs) + (episode_lines(inputs) if "engine" in started else []):
                console.print(f"{name}: {value}")
            factory = PartFactory(inputs, placement, scratch, log, console.print, reaper.watch_pid)

            async def serve() -> None:
                engines, verifier = factory.serving_engines(), factory.verifier()
                generator = factory.with_episodes(engines, verifier)
                made: dict[str, Component] = {"verifier": verifier, "engine": generator}
                parts = {name: component for name, component in made.items() if name in started}
                async with AsyncExitStack() as stack:
                    if parts:
                        console.print(f"starting the {' and the '.join(reversed(parts))}")
                    await open_components(parts, stack, reaper, console.print)
                    await work(ServingParts(inputs, generator, verifier, console))

            run_to_end(serve, interrupts)


def check_engines(inputs: RunInputs) -> list[tuple[str, str]]:
    """Seats and memory without a learner, in lines for a person. Raises ConfigError where the engines cannot fit."""
    placed, asked, memory = place_engines(inputs)
    return [*seats_lines(asked, placed.seats), *placed.lines(), *memory_lines(memory, placed.seats)]


def place_engines(inputs: RunInputs) -> tuple[RunPlacement, PlannedRun, tuple[MemoryNeed, ...]]:
    """Seats for a run's engines without a learner, and what they need. Raises ConfigError where they cannot fit."""
    asked, placed = PlannedRun(inputs.cfg, read_shape(inputs.policy)), seat(inputs.cfg, learner=False)
    return placed, asked, placed.check(asked)


def filter_command(args: argparse.Namespace) -> int:
    """Measure pass@k of every training prompt and write a split file. Returns the exit code."""
    bounds = SplitBounds(args.low, args.high, args.train, args.heldout)
    cfg, samples, out = load_config(args.config, args.overrides), args.samples, OutFile(args.out, ours='"split": ')
    if not cfg.data.train:
        raise ConfigError("data.train", cfg.data.train, "name the problem file (or hub id) to filter")

    async def work(parts: ServingParts) -> None:
        prompts = (*parts.inputs.train, *parts.inputs.heldout)
        with Progress(parts.console, len(prompts) * samples) as progress:
            report = await filter_problems(
                parts.generator,
                parts.verifier,
                prompts,
                out=out,
                source=cfg.data.train,
                samples=samples,
                bounds=bounds,
                progress=lambda done, of: progress.live(f"scored {done}/{of}"),
                stall_s=cfg.run.stall_s,
            )
        counts = ", ".join(f"{count} {split or 'unscored'}" for split, count in sorted(report.counts.items()))
        parts.console.print(f"{report.histogram()}\n{report.rate}; {counts}; written to {out}")

    run_standalone(cfg, work)
    return 0
