"""Offline difficulty filter: keeps the problems that this policy can learn from.

Groups whose samples all pass or all fail teach GRPO nothing. Measured once before the training, such problems are left
out (DeepCoder's replacement for DAPO's dynamic sampling). What comes out is a split file, JSONL, a row per problem:

    {"id": ..., "passes": 5, "samples": 16, "split": "train" | "heldout" | "dropped", "source": "problems.jsonl"}

which ``data.train`` takes as it takes a problem file.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from overlap.core import Generator, Prompt, Verifier
from overlap.core.errors import ConfigError
from overlap.evaluation.evaluate import STALL_S, PassRate, ProblemTally, measure_pass_rate
from overlap.record.out_file import OutFile


@dataclass(frozen=True, slots=True)
class SplitBounds:
    """Which problems are kept, and how many of them are held out."""

    low: float = 0.05
    """Smallest pass rate kept."""
    high: float = 0.9
    """Largest pass rate kept."""
    train: int = 0
    """At most this many problems to train on; 0: all that are kept."""
    heldout: int = 0
    """Kept problems that are held out, drawn evenly over the pass rates."""

    def __post_init__(self) -> None:
        for name, rate, fits in (("low", self.low, self.low <= self.high), ("high", self.high, True)):
            if not (0 <= rate <= 1 and fits):
                raise ConfigError(name, rate, "use 0 <= low <= high <= 1")
        for name, count in (("train", self.train), ("heldout", self.heldout)):
            if count < 0:
                raise ConfigError(name, count, "use 0 or more problems")


@dataclass(frozen=True, slots=True)
class FilterReport:
    """The measured pass rate, and the split of each problem, in the order of the problems."""

    rate: PassRate
    splits: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(self.splits))

    def histogram(self) -> str:
        """Problems per tenth of pass rate, with those never and always solved apart."""
        rates = [t.rate for t in self.rate.tallies if t.samples]
        bins = Counter(min(9, int(rate * 10)) for rate in rates if 0 < rate < 1)
        lines = [f"never    {sum(rate == 0 for rate in rates)}"]
        lines += [f"{b / 10:.1f}-{b / 10 + 0.1:.1f}  {bins[b]:<4d} {'#' * bins[b]}" for b in range(10)]
        return "\n".join([*lines, f"always   {sum(rate == 1 for rate in rates)}"])


async def filter_problems(
    generator: Generator,
    verifier: Verifier,
    prompts: Sequence[Prompt],
    *,
    out: OutFile,
    source: str,
    samples: int = 16,
    bounds: SplitBounds,
    progress: Callable[[int, int], None] | None = None,
    stall_s: float = STALL_S,
) -> FilterReport:
    """Measure every prompt with ``samples`` samples, split, and write the split file ``out``: complete, or not at all.

    Generator and verifier must be started, with a version loaded. ``source`` is the problem file (or hub id) with these
    ids; a file is named relative to ``out``. ``progress`` is called with (scored, all) samples; ``stall_s``: see
    ``score_answers``.

    Raises:
        StageError: what generator and verifier raise.
        RunDirError: ``out`` cannot be written.
        ConfigError: no more problems are kept than are to be held out, and then ``out`` has the measurement, with
            none held out.
    """
    if bounds.heldout >= len(prompts):
        raise ConfigError("heldout", bounds.heldout, f"there are only {len(prompts)} problems; hold out fewer")
    rate = await measure_pass_rate(generator, verifier, prompts, samples, progress=progress, stall_s=stall_s)
    report = FilterReport(rate, split_tallies(rate.tallies, bounds))
    named = _beside(out, source)
    rows = [
        {"id": t.id, "passes": t.passes, "samples": t.samples, "split": split, "source": named}
        for t, split in zip(rate.tallies, report.splits, strict=True)
    ]
    out.write("".join(json.dumps(row) + "\n" for row in rows))
    if bounds.heldout and "train" in report.counts and "heldout" not in report.counts:
        way_out = f"no more problems are kept; hold out fewer; {out} has the measurement, with none held out"
        raise ConfigError("heldout", bounds.heldout, way_out)
    return report


def _beside(out: OutFile, source: str) -> str:
    path = Path(source).expanduser()
    return os.path.relpath(path.resolve(), out.folder) if path.exists() else source


def split_tallies(tallies: Sequence[ProblemTally], bounds: SplitBounds) -> tuple[str, ...]:
    """The split of each tally. Deterministic: kept problems are ordered by pass rate and picked at even steps.

    Problems that were never scored, or that no sample or every sample solved, are "dropped" whatever the bounds. None
    is held out where there are no more than are to be.
    """
    kept = [i for i, t in enumerate(tallies) if t.samples and 0 < t.passes < t.samples]
    kept = [i for i in kept if bounds.low <= tallies[i].rate <= bounds.high]
    ranked = sorted(kept, key=lambda i: (tallies[i].rate, tallies[i].id))
    heldout = set(_evenly(ranked, bounds.heldout if bounds.heldout < len(kept) else 0))
    rest = [i for i in ranked if i not in heldout]
    train = set(_evenly(rest, bounds.train or len(rest)))
    return tuple("heldout" if i in heldout else "train" if i in train else "dropped" for i in range(len(tallies)))


def _evenly(ranked: Sequence[int], count: int) -> list[int]:
    """``count`` elements at even steps, each from the middle of its stretch."""
    count = min(count, len(ranked))
    return [ranked[int((i + 0.5) * len(ranked) / count)] for i in range(count)]
