"""The answers of an evaluation, each written when it arrives: JSON lines. ``complete_answers`` adds what is missing.

    {"answers": 1, "law": {"policy": "1f6c...", "temperature": 0.6, "top_p": 0.95, ...}}
    {"id": "humaneval+/HumanEval/3", "sample": 0, "asked": "9b1d...", "text": "...", "finish": "stop", "tokens": 212}
    {"id": "humaneval+/HumanEval/3", "sample": 0, "judged": "77aa...", "passed": true, "verdict": "AC"}

``law`` are the settings of sampling, the same for all answers of a file. ``asked`` is a digest of the prompt and
``judged`` one of the problem with its tests: an answer to another prompt is sampled again, and one to a problem whose
tests have changed is judged again. Later lines replace earlier ones. Answers from elsewhere need ``id``, ``sample`` and
``text``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from overlap.core import Finish, Generator, Prompt, Request, Scored, Trajectory, Verifier
from overlap.core.errors import ConfigError
from overlap.core.json_types import to_json_types
from overlap.evaluation.evaluate import STALL_S, OnScored, ProblemTally, score_answers
from overlap.process.atomic import guarded
from overlap.record.json_lines import JsonLines, parse_json_lines
from overlap.record.metrics import solved
from overlap.record.resume import data_digest

FORMAT = 1
SamplingSettings = Mapping[str, Any]
"""Settings that determine how answers are sampled, as JSON types."""


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One answer and its judgement. ``passed`` is None until it was judged."""

    text: str
    finish: Finish = "stop"
    tokens: int = 0
    asked: str = ""
    """Digest of the prompt, "" where it is not known."""
    judged: str = ""
    """Digest of the problem by which it was judged, "" where it is not known."""
    passed: bool | None = None
    verdict: str = ""


