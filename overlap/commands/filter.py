"""``overlap filter``: measure pass@k of every problem and keep those with a mixed outcome."""

from __future__ import annotations

import argparse

from overlap.commands.standalone import ServingParts, run_standalone
from overlap.config.load import load_config
from overlap.core.errors import ConfigError
from overlap.evaluation.filter import SplitBounds, filter_problems
from overlap.record.out_file import OutFile
from overlap.record.progress import Progress


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
