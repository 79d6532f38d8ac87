"""``overlap.rollout`` and its command: draw answers to prompts and score them, without a trainer; or score again those
that a run has kept. ``overlap.evaluate``: draw them at the temperature of evaluations, and return how many pass.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from overlap.commands.kept_answers import (
    ChosenAnswers,
    Comparison,
    JudgedAgain,
    KeptAnswer,
    KeptAnswers,
    Outcome,
    config_for,
)
from overlap.commands.standalone import ServingParts, run_standalone
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.config.rules import check_config_given, check_count_given, path_given
from overlap.core import Prompt, Request, Scored, Split, Task, Trajectory
from overlap.core.errors import ConfigError, near_or_all
from overlap.evaluation.evaluate import Asked, PassRate, measure_pass_rate, score_answers, tallied
from overlap.pipeline.prompts import PromptStream
from overlap.record.logs import OpenConsole, guest, quiet
from overlap.record.out_file import OutFile
from overlap.record.progress import Progress
from overlap.record.resume import data_digest
from overlap.record.sample_rows import SampleNotes, SampleRows
from overlap.run.run_inputs import RunInputs

Origin = tuple[Split, int]
"""Split and step that a sample is of."""


@dataclass(frozen=True, slots=True)
class ScoredAnswers:
    """Answers to prompts with their rewards, prompt by prompt, and how many of them pass."""

    samples: tuple[Scored, ...]
    rate: PassRate
    again: Comparison | None = None
    """Kept answers only: their results before, compared with those of now."""

    @property
    def tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(sample.trajectory.sampled for sample in self.samples)

    def __str__(self) -> str:
        if self.again is not None:
            return "\n".join(self.again.lines())
        return (
            f"{len(self.samples)} answers to {len(self.rate.tallies)} prompts: {self.rate}; "
            f"{self.tokens:,} tokens, {self.tokens / self.rate.seconds:,.0f} tok/s"
        )


def rollout(
    cfg: Config,
    task: Task | None = None,
    *,
    split: Split | None = None,
    limit: int | None = None,
    answers: str | Path | None = None,
    out: str | Path | None = None,
) -> ScoredAnswers:
    """Draw ``rollout.samples_per_group`` answers to each prompt and score them, without a learner.

    Args:
        cfg: its ``model.policy`` answers.
        task: gives prompts and rewards; default: the class that ``cfg.data.task`` names.
        split: the prompts to answer; default: the held-out ones, of kept ``answers`` both.
        limit: answer the first prompts only.
        answers: a run directory, or a file that ``out`` has got: the answers in it are scored, and
            none is drawn. No engine is started.
        out: a file for the answers, JSON lines as in ``trajectories.jsonl``. Those of ``split="train"``, or of kept
            ``answers`` that are whole (``run.samples=all``), are what ``overlap train --from-rollouts`` trains on.

    Prints its progress on stderr, and may be called where :func:`overlap.train` may. Raises ConfigError, OverlapError.
    """
    check_config_given(cfg)
    kept = None if answers is None else KeptAnswers(path_given("answers", answers, "runs/first"))
    asked, output = PromptChoice(split, limit), partial(guest, stream=sys.stderr)
    if kept is not None:
        return _judge_answers(cfg, task, asked, _opened(out, kept), kept, output=output)
    return _sample_answers(cfg, task, asked, _opened(out), output=output)


def evaluate(cfg: Config, task: Task | None = None, *, split: Split = "heldout", limit: int | None = None) -> PassRate:
    """Measure pass@1 and pass@k of ``cfg.model.policy`` in k = ``run.eval_samples`` answers to each prompt, drawn at
    ``rollout.temperature``.

    Arguments, output and errors are as in :func:`rollout`.
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
                temperature=cfg.rollout.temperature,
                progress=lambda done, of: progress.live(f"scored {done}/{of}"),
                stall_s=run.stall_s,
            )
        parts.console.print(f"{len(prompts)} prompts: {rate}")
        measured.append(rate)

    run_standalone(cfg, work, task=task, check=asked.of, output=partial(guest, stream=sys.stderr))
    return measured[0]


def rollout_command(args: argparse.Namespace) -> Iterator[str]:
    """Run ``overlap rollout``; yields what has changed where kept answers were judged again."""
    asked = PromptChoice(args.split, args.limit)
    if args.answers is None:
        cfg = load_config(args.config, args.overrides)
        _sample_answers(cfg, None, asked, _opened(args.out), output=quiet)
        return
    kept = KeptAnswers(args.answers)
    options = ["data.options={}"] if args.reward else []  # those of the run belong to its own task
    cfg = config_for(kept, args.config, [*options, *args.overrides])
    yield from str(_judge_answers(cfg, None, asked, _opened(args.out, kept), kept, output=quiet)).splitlines()


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """The prompts of a run that are answered. Raises ConfigError."""

    split: Split | None
    """None: the held-out ones; of kept answers both."""
    limit: int | None

    def __post_init__(self) -> None:
        if self.split not in (None, *get_args(Split)):
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
                f"data.{self.split or 'heldout'}",
                named,
                "has no prompts for this task; name problems, or another --split",
            )
        return prompts[: self.limit]


