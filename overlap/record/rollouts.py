"""All samples that the steps of a run took, to train from again without an engine: JSON lines, one each.

rollouts.jsonl   {"rollouts": 1, "data": "1f6c..."}
                 {"step": 1, "group": 0, "sample": 0, "prompt": "p4", "token_ids": "...", "reward": 1.0, ...}
                 {"step": 1, "group": 0, ...}

A sample is written as in ``carried.jsonl``; its times are seconds before its step was learned. ``data`` is the digest
of all prompts of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overlap.atomic import write_atomic
from overlap.core import Prompt, Request, Scored, Trajectory
from overlap.errors import ConfigError
from overlap.record.carryover import UNREADABLE, sample_of, sample_row, unreadable
from overlap.record.json_lines import whole_lines
from overlap.record.out_file import OutFile

FORMAT = 1
MARK = '{"rollouts": '
"""How the file begins."""
SampleKey = tuple[int, int]
"""Group and sample."""


def rollouts_header(data: str) -> dict[str, Any]:
    """The first line; ``data`` is the digest of the prompts."""
    return {"rollouts": FORMAT, "data": data}


def kept_sample_row(step: int, scored: Scored, at_s: float) -> dict[str, Any]:
    """The line of a sample; ``at_s`` is when ``step`` was learned."""
    return {"step": step, **sample_row(scored, at_s)}


def write_rollouts(out: Path | OutFile, data: str, samples: Iterable[Scored], at_s: float) -> None:
    """Write a whole file of samples that no step took. Raises RunDirError."""
    rows = (rollouts_header(data), *(kept_sample_row(0, scored, at_s) for scored in samples))
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    out.write(text) if isinstance(out, OutFile) else write_atomic(out, text)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """A file of kept samples. Tokens and log-probs stay on the disk until a sample is asked for. Use ``load``."""

    path: Path
    data: str
    known: Mapping[SampleKey, Scored]
    """By group and sample: reward, finish and versions of each, with two tokens at most and neither prompt nor text."""
    lines: Mapping[SampleKey, int]
    """Where the line of each sample begins, in bytes."""

    @classmethod
    def load(cls, path: Path) -> Rollouts:
        """Raises ConfigError. A last line that was torn is left out."""
        known, lines, offset = dict[SampleKey, Scored](), dict[SampleKey, int](), 0
        try:
            with path.open("rb") as file:
                first = json.loads(line := file.readline())
                if first["rollouts"] != FORMAT:
                    raise ConfigError("--from-rollouts", str(path), f"has another format than {FORMAT}; make it again")
                for offset, text in whole_lines(file, len(line)):
                    row = json.loads(text)
                    scored = _short(sample_of(row, Prompt(row["prompt"], ()), 0.0))
                    place = row["group"], row["sample"]
                    if place in known:
                        raise ValueError(f"{scored.id} is in the file twice")
                    known[place], lines[place] = scored, offset
            return cls(path, str(first["data"]), known, lines)
        except UNREADABLE as exc:
            raise _unreadable(path, exc) from exc

    def rows(self) -> Iterator[dict[str, Any]]:
        """The lines of the samples, one after another, as they are. Raises ConfigError."""
        try:
            with self.path.open("rb") as file:
                for offset in self.lines.values():
                    file.seek(offset)
                    yield json.loads(file.readline())
        except UNREADABLE as exc:
            raise _unreadable(self.path, exc) from exc

    def scored(self, request: Request, at_s: float) -> Scored:
        """The sample of a request, whole; ``at_s`` is when its step is learned. Raises ConfigError."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.lines[request.place])
                return sample_of(json.loads(file.readline()), request.prompt, at_s)
        except UNREADABLE as exc:
            raise _unreadable(self.path, exc) from exc


def _short(scored: Scored) -> Scored:
    """What decides whether a group is learned from, and how old it is: not what is learned."""
    return replace(scored, trajectory=_shortened(scored.trajectory), judgement=None)


def _shortened(trajectory: Trajectory) -> Trajectory:
    """Of several sampled tokens two stay: a response of one may have nothing in the loss (``truncated=bootstrap``)."""
    sampled = trajectory.trained
    return replace(
        trajectory,
        token_ids=(0,) * min(sampled, 2),
        logprobs=(0.0,) * min(sampled, 2),
        text="",
        prompt_ids=(),
        mask=b"",
        forks=tuple(map(_shortened, trajectory.forks)),
    )


def _unreadable(path: Path, exc: Exception) -> ConfigError:
    return unreadable("--from-rollouts", path, exc, "name what run.keep_rollouts has kept")
