"""``overlap.rollout`` and its command: draw answers to prompts and score them, without a trainer. ``overlap.evaluate``:
draw them at the temperature of evaluations, and return how many pass.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from overlap.commands.standalone import ServingParts, run_standalone
from overlap.config.arguments import check_config_given, check_count_given, path_given
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Prompt, Request, Scored, Split, Task
from overlap.errors import ConfigError, near_or_all
from overlap.evaluation.evaluate import PassRate, answers, measure_pass_rate, tallied
from overlap.pipeline.prompts import PromptStream
from overlap.prepare.run_inputs import RunInputs
from overlap.record.digest import data_digest
from overlap.record.logs import OpenConsole, guest, quiet
from overlap.record.out_file import OutFile
from overlap.record.progress import Progress
from overlap.record.rollouts import MARK, write_rollouts
from overlap.record.sample_rows import SampleNotes, SampleRows


@dataclass(frozen=True, slots=True)
class ScoredAnswers:
    """Answers to prompts with their rewards, prompt by prompt, and how many of them pass."""

    samples: tuple[Scored, ...]
    rate: PassRate

    @property
    def tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(sample.trajectory.sampled for sample in self.samples)

    def __str__(self) -> str:
        return (
            f"{len(self.samples)} answers to {len(self.rate.tallies)} prompts: {self.rate}; "
            f"{self.tokens:,} tokens, {self.tokens / self.rate.seconds:,.0f} tok/s"
        )


def rollout(
    cfg: Config,
    task: Task | None = None,
    *,
    split: Split = "heldout",
    limit: int | None = None,
    out: str | Path | None = None,
    rollouts: str | Path | None = None,
) -> ScoredAnswers:
    """Draw ``rollout.samples_per_group`` answers to each prompt and score them, without a learner.

    Args:
        cfg: its ``model.policy`` answers.
        task: gives prompts and rewards; default: the class that ``cfg.data.task`` names.
        split: the prompts to answer.
        limit: answer the first prompts only.
        out: a file for the answers as text, JSON lines.
        rollouts: a file for the samples whole, with token ids and log-probs, in the order in which a run would ask for
            them: ``overlap train --from-rollouts`` learns from it. For ``split="train"``.

    Prints its progress on stderr, and may be called where :func:`overlap.train` may. Raises ConfigError, OverlapError.
    """
    asked = PromptChoice(split, limit)
    return _sample_answers(cfg, task, asked, out, rollouts, output=partial(guest, stream=sys.stderr))


def evaluate(cfg: Config, task: Task | None = None, *, split: Split = "heldout", limit: int | None = None) -> PassRate:
    """Measure pass@1 and pass@k of ``cfg.model.policy`` in k = ``run.eval_samples`` answers to each prompt, drawn at
    ``run.eval_temperature``.

    The arguments are those of :func:`rollout`, and so is what it prints and raises.
    """
    check_config_given(cfg)
    asked, run, measured = PromptChoice(split, limit), cfg.run, list[PassRate]()
    at_least_one = "evaluate draws 1 or more samples of each prompt"
    if not run.eval_samples:
        raise ConfigError("run.eval_samples", run.eval_samples, at_least_one)

    async def work(parts: ServingParts) -> None:
        prompts = asked.of(parts.inputs)
        with Progress(parts.console, len(prompts) * run.eval_samples) as progress:
            rate = await measure_pass_rate(
                parts.generator,
                parts.verifier,
                prompts,
                run.eval_samples,
                temperature=cfg.eval_temperature,
                progress=lambda done, of: progress.live(f"scored {done}/{of}"),
                stall_s=run.stall_s,
            )
        parts.console.print(f"{len(prompts)} prompts: {rate}")
        measured.append(rate)

    run_standalone(cfg, work, task=task, check=asked.of, output=partial(guest, stream=sys.stderr))
    return measured[0]


def rollout_command(args: argparse.Namespace) -> int:
    """Run ``overlap rollout``; returns the exit code."""
    cfg, asked = load_config(args.config, args.overrides), PromptChoice(args.split, args.limit)
    _sample_answers(cfg, None, asked, args.out, args.rollouts, output=quiet)
    return 0


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """Which of a run's prompts are answered. Raises ConfigError."""

    split: Split
    limit: int | None

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise ConfigError("split", self.split, near_or_all(self.split, get_args(Split)))
        check_count_given("limit", self.limit, "all prompts")

    def of(self, inputs: RunInputs, *, as_in_a_run: bool = False) -> tuple[Prompt, ...]:
        """The prompts, of which there is at least one; ``as_in_a_run``: in the order in which a run asks for them."""
        prompts, data = inputs.train if self.split == "train" else inputs.heldout, inputs.cfg.data
        if prompts and as_in_a_run:
            stream = PromptStream(prompts, inputs.cfg.run.seed)
            prompts = tuple(stream.at(position) for position in range(len(prompts)))
        if not prompts:
            named = data.train if self.split == "train" else data.heldout
            raise ConfigError(
                f"data.{self.split}", named, "has no prompts for this task; name problems, or another --split"
            )
        return prompts[: self.limit]


