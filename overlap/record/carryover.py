"""Scored samples that no step has taken yet, saved with a checkpoint beside ``state.json``: JSON lines, one each.

carried.jsonl   {"format": 1, "samples": 2}
                {"group": 16, "sample": 3, "prompt": "p4", "token_ids": "...", "logprobs": "...", "reward": 1.0, ...}
                {"group": 17, ...}

Numbers per token are base64 of 4 bytes each, lowest first: int32 and float32, as ``Packed`` holds them. Of a
request's prompt, only the id is stored: the order of prompts follows from the seed and the number of the group. A
branch of an episode has the ids in front of it ("prompt_ids") wherever they are not the request's prompt, and a fork
always. Times are seconds before the checkpoint, because the next session has another clock; there, no time has passed
since the checkpoint.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from overlap.atomic import write_atomic
from overlap.core import Finish, Packed, Prompt, Request, Scored, Trajectory, Used, VersionSpan
from overlap.errors import ConfigError, one_line
from sandbox.core.nouns import Judgement

CARRIED = "carried.jsonl"
FORMAT = 1
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two lone surrogates side by side, which JSON would read back as one character."""

UNREADABLE = (OSError, LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)
"""What reading a file of samples raises where it holds something else."""


class LostPromptsError(ValueError):
    """A sample was written without the prompts of its forks, so what its tokens were sampled behind is unknown."""


def save_carryover(folder: Path, carried: Sequence[Scored], at_s: float) -> None:
    """Write the samples into a checkpoint directory; ``at_s`` is now. Raises RunDirError."""
    head = json.dumps({"format": FORMAT, "samples": len(carried)})
    lines = (json.dumps(sample_row(scored, at_s)) for scored in carried)
    write_atomic(folder / CARRIED, "\n".join((head, *lines)) + "\n")


@dataclass(frozen=True, slots=True)
class Carryover:
    """What ``save_carryover`` wrote, without its prompts. Use ``load``; without arguments: no samples."""

    path: Path = Path(CARRIED)
    rows: tuple[dict[str, Any], ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lost_prompts(self) -> bool:
        """Whether an earlier version wrote a fork without its prompt: then no sample of the file can be used."""
        return any(map(_lacks_prompt, self.rows))

    @classmethod
    def load(cls, folder: Path) -> Carryover:
        """Read the file of a checkpoint directory. Raises ConfigError."""
        path = folder / CARRIED
        try:
            head, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            if head["format"] != FORMAT:
                raise ConfigError("checkpoint", str(path), f"has another format than {FORMAT}; start a new run")
            if len(rows) != head["samples"]:
                raise ConfigError("checkpoint", str(path), f"has {len(rows)} of {head['samples']} samples")
            any(map(_lacks_prompt, rows))  # raises for what is no row
        except UNREADABLE as exc:
            raise _unreadable(path, exc) from exc
        return cls(path, tuple(rows))

    def scored(self, prompt_of: Callable[[int], Prompt], at_s: float) -> tuple[Scored, ...]:
        """The samples. ``prompt_of`` gives a group's prompt by its number, ``at_s`` is now. Raises ConfigError."""
        try:
            return tuple(sample_of(row, prompt_of(row["group"]), at_s) for row in self.rows)
        except UNREADABLE as exc:
            raise _unreadable(self.path, exc) from exc


def unreadable(field: str, path: Path, error: Exception, way_out: str) -> ConfigError:
    """The error for a file of samples that cannot be read; ``error`` itself where it is a ConfigError."""
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, LostPromptsError):
        return ConfigError(field, str(path), str(error))
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return ConfigError(field, str(path), f"cannot be read ({one_line(reason)}); {way_out}")


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return unreadable("checkpoint", path, error, "remove its checkpoint to use an older one")


def sample_row(scored: Scored, at_s: float) -> dict[str, Any]:
    """A sample as JSON, its times in seconds before ``at_s``."""
    trajectory, judgement = scored.trajectory, scored.judgement
    request = trajectory.request
    asked = {f.name: getattr(request, f.name) for f in fields(Request) if f.name not in ("group", "sample", "prompt")}
    return {
        "group": request.group,
        "sample": request.sample,
        "prompt": request.prompt.id,
        **_set("request", _unlike_default(Request, asked)),
        **_trajectory_row(trajectory, at_s),
        "reward": scored.reward,
        "failure": _text(scored.failure),
        "verified": [t - at_s if t else None for t in (scored.queued_s, scored.started_s, scored.finished_s)],
        "judgement": judgement.to_json() if judgement else None,
        **_set("program_sha256", scored.program_sha256),
    }


