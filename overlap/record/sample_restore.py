"""The column of a sample's row from which the sample itself is restored: to be trained on after a checkpoint, or
again by another run.

"restore": {"data": "1f6c...", "generated": [-12.5, -2.0], "verified": [-1.5, -1.0, -0.5], "judgement": {...}, ...}

It has what the columns for people lack; fields with their default are left out. Times are seconds before the row was
made (of a step: before it was trained on), because the reader has another clock. Of a request's prompt the id is
stored alone: the order of prompts follows from the seed and the number of the group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any, get_args

from overlap.core import Finish, Packed, Prompt, Request, Scored, Trajectory, Used, VersionSpan
from overlap.record.row_shapes import unpacked_bytes
from sandbox.core.nouns import Judgement

UNREADABLE = (OSError, LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError)
"""Errors that making a sample of a row raises where the row holds something else."""
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two lone surrogates side by side, which JSON would read back as one character."""


def restore_column(scored: Scored, at_s: float, data: str) -> dict[str, Any]:
    """The column of a sample whose row is made at ``at_s``; ``data`` is the digest of all prompts of its run."""
    request, judgement = scored.trajectory.request, scored.judgement
    asked = {f.name: getattr(request, f.name) for f in fields(Request) if f.name not in ("group", "sample", "prompt")}
    return {
        "data": data,
        **_set("request", _unlike_default(Request, asked)),
        **restore_branch(scored.trajectory, at_s),
        "failure": _text(scored.failure),
        "verified": [t - at_s if t else None for t in (scored.queued_s, scored.started_s, scored.finished_s)],
        "judgement": judgement.to_json() if judgement else None,
    }


def restore_branch(branch: Trajectory, at_s: float) -> dict[str, Any]:
    """The same of one branch of an episode."""
    return {
        "generated": [branch.started_s - at_s, branch.finished_s - at_s],
        **_set("text", _HALVES.search(branch.text) and [*branch.text]),
        **_unlike_default(Trajectory, {"turns": branch.turns, "cached_tokens": branch.cached_tokens}),
        **_set("unscored", _text(branch.failure)),
        **_set("used", branch.used and astuple(branch.used)),
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
    """The sample of a whole row that has a "restore" column; ``at_s`` is now. Raises one of UNREADABLE."""
    if row["prompt_id"] != prompt.id:
        raise ValueError(f"group {row['group']} was of prompt {row['prompt_id']!r}, here it is of {prompt.id!r}")
    stored = row["restore"]
    asked = dict(stored.get("request", ()))
    if "stop" in asked:
        asked["stop"] = tuple(asked["stop"])
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
        text="".join(stored.get("text", row["text"])),
        finish=row["finish"],
        spans=tuple(VersionSpan(*span) for span in row["versions"]),
        started_s=stored["generated"][0] + at_s,
        finished_s=stored["generated"][1] + at_s,
        prompt_ids=Packed.from_base64("i", row["prompt_token_ids"]),
        mask=unpacked_bytes(row.get("mask", "")),
        turns=stored.get("turns", 1),
        forks=tuple(_trajectory_of(fork, request, at_s) for fork in row.get("forks", ())),
        failure="".join(stored.get("unscored", "")),
        cached_tokens=stored.get("cached_tokens", 0),
        used=Used(*stored["used"]) if stored.get("used") else None,
    )
    count, mask = len(found.token_ids), found.mask
    fits = len(found.logprobs) == count == len(mask or found.token_ids) and set(mask) <= {0, 1}
    fits = fits and all(0 <= span.start <= span.end <= count for span in found.spans)
    if not fits or found.finish not in get_args(Finish) or not all(map(math.isfinite, found.logprobs)):
        raise ValueError(f"tokens, logprobs, mask, spans or finish of sample {request.id} do not fit each other")
    return found