def _sample_answers(
    cfg: Config,
    task: Task | None,
    asked: PromptChoice,
    out: str | Path | None,
    rollouts: str | Path | None,
    *,
    output: OpenConsole,
) -> ScoredAnswers:
    """As ``rollout``; ``output``: see ``run_training``."""
    check_config_given(cfg)
    told = None if out is None else OutFile(path_given("out", out, "answers.jsonl"), ours='"prompt_id": ')
    keep = None
    if rollouts is not None:
        keep = OutFile(path_given("rollouts", rollouts, "rollouts.jsonl"), field="--rollouts", ours=MARK)
        if asked.split != "train":
            raise ConfigError("--rollouts", str(keep), "a run learns from its own prompts: add --split train")
    done = list[ScoredAnswers]()

    async def work(parts: ServingParts) -> None:
        p, prompts = parts.inputs, chosen(parts.inputs)
        began, samples = time.monotonic(), cfg.rollout.samples_per_group
        scored = await _answer(parts, prompts, samples)
        rate = PassRate(tallied(scored), samples, cfg.rollout.temperature, time.monotonic() - began)
        done.append(ScoredAnswers(tuple(scored), rate))
        parts.console.print(str(done[0]))
        if told is not None:
            await asyncio.to_thread(_write_rows, told, scored, p, asked.split)
        if keep is not None:
            await asyncio.to_thread(write_rollouts, keep, data_digest(p.train), scored, time.monotonic())

    chosen = partial(asked.of, as_in_a_run=keep is not None)
    run_standalone(cfg, work, task=task, check=chosen, output=output)
    return done[0]


async def _answer(parts: ServingParts, prompts: tuple[Prompt, ...], samples: int) -> list[Scored]:
    """Generate ``samples`` responses per prompt, and score them."""
    requests = [Request(group, k, prompt) for group, prompt in enumerate(prompts) for k in range(samples)]
    with Progress(parts.console, len(requests)) as progress:

        def on_scored(_: Scored, ended: int) -> None:
            progress.live(f"scored {ended}/{len(requests)}")

        stall_s = parts.inputs.cfg.run.stall_s
        return await answers(parts.generator.generate, parts.verifier, requests, on_scored, stall_s=stall_s)


def _write_rows(out: OutFile, scored: list[Scored], inputs: RunInputs, split: Split) -> None:
    """Write the answers as lines of ``trajectories.jsonl``: complete, or not at all. Raises RunDirError."""

    def decode(prompt: Prompt) -> str:
        return str(inputs.tokenizer.decode(list(prompt.token_ids)))

    rows, notes = SampleRows(split, 0, decode, inputs.task.program), SampleNotes(("all",))
    out.write(b"".join(rows.line(sample, notes) for sample in scored))