def _opened(out: str | Path | None, kept: KeptAnswers | None = None) -> OutFile | None:
    """The file for scored answers, before anything is started; raises ConfigError."""
    if out is None:
        return None
    if kept is not None and Path(out).resolve() == kept.path.resolve():
        raise ConfigError("--out", str(out), "has the answers that are judged: name another file")
    return OutFile(path_given("out", out, "answers.jsonl"), ours='"prompt_id": ')


def _sample_answers(
    cfg: Config, task: Task | None, asked: PromptChoice, out: OutFile | None, *, output: OpenConsole
) -> ScoredAnswers:
    """As ``rollout`` without kept answers; ``output``: see ``run_training``."""
    done = list[ScoredAnswers]()

    async def work(parts: ServingParts) -> None:
        began, samples = time.monotonic(), cfg.rollout.samples_per_group
        prompts = enumerate(chosen(parts.inputs))
        requests = [Request(group, k, prompt) for group, prompt in prompts for k in range(samples)]
        scored = await _scored(parts, parts.generator.generate, requests)
        rate = PassRate(tallied(scored), samples, cfg.rollout.temperature, time.monotonic() - began)
        done.append(ScoredAnswers(tuple(scored), rate))
        parts.console.print(str(done[0]))
        if out is not None:
            origins = [(asked.split or "heldout", 0)] * len(scored)
            await asyncio.to_thread(_write_rows, out, parts.inputs, scored, origins, whole=True)

    chosen = partial(asked.of, as_in_a_run=asked.split == "train")
    run_standalone(cfg, work, task=task, check=chosen, output=output)
    return done[0]


def _judge_answers(
    cfg: Config, task: Task | None, asked: PromptChoice, out: OutFile | None, kept: KeptAnswers, *, output: OpenConsole
) -> ScoredAnswers:
    """As ``rollout`` with kept answers."""
    done, found = list[ScoredAnswers](), list[ChosenAnswers]()

    async def work(parts: ServingParts) -> None:
        began, chosen = time.monotonic(), found[0]

        async def answer(one: KeptAnswer) -> Trajectory:
            return one.scored.trajectory

        scored = dict(zip(chosen.judged, await _scored(parts, answer, chosen.judged), strict=True))
        changes = tuple(JudgedAgain(one, Outcome.of(after)) for one, after in scored.items())
        rate = PassRate(tallied(scored.values()), seconds=time.monotonic() - began)
        samples = tuple(scored.get(one, one.scored) for one in chosen.all)
        done.append(ScoredAnswers(samples, rate, Comparison(kept.path, changes, chosen.left_out)))
        if out is not None:
            origins = [(one.values["split"], one.values["step"]) for one in chosen.all]
            await asyncio.to_thread(_write_rows, out, parts.inputs, samples, origins, whole=kept.whole)

    def check(inputs: RunInputs) -> None:
        found.append(kept.chosen(inputs, asked.split, asked.limit))

    run_standalone(cfg, work, task=task, check=check, output=output, wanted=lambda: ("verifier",))
    return done[0]


async def _scored(
    parts: ServingParts, answer: Callable[[Asked], Awaitable[Trajectory]], asked: Sequence[Asked]
) -> list[Scored]:
    """Score the answers to what is asked, with a line of progress."""
    with Progress(parts.console, len(asked)) as progress:

        def on_scored(_: Scored, ended: int) -> None:
            progress.live(f"scored {ended}/{len(asked)}")

        return await score_answers(answer, parts.verifier, asked, on_scored, stall_s=parts.inputs.cfg.run.stall_s)


def _write_rows(
    out: OutFile, inputs: RunInputs, scored: Sequence[Scored], origins: Sequence[Origin], *, whole: bool
) -> None:
    """Write the answers as lines of ``trajectories.jsonl``: complete, or not at all; ``whole``: with what a learner
    needs. Raises RunDirError.
    """

    def decode(prompt: Prompt) -> str:
        return str(inputs.tokenizer.decode(list(prompt.token_ids)))

    notes, at_s, data = SampleNotes(("all",)), time.monotonic() if whole else None, data_digest(inputs.train)
    rows = {origin: SampleRows(*origin, decode, inputs.task.program, at_s, data) for origin in set(origins)}
    out.write(b"".join(rows[origin].line(sample, notes) for sample, origin in zip(scored, origins, strict=True)))
