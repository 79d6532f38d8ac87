"""``overlap rollout``: sample answers to prompts and score them, without a trainer."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

from overlap.atomic import write_atomic
from overlap.commands.standalone import ServingParts, run_standalone
from overlap.config import load_config
from overlap.core import Prompt, Request, Scored
from overlap.errors import ConfigError
from overlap.evaluation import PassRate, answers, tallied
from overlap.pipeline import PromptStream
from overlap.prepare import RunInputs
from overlap.record import (
    MARK,
    Progress,
    check_out,
    data_digest,
    dialog_of,
    to_json_types,
    trajectory_row,
    write_rollouts,
)


def rollout_command(args: argparse.Namespace) -> int:
    """Answer prompts with ``rollout.samples_per_group`` samples each and score them. Returns the exit code.

    ``--rollouts`` gets the samples whole, in the order in which a run would ask for them.
    """
    cfg, split, out, keep = load_config(args.config, args.overrides), args.split, args.out, args.rollouts
    if out is not None:
        check_out(out, ours='"prompt_id": ')
    if keep is not None:
        check_out(keep, field="--rollouts", ours=MARK)
        if split != "train":
            raise ConfigError("--rollouts", str(keep), "a run learns from its own prompts: add --split train")

    def asked(p: RunInputs) -> tuple[Prompt, ...]:
        prompts = p.train if split == "train" else p.heldout
        if prompts and keep is not None:
            stream = PromptStream(prompts, cfg.run.seed)
            prompts = tuple(stream.at(position) for position in range(len(prompts)))
        prompts = prompts[: args.limit]
        if not prompts:
            named = cfg.data.train if split == "train" else cfg.data.heldout
            raise ConfigError(f"data.{split}", named, "has no prompts for this task; name problems, or another --split")
        return prompts

    async def work(parts: ServingParts) -> None:
        p, prompts = parts.inputs, asked(parts.inputs)
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


async def answer(parts: ServingParts, prompts: tuple[Prompt, ...], samples: int) -> list[Scored]:
    """Generate ``samples`` responses per prompt, and score them."""
    requests = [Request(group, k, prompt) for group, prompt in enumerate(prompts) for k in range(samples)]
    with Progress(parts.console, len(requests)) as progress:

        def on_scored(_: Scored, ended: int) -> None:
            progress.live(f"scored {ended}/{len(requests)}")

        stall_s = parts.inputs.cfg.run.stall_s
        return await answers(parts.generator.generate, parts.verifier, requests, on_scored, stall_s=stall_s)


def _write_rows(out: Path, scored: list[Scored], inputs: RunInputs) -> None:
    """Write the answers as JSONL: complete, or not at all. Raises RunDirError."""

    def decode(prompt: Prompt) -> str:
        return str(inputs.tokenizer.decode(list(prompt.token_ids)))

    def row(s: Scored) -> str:
        text, dialog = decode(s.trajectory.request.prompt), dialog_of(s.trajectory, decode)
        return json.dumps(to_json_types(trajectory_row(0, s, "", text, dialog)), ensure_ascii=False)

    write_atomic(out, "".join(f"{row(s)}\n" for s in scored))
