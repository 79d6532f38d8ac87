"""What runs without a trainer: ``overlap rollout``, ``overlap filter`` and ``overlap check-data``."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from overlap.atomic import write_atomic
from overlap.config import Config
from overlap.core import Generator, Prompt, Request, Scored, Verifier
from overlap.errors import ConfigError
from overlap.evaluation import (
    DataReport,
    Finding,
    PassRate,
    SplitBounds,
    answers,
    check_in_parts,
    filter_problems,
    open_pool,
    remember,
    tallied,
)
from overlap.pipeline import PromptStream, take_in
from overlap.placement import MemoryPlan, Placement, PlannedRun, memory_line, place_here, read_shape
from overlap.prepare import Prepared, Seated, checked_file, episode_lines, left_out_lines, prepare, seat, seats_lines
from overlap.process import Reaper, interruptible, run_to_end, scratch_directory
from overlap.record import (
    MARK,
    Console,
    Progress,
    check_out,
    data_digest,
    dialog_of,
    quiet,
    to_json_types,
    trajectory_row,
    write_rollouts,
)
from overlap.run import Door, open_doors, rolling, sandbox_verifier, serving_engines
from overlap.task import load_task


@dataclass(frozen=True, slots=True)
class Parts:
    """An engine that serves the checkpoint itself, and a verifier."""

    prepared: Prepared
    generator: Generator
    verifier: Verifier
    console: Console


def rollout_command(
    cfg: Config, *, split: Literal["train", "heldout"], limit: int | None, out: Path | None, keep: Path | None = None
) -> int:
    """Answer prompts with ``rollout.samples_per_group`` samples each and score them. Returns the exit code.

    ``keep`` gets the samples whole, in the order in which a run by ``cfg`` would ask for them.
    """
    if out is not None:
        check_out(out, ours='"prompt_id": ')
    if keep is not None:
        check_out(keep, field="--rollouts", ours=MARK)
        if split != "train":
            raise ConfigError("--rollouts", str(keep), "a run learns from its own prompts: add --split train")

    def asked(p: Prepared) -> tuple[Prompt, ...]:
        prompts = p.train if split == "train" else p.heldout
        if prompts and keep is not None:
            stream = PromptStream(prompts, cfg.run.seed)
            prompts = tuple(stream.at(position) for position in range(len(prompts)))
        prompts = prompts[:limit]
        if not prompts:
            named = cfg.data.train if split == "train" else cfg.data.heldout
            raise ConfigError(f"data.{split}", named, "has no prompts for this task; name problems, or another --split")
        return prompts

    async def work(parts: Parts) -> None:
        p, prompts = parts.prepared, asked(parts.prepared)
        began, samples = time.monotonic(), cfg.rollout.samples_per_group
        scored = await answer(parts, prompts, samples)
        rate = PassRate(tallied(scored), samples, cfg.rollout.temperature, time.monotonic() - began)
        tokens = sum(s.trajectory.sampled for s in scored)
        parts.console.print(
            f"{len(scored)} answers to {len(prompts)} prompts: {rate}; "
            f"{tokens:,} tokens, {tokens / rate.seconds:,.0f} tok/s"
        )
        if out is not None:
            await asyncio.to_thread(_write_rows, out, scored, p)
        if keep is not None:
            await asyncio.to_thread(write_rollouts, keep, data_digest(p.train), scored, time.monotonic())

    run_standalone(cfg, work, check=asked)
    return 0


async def answer(parts: Parts, prompts: tuple[Prompt, ...], samples: int) -> list[Scored]:
    """Generate ``samples`` responses per prompt, and score them."""
    requests = [Request(group, k, prompt) for group, prompt in enumerate(prompts) for k in range(samples)]
    done = itertools.count(1)
    with Progress(parts.console, len(requests)) as progress:

        def on_scored(_: Scored) -> None:
            progress.live(f"scored {next(done)}/{len(requests)}")

        stall_s = parts.prepared.cfg.run.stall_s
        return await answers(parts.generator, parts.verifier, requests, on_scored, stall_s=stall_s)


def run_standalone(
    cfg: Config,
    work: Callable[[Parts], Awaitable[None]],
    *,
    check: Callable[[Prepared], object] = id,
    preparing: Callable[[Path], Prepared] | None = None,
    wanted: Callable[[], Collection[str]] = lambda: ("engine", "verifier"),
) -> None:
    """Open engine and verifier, do the work, close them. ``check`` may refuse the prompts before anything is opened.

    ``preparing`` makes what is prepared in another way than a run's, and ``wanted`` says, after that, which doors are
    opened: the work must do without the others.
    """
    with interruptible() as interrupts, scratch_directory() as (scratch, reaper):
        prepared = preparing(scratch) if preparing is not None else prepare(cfg, None, scratch)
        check(prepared)
        doors = wanted()
        cfg = prepared.cfg
        placement = seat_engines(prepared)[0].placement if "engine" in doors else place_here(cfg, learner=False)
        with quiet(scratch / "run.log") as console:
            for name, value in left_out_lines(prepared) + (episode_lines(prepared) if "engine" in doors else []):
                console.print(f"{name}: {value}")
            run_to_end(_Standalone(prepared, placement, scratch, console, reaper, work, doors), interrupts)


def check_engines(prepared: Prepared) -> list[tuple[str, str]]:
    """Who sits where without a learner, in lines for a person. Raises ConfigError where the engines cannot fit."""
    seated, asked, memory = seat_engines(prepared)
    return [*seats_lines(asked, seated.seating(prepared.cfg)), *seated.lines(), ("memory", memory_line(memory))]


def seat_engines(prepared: Prepared) -> tuple[Seated, PlannedRun, MemoryPlan]:
    """Seats for a run's engines without a learner, and what they need. Raises ConfigError where they cannot fit."""
    asked, seated = PlannedRun(prepared.cfg, read_shape(prepared.policy)), seat(prepared.cfg, learner=False)
    return seated, asked, seated.check(asked)