def _trajectory_row(trajectory: Trajectory, at_s: float, *, fork: bool = False) -> dict[str, Any]:
    """The fields of a branch; without those that have their default."""
    known = not fork and trajectory.prompt_ids == trajectory.request.prompt.token_ids
    return {
        "token_ids": _packed("i", trajectory.token_ids),
        "logprobs": _packed("f", trajectory.logprobs),
        "text": _text(trajectory.text),
        "finish": trajectory.finish,
        "spans": [[span.version, span.start, span.end] for span in trajectory.spans],
        "generated": [trajectory.started_s - at_s, trajectory.finished_s - at_s],
        **({} if known else {"prompt_ids": _packed("i", trajectory.prompt_ids)}),
        **_set("mask", base64.b64encode(trajectory.mask).decode("ascii")),
        **_unlike_default(Trajectory, {"turns": trajectory.turns, "cached_tokens": trajectory.cached_tokens}),
        **_set("forks", [_trajectory_row(branch, at_s, fork=True) for branch in trajectory.forks]),
        **_set("unscored", _text(trajectory.failure)),
        **_set("used", trajectory.used and astuple(trajectory.used)),
    }


def _set(name: str, value: Any) -> dict[str, Any]:
    return {name: value} if value else {}


def _unlike_default(kind: type[Request | Trajectory], values: Mapping[str, Any]) -> dict[str, Any]:
    default = {f.name: f.default for f in fields(kind)}
    return {name: value for name, value in values.items() if value != default[name]}


def _text(text: str) -> str | list[str]:
    """A text in JSON: letter by letter where two of them would become one."""
    return [*text] if _HALVES.search(text) else text


def sample_of(row: Mapping[str, Any], prompt: Prompt, at_s: float) -> Scored:
    """The sample that ``sample_row`` turned into JSON.

    Raises one of UNREADABLE; LostPromptsError, one of them, for a sample of an earlier version that cannot be restored.
    """
    if row["prompt"] != prompt.id:
        raise ValueError(f"group {row['group']} was of prompt {row['prompt']!r}, here it is of {prompt.id!r}")
    asked = dict(row.get("request", ()))
    if "stop" in asked:
        asked["stop"] = tuple(asked["stop"])
    request = Request(row["group"], row["sample"], prompt, **asked)
    if _lacks_prompt(row):
        told = f"its episodes were written by an earlier version, without the prompts of forks (sample {request.id})"
        raise LostPromptsError(f"{told}: make the samples again")
    judgement, reward = Judgement.from_json(row["judgement"]) if row["judgement"] else None, row["reward"]
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"sample {request.id} has the reward {reward}")
    queued_s, began_s, ended_s = (0.0 if t is None else t + at_s for t in row["verified"])
    trajectory, failure = _trajectory_of(row, request, at_s), "".join(row["failure"])
    program = row.get("program_sha256", "")
    return Scored(trajectory, reward, judgement, failure, queued_s, began_s, ended_s, program)


def _lacks_prompt(row: Mapping[str, Any]) -> bool:
    forks: Iterable[Mapping[str, Any]] = row.get("forks", ())
    return any("prompt_ids" not in fork or _lacks_prompt(fork) for fork in forks)


def _trajectory_of(row: Mapping[str, Any], request: Request, at_s: float) -> Trajectory:
    found = Trajectory(
        request=request,
        token_ids=Packed.from_base64("i", row["token_ids"]),
        logprobs=Packed.from_base64("f", row["logprobs"]),
        text="".join(row["text"]),
        finish=row["finish"],
        spans=tuple(VersionSpan(*span) for span in row["spans"]),
        started_s=row["generated"][0] + at_s,
        finished_s=row["generated"][1] + at_s,
        prompt_ids=Packed.from_base64("i", row.get("prompt_ids", "")),
        mask=base64.b64decode(row.get("mask", ""), validate=True),
        turns=row.get("turns", 1),
        forks=tuple(_trajectory_of(fork, request, at_s) for fork in row.get("forks", ())),
        failure="".join(row.get("unscored", "")),
        cached_tokens=row.get("cached_tokens", 0),
        used=Used(*row["used"]) if row.get("used") else None,
    )
    count, mask = len(found.token_ids), found.mask
    fits = len(found.logprobs) == count == len(mask or found.token_ids) and set(mask) <= {0, 1}
    fits = fits and all(0 <= span.start <= span.end <= count for span in found.spans)
    if not fits or found.finish not in get_args(Finish) or not all(map(math.isfinite, found.logprobs)):
        raise ValueError(f"tokens, logprobs, mask, spans or finish of sample {request.id} do not fit each other")
    return found


def _packed(code: Literal["i", "f"], values: Sequence[Any]) -> str:
    return Packed(code, values).base64.decode("ascii")