@dataclass
class AnswerFile:
    """The answers in a file, in memory too; both get what is added. Use ``open``, and ``close``."""

    path: Path
    settings: SamplingSettings
    known: dict[tuple[str, int], RecordedAnswer]
    """By prompt id and sample."""
    _lines: JsonLines
    _lock: int
    _digests: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, settings: SamplingSettings) -> AnswerFile:
        """Open a file, or make one. A last line that a kill has torn is cut off.

        Raises ConfigError where its answers were sampled with other settings, another command writes there, or it is no
        such file; RunDirError where it cannot be written.
        """
        with guarded(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _take(lock, path)
            rows, size = _rows(path)
            lines = JsonLines(path)
            lines.rewind(size)
            settings = to_json_types(settings)
            if not rows:
                lines.append({"answers": FORMAT, "law": settings})
            else:
                _check_settings(path, rows[0], settings)
            return cls(path, settings, _answers(path, rows[1:]), lines, lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def read(cls, path: Path, settings: SamplingSettings) -> AnswerFile:
        """Read the answers of a file, if there is one; nothing may be added or is written. Raises ConfigError."""
        rows = _rows(path)[0] if path.is_file() else []
        if rows:
            _check_settings(path, rows[0], to_json_types(settings))
        return cls(path, settings, _answers(path, rows[1:]), JsonLines(path), -1)

    @staticmethod
    def sampled_by(path: Path) -> SamplingSettings:
        """The settings by which the answers of a file were sampled; empty where there is no such file yet."""
        match _rows(path)[0] if path.is_file() else []:
            case [{"law": dict(settings)}, *_]:
                return settings
        return {}

    def close(self) -> None:
        self._lines.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def drawn(self, prompt: Prompt, sample: int) -> RecordedAnswer | None:
        """The answer to this prompt; None where there is none, or one to another prompt of the same id."""
        found = self.known.get((prompt.id, sample))
        return found if found is not None and found.asked in ("", self._digest(prompt)[0]) else None

    def result(self, prompt: Prompt, sample: int) -> RecordedAnswer | None:
        """The answer to this prompt, if it was judged by the problem as it is now."""
        found = self.drawn(prompt, sample)
        if found is None or found.passed is None:
            return None
        return found if found.judged in ("", self._digest(prompt)[1]) else None

    def missing(self, prompts: Sequence[Prompt], samples: int) -> tuple[int, int]:
        """Return the number of answers that must be sampled, and of the others that must be judged."""
        places = [(prompt, sample) for prompt in prompts for sample in range(samples)]
        undrawn = sum(self.drawn(*place) is None for place in places)
        return undrawn, sum(self.result(*place) is None for place in places) - undrawn

    def keep(self, trajectory: Trajectory) -> None:
        """Write an answer down. Raises RunDirError."""
        prompt, sample = trajectory.request.prompt, trajectory.request.sample
        asked = self._digest(prompt)[0]
        tokens = trajectory.sampled
        self.known[prompt.id, sample] = RecordedAnswer(trajectory.text, trajectory.finish, tokens, asked)
        row = {"asked": asked, "text": trajectory.text, "finish": trajectory.finish, "tokens": tokens}
        self._lines.append({"id": prompt.id, "sample": sample, **row})

    def note(self, scored: Scored) -> None:
        """Write how an answer was judged, unless it could not be judged. Raises RunDirError."""
        if scored.reward is None:
            return
        prompt, sample = scored.trajectory.request.prompt, scored.trajectory.request.sample
        by, passed = self._digest(prompt)[1], solved(scored)
        verdict = str(scored.judgement.verdict) if scored.judgement else ""
        answer = self.known[prompt.id, sample]
        self.known[prompt.id, sample] = replace(answer, judged=by, passed=passed, verdict=verdict)
        row = {"judged": by, "passed": passed, "verdict": verdict}
        self._lines.append({"id": prompt.id, "sample": sample, **row})

    def tally(self, prompt: Prompt, samples: int) -> ProblemTally:
        """The results of the first ``samples`` answers to a prompt."""
        found = [self.result(prompt, sample) for sample in range(samples)]
        judged_ones = [answer for answer in found if answer is not None]
        return ProblemTally(
            id=prompt.id,
            passes=sum(bool(answer.passed) for answer in judged_ones),
            samples=len(judged_ones),
            failed=samples - len(judged_ones),
            truncated=sum(answer.finish != "stop" for answer in judged_ones),
            tokens=sum(answer.tokens for answer in judged_ones),
        )

    def _digest(self, prompt: Prompt) -> tuple[str, str]:
        """Digests of the prompt, and of the problem."""
        if prompt.id not in self._digests:
            text = json.dumps([list(prompt.token_ids), prompt.prefill]).encode()
            self._digests[prompt.id] = hashlib.sha256(text).hexdigest()[:16], data_digest([prompt])
        return self._digests[prompt.id]


def _take(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError("--out", str(path), "another command writes there; wait, or name another folder") from error


def _rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows of a file, and the bytes that they take: a torn last line is none."""
    with guarded(path):
        raw = path.read_bytes()
    try:
        rows, size = parse_json_lines(raw)
    except ValueError as error:
        raise ConfigError("--out", str(path), f"is no file of answers ({error}); name another folder") from error
    if size < len(raw) and not rows:
        raise ConfigError("--out", str(path), "is no file of answers (it has no whole line); name another folder")
    return rows, size


def _check_settings(path: Path, head: Any, settings: SamplingSettings) -> None:
    if not isinstance(head, dict) or head.get("answers") != FORMAT or not isinstance(head.get("law"), dict):
        wanted = f'its first line must be {{"answers": {FORMAT}, "law": ...}}'
        raise ConfigError("--out", str(path), f"is no file of answers, {wanted}; name another folder")
    was = head["law"]
    if other := sorted(name for name in {**was, **settings} if was.get(name) != settings.get(name)):
        shown = ", ".join(f"{name} {was.get(name)!r} (asked for: {settings.get(name)!r})" for name in other)
        raise ConfigError(
            "--out", str(path), f"holds answers sampled with other settings: {shown}; name another folder"
        )


def _answers(path: Path, rows: Sequence[Any]) -> dict[tuple[str, int], RecordedAnswer]:
    found: dict[tuple[str, int], RecordedAnswer] = {}
    for number, row in enumerate(rows, start=2):
        try:
            place = str(row["id"]), int(row["sample"])
            if "text" in row:
                found[place] = _answer(row)
            else:
                found[place] = replace(found[place], **_judged(row))
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError("--out", f"{path}:{number}", f"is no answer ({reason}); take the line out") from error
    return found


def _answer(row: Mapping[str, Any]) -> RecordedAnswer:
    finish = row.get("finish", "stop")
    if not isinstance(row["text"], str) or finish not in get_args(Finish):
        raise ValueError("text must be text, and finish one of " + ", ".join(get_args(Finish)))
    answer = RecordedAnswer(row["text"], finish, int(row.get("tokens", 0)), str(row.get("asked", "")))
    return replace(answer, **_judged(row)) if "passed" in row else answer


def _judged(row: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(row["passed"], bool):
        raise ValueError("passed must be true or false")
    return {"judged": str(row.get("judged", "")), "passed": row["passed"], "verdict": str(row.get("verdict", ""))}


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Number of answers to each prompt, and how they are sampled."""

    samples: int = 16
    temperature: float = 0.6
    """0 for the likeliest tokens."""
    top_p: float = 0.95

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError("--samples", self.samples, "use 1 or more")
        if not 0 <= self.temperature <= 2:
            raise ConfigError("--temperature", self.temperature, "use a number from 0 to 2")
        if not 0 < self.top_p <= 1:
            raise ConfigError("--top-p", self.top_p, "use a share above 0 and at most 1")
        if self.temperature == 0 and self.samples > 1:
            raise ConfigError("--samples", self.samples, "greedy answers to a problem are all the same: use 1")


async def complete_answers(
    generator: Generator,
    verifier: Verifier,
    prompts: Sequence[Prompt],
    draw: SamplingOptions,
    file: AnswerFile,
    *,
    progress: OnScored | None = None,
    stall_s: float = STALL_S,
) -> None:
    """Sample and judge what ``file`` lacks; recorded answers are not sampled again, and judged ones not judged again.

    The verifier must be started; the generator too, with a version loaded, where an answer is missing. ``stall_s``: see
    ``answers``. Raises StageError for what generator and verifier raise, and RunDirError; the file has all that was
    found until then.
    """
    places = [(g, s) for g, prompt in enumerate(prompts) for s in range(draw.samples) if not file.result(prompt, s)]
    # Negative groups: ids that no training sample has.
    asked = [Request(-1 - g, s, prompts[g], draw.temperature, draw.top_p) for g, s in places]
    wanted = len(prompts) * draw.samples

    async def generate(request: Request) -> Trajectory:
        if (known := file.drawn(request.prompt, request.sample)) is not None:
            return Trajectory(request, (), (), known.text, known.finish, (), 0.0, 0.0)
        trajectory = await generator.generate(request)
        if trajectory.finish != "abort":
            file.keep(trajectory)
        return trajectory

    def on_scored(scored: Scored, ended: int) -> None:
        file.note(scored)
        if progress is not None:
            progress(wanted - len(asked) + ended, wanted)

    await score_answers(generate, verifier, asked, on_scored, stall_s=stall_s)