@dataclass
class _Standalone:
    prepared: Prepared
    placement: Placement
    scratch: Path
    console: Console
    reaper: Reaper
    work: Callable[[Parts], Awaitable[None]]
    wanted: Collection[str]

    async def __call__(self) -> None:
        p, log = self.prepared, self.scratch / "run.log"
        tell = self.console.print
        engines = serving_engines(p, self.placement, self.scratch, log=log, tell=tell, watch=self.reaper.watch_pid)
        verifier = sandbox_verifier(p, self.placement, self.scratch, log=log, tell=tell)
        generator = rolling(p, engines, verifier, self.scratch)
        async with AsyncExitStack() as stack:
            doors: dict[str, Door] = {"verifier": verifier, "engine": generator}
            doors = {name: door for name, door in doors.items() if name in self.wanted}
            if doors:
                self.console.print(f"starting the {' and the '.join(reversed(doors))}")
            await open_doors(doors, stack, self.reaper, self.console.print)
            await self.work(Parts(p, generator, verifier, self.console))


def _write_rows(out: Path, scored: list[Scored], prepared: Prepared) -> None:
    """Write the answers as JSONL: complete, or not at all. Raises RunDirError."""

    def decode(prompt: Prompt) -> str:
        return str(prepared.tokenizer.decode(list(prompt.token_ids)))

    def row(s: Scored) -> str:
        text, dialog = decode(s.trajectory.request.prompt), dialog_of(s.trajectory, decode)
        return json.dumps(to_json_types(trajectory_row(0, s, "", text, dialog)), ensure_ascii=False)

    write_atomic(out, "".join(f"{row(s)}\n" for s in scored))


def check_data_command(cfg: Config, *, limit: int | None, out: Path | None) -> int:
    """Judge the probes of every problem of ``data.train``; 1 where something was found. Needs no policy."""
    if out is not None:
        check_out(out, ours='"place": ')
    with interruptible() as interrupts, scratch_directory() as (scratch, reaper), quiet(scratch / "run.log") as console:
        task = load_task(cfg.data.task, cfg)
        intakes = [take_in(task.prompts(_NoTokens(), split), cfg.model.prompt_tokens) for split in ("train", "heldout")]
        prompts = [prompt for intake in intakes for prompt in intake.prompts][:limit]
        console.print(f"{sum(intake.rows for intake in intakes)} rows, {len(prompts)} problems to judge")
        for line in (line for intake in intakes for line in intake.lines()):
            console.print(f"left out: {line}")
        findings: list[Finding] = []

        async def work() -> None:
            pool = open_pool(cfg, task, scratch)
            async with AsyncExitStack() as stack:
                await open_doors({"sandbox": Sandbox(pool)}, stack, reaper, console.print)
                with Progress(console, len(prompts)) as progress:
                    async for report in check_in_parts(pool, task, prompts, progress.live):
                        findings.extend(report.findings)
                        remember(checked_file(), report)

        run_to_end(work, interrupts)
    report = DataReport(tuple(findings))
    console.print("\n".join(report.lines()))
    if out is not None:
        write_atomic(out, "".join(json.dumps(f.to_json(), ensure_ascii=False) + "\n" for f in report.findings))
    return 0 if report.clean else 1


@dataclass
class Sandbox:
    """The sandbox's pool as a door."""

    pool: Any

    async def start(self) -> None:
        await self.pool.__aenter__()

    def pids(self) -> tuple[int, ...]:
        return tuple(self.pool.pids())

    async def close(self) -> None:
        await self.pool.close()


class _NoTokens:
    """Stands where a tokenizer is asked for, and nobody looks at tokens: every prompt is empty."""

    chat_template = None

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": []}


def filter_command(cfg: Config, *, samples: int, bounds: SplitBounds, out: Path) -> int:
    """Measure pass@k of every training prompt and write the split file ``out``. Returns the exit code."""
    check_out(out, ours='"split": ')
    if not cfg.data.train:
        raise ConfigError("data.train", cfg.data.train, "name the problem file (or hub id) to filter")

    async def work(parts: Parts) -> None:
        prompts = (*parts.prepared.train, *parts.prepared.heldout)
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
