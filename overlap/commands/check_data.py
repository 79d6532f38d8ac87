"""``overlap check-data``: judge what the data says of itself, before anything is trained on it."""

from __future__ import annotations

import argparse
import json
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from overlap.config.load import load_config
from overlap.evaluation.data_check import DataReport, check_problems, in_file, open_pool
from overlap.process.interrupts import handle_interrupts
from overlap.process.scratch import run_to_end, scratch_directory
from overlap.record.logs import quiet
from overlap.record.out_file import OutFile
from overlap.record.progress import Progress
from overlap.run.open_close import open_components
from overlap.run.seating import check_cluster, cluster_pool
from overlap.run.task_prompts import task_prompts
from overlap.task import load_task

if TYPE_CHECKING:
    from overlap.verify.guarded_pool import JudgePool


def check_data_command(args: argparse.Namespace) -> int:
    """Judge the probes of every problem of a file; 1 where a row is left out or a problem has a finding, 0 where there
    are notes alone. Needs no policy.
    """
    cfg = load_config(args.config, args.overrides)
    cfg = replace(cfg, data=replace(cfg.data, train=args.file, heldout=""))  # a name, whatever type YAML reads it as
    out = None if args.out is None else OutFile(args.out, ours='{"place": ')
    with (
        handle_interrupts() as interrupts,
        scratch_directory() as (scratch, reaper),
        quiet(scratch / "run.log") as console,
    ):
        check_cluster(cfg)
        task = load_task(cfg.data.task, cfg)
        splits = list(task_prompts(task, _NoTokens(), cfg.model.prompt_tokens).values())
        prompts = [prompt for intake in splits for prompt in intake.prompts]
        prompts = sorted(prompts, key=lambda prompt: in_file(prompt.place))[: args.limit]  # the task has shuffled them
        console.print(f"{sum(intake.rows for intake in splits)} rows, {len(prompts)} problems to judge")
        for intake in splits:
            for line in (*(f"left out: {x}" for x in intake.lines()), *(f"note: {x}" for x in intake.noted())):
                console.print(line)
        checked: list[DataReport] = []

        async def work() -> None:
            pool = cluster_pool(cfg, task, console.print) if cfg.cluster.address else open_pool(cfg, task, scratch)
            async with AsyncExitStack() as stack:
                await open_components({"sandbox": SandboxComponent(pool)}, stack, reaper, console.print)
                with Progress(console, len(prompts)) as progress:

                    def judged(done: int) -> None:
                        progress.live(f"judged {done}/{len(prompts)}")

                    checked.append(await check_problems(pool.judge, task, prompts, progress=judged))

        run_to_end(work, interrupts)
    report = replace(checked[0], left_out=tuple(row for intake in splits for row in intake.left_out))
    where = f"; every row is in {out}" if out is not None else "" if report.clean else "; --out FILE lists every row"
    console.print("\n".join(report.lines()))
    if out is not None:
        out.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in report.rows()))
    console.print(report.verdict() + where)
    return 0 if report.clean else 1


@dataclass
class SandboxComponent:
    """A pool of sandboxes as a component."""

    pool: JudgePool

    async def start(self) -> None:
        await self.pool.__aenter__()

    def pids(self) -> tuple[int, ...]:
        return tuple(self.pool.pids())

    async def close(self) -> None:
        await self.pool.__aexit__(None, None, None)


class _NoTokens:
    """A tokenizer for calls in which no code reads tokens: every prompt is empty."""

    chat_template = None

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": []}
