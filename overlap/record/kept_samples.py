"""Files of samples that come back whole: what no step has taken yet, beside a checkpoint's ``state.json``
(``carried.jsonl``), and what the steps of a run took (``trajectories.jsonl`` with run.samples=all), to train from again
without an engine. Their lines are rows of ``SampleRows`` with a "restore" column; a carried sample has no step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from overlap.core import Finish, Packed, Prompt, Request, Scored, Trajectory, Used, VersionSpan
from overlap.core.errors import ConfigError, blaming, refusing
from overlap.process.atomic import write_atomic
from overlap.record.row_shapes import unpacked_bytes
from overlap.record.sample_file import SampleFile, SampleHead
from overlap.record.sample_rows import SampleRows
from sandbox.core.nouns import Judgement

CARRIED = "carried.jsonl"
UNREADABLE = (OSError, LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)
"""Errors that making a sample of a row raises where the row holds something else."""
_OLDER, _KEPT = "remove its checkpoint to use an older one", "name what a run has kept"
SampleKey = tuple[int, int]
"""Group and sample."""


def save_carryover(folder: Path, carried: Sequence[Scored], at_s: float) -> None:
    """Write the samples into a checkpoint directory; ``at_s`` is now. Raises RunDirError."""
    rows = SampleRows("train", None, restore_at_s=at_s)
    write_atomic(folder / CARRIED, b"".join(map(rows.line, carried)))


@dataclass(frozen=True, slots=True)
class Carryover:
    """Samples that ``save_carryover`` wrote, without their prompts. Use ``load``; without arguments: no samples."""

    path: Path = Path(CARRIED)
    rows: tuple[dict[str, Any], ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def load(cls, folder: Path, count: int) -> Carryover:
        """Read the file of a checkpoint directory, which has ``count`` samples. Raises ConfigError."""
        path = folder / CARRIED
        with blaming("checkpoint"):
            rows = tuple(SampleFile(path))
        if len(rows) != count:
            raise ConfigError("checkpoint", str(path), f"has {len(rows)} of {count} samples; {_OLDER}")
        return cls(path, rows)

    def scored(self, prompt_of: Callable[[int], Prompt], at_s: float) -> tuple[Scored, ...]:
        """The samples. ``prompt_of`` gives a group's prompt by its number, ``at_s`` is now. Raises ConfigError."""
        return tuple(restored(row, prompt_of(row["group"]), at_s, "checkpoint", self.path) for row in self.rows)


@dataclass(frozen=True, slots=True)
class KeptSamples:
    """The samples of training in a file. Texts, tokens and log-probs stay on the disk until a sample is asked for. Use
    ``load``.
    """

    path: Path
    data: str
    """The digest of the prompts of their run."""
    known: Mapping[SampleKey, Scored]
    """By group and sample: reward, finish and versions of each, with two tokens at most and neither prompt nor text."""
    heads: Mapping[SampleKey, SampleHead]

    @classmethod
    def load(cls, path: Path) -> KeptSamples:
        """Raises ConfigError. A last line that was torn is left out."""
        known, heads, data, file = dict[SampleKey, Scored](), dict[SampleKey, SampleHead](), "", SampleFile(path)
        for head in file.heads():
            place = head.values["group"], head.values["sample"]
            if head.values["split"] != "train":
                continue
            if place in known:
                raise ConfigError("--from-rollouts", str(path), f"{head.values['id']} is in the file twice; {_KEPT}")
            row = file.row(head)
            if "restore" not in row:
                break
            scored = restored(row, Prompt(row["prompt_id"], ()), 0.0, "--from-rollouts", path)
            known[place] = replace(scored, trajectory=_shortened(scored.trajectory), judgement=None)
            heads[place], data = head, str(row["restore"].get("data", ""))
        else:
            if known:
                return cls(path, data, known, heads)
        raise ConfigError("--from-rollouts", str(path), "has samples to look at alone: name a run with run.samples=all")

    def scored(self, request: Request, at_s: float) -> Scored:
        """The sample of a request, whole; ``at_s`` is when its step is trained on. Raises ConfigError."""
        row = SampleFile(self.path).row(self.heads[request.place])
        return restored(row, request.prompt, at_s, "--from-rollouts", self.path)


def restored(row: Mapping[str, Any], prompt: Prompt, at_s: float, field: str, path: Path) -> Scored:
    """``sample_of``; raises ConfigError about ``field``."""
    with refusing(field, str(path), "cannot be read", _OLDER if field == "checkpoint" else _KEPT, UNREADABLE):
        return sample_of(row, prompt, at_s)


def _shortened(trajectory: Trajectory) -> Trajectory:
    """Keep the data that decide whether a group is trained on, and its age, not the data to learn: two of several
    sampled tokens, since a response of one may have nothing in the loss (``truncated=bootstrap``).
    """
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


def sample_of(row: Mapping[str, Any], prompt: Prompt, at_s: float) -> Scored:
    """The sample of a whole row that has a "restore" column; ``at_s`` is now. Raises one of UNREADABLE."""
    if row["prompt_id"] != prompt.id:
        raise ValueError(f"group {row['group']} was of prompt {row['prompt_id']!r}, here it is of {prompt.id!r}")
    stored = row["restore"]
    asked = {**stored["request"], "stop": tuple(stored["request"]["stop"])}
    request = Request(row["group"], row["sample"], prompt, **asked)
    judgement = Judgement.from_json(stored["judgement"]) if stored["judgement"] else None
    if row["reward"] is not None and not math.isfinite(row["reward"]):
        raise ValueError(f"sample {request.id} has the reward {row['reward']}")
    queued_s, began_s, ended_s = (0.0 if t is None else t + at_s for t in stored["verified"])
    trajectory = _trajectory_of({**row, "text": row["answer"]}, request, at_s)
    failure, program = "".join(stored["failure"]), row["program_sha256"]
    return Scored(trajectory, row["reward"], judgement, failure, queued_s, began_s, ended_s, program)


def _trajectory_of(row: Mapping[str, Any], request: Request, at_s: float) -> Trajectory:
    stored = row["restore"]
    found = Trajectory(
        request=request,
        token_ids=Packed.from_base64("i", row["token_ids"]),
        logprobs=Packed.from_base64("f", row["logprobs"]),
        text="".join(stored["text"] or row["text"]),
        finish=row["finish"],
        spans=tuple(VersionSpan(*span) for span in row["versions"]),
        started_s=stored["generated"][0] + at_s,
        finished_s=stored["generated"][1] + at_s,
        prompt_ids=Packed.from_base64("i", row["prompt_token_ids"]),
        mask=unpacked_bytes(row.get("mask", "")),
        turns=stored["turns"],
        forks=tuple(_trajectory_of(fork, request, at_s) for fork in row.get("forks", ())),
        failure="".join(stored["unscored"]),
        cached_tokens=stored["cached_tokens"],
        used=Used(*stored["used"]) if stored["used"] else None,
    )
    count, mask = len(found.token_ids), found.mask
    fits = len(found.logprobs) == count == len(mask or found.token_ids) and set(mask) <= {0, 1}
    fits = fits and all(0 <= span.start <= span.end <= count for span in found.spans)
    if not fits or found.finish not in get_args(Finish) or not all(map(math.isfinite, found.logprobs)):
        raise ValueError(f"tokens, logprobs, mask, spans or finish of sample {request.id} do not fit each other")
    return found
