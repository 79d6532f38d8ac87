"""Answers that an evaluation has drawn, each kept the moment it is there: JSON lines.

    {"answers": 1, "law": {"policy": "1f6c...", "temperature": 0.6, "top_p": 0.95, ...}}
    {"id": "humaneval+/HumanEval/3", "sample": 0, "asked": "9b1d...", "text": "...", "finish": "stop", "tokens": 212}
    {"id": "humaneval+/HumanEval/3", "sample": 0, "judged": "77aa...", "passed": true, "verdict": "AC"}

``law`` is what the answers are drawn by: a file holds answers of one law. ``asked`` names the prompt and ``judged`` the
problem with all of its tests, so that an answer to another prompt is drawn again, and one to a problem whose tests have
changed is judged again. Later lines count. Answers by hand, or from elsewhere, need ``id``, ``sample`` and ``text``.
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

from overlap.atomic import guarded
from overlap.core import Finish, Prompt, Scored, Trajectory
from overlap.errors import ConfigError
from overlap.evaluation.evaluate import ProblemTally
from overlap.record import JsonLines, data_digest, parse_json_lines, solved, to_json_types

FORMAT = 1
SamplingSettings = Mapping[str, Any]
"""What answers are drawn by, as JSON types."""


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One answer, and what became of it. ``passed`` is None as long as it was not judged."""

    text: str
    finish: Finish = "stop"
    tokens: int = 0
    asked: str = ""
    """Digest of the prompt, "" where nobody said."""
    judged: str = ""
    """Digest of the problem that it was judged by, "" where nobody said."""
    passed: bool | None = None
    verdict: str = ""


@dataclass
class AnswerFile:
    """The answers in a file, and the file itself: what is added stands in both. Use ``open``, and ``close``."""

    path: Path
    law: SamplingSettings
    known: dict[tuple[str, int], RecordedAnswer]
    """By prompt id and sample."""
    _lines: JsonLines
    _lock: int
    _digests: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, law: SamplingSettings) -> AnswerFile:
        """Go on with a file, or begin one. A line that a kill has torn is cut off.

        Raises ConfigError where its answers were drawn by another law, another command writes there, or it is no such
        file; RunDirError where it cannot be written.
        """
        with guarded(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _take(lock, path)
            rows, size = _rows(path)
            lines = JsonLines(path)
            lines.rewind(size)
            law = to_json_types(law)
            if not rows:
                lines.append({"answers": FORMAT, "law": law})
            else:
                _check_law(path, rows[0], law)
            return cls(path, law, _answers(path, rows[1:]), lines, lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def read(cls, path: Path, law: SamplingSettings) -> AnswerFile:
        """The answers in a file, or in none; nothing may be added, and nothing is written. Raises ConfigError."""
        rows = _rows(path)[0] if path.is_file() else []
        if rows:
            _check_law(path, rows[0], to_json_types(law))
        return cls(path, law, _answers(path, rows[1:]), JsonLines(path), -1)

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
        """The same, when it was judged by the problem as it is."""
        found = self.drawn(prompt, sample)
        if found is None or found.passed is None:
            return None
        return found if found.judged in ("", self._digest(prompt)[1]) else None

    def missing(self, prompts: Sequence[Prompt], samples: int) -> tuple[int, int]:
        """How many answers must be drawn, and how many of those that are there must be judged."""
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
        """Write down how an answer was judged; our own failure to judge is no verdict. Raises RunDirError."""
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
        """What became of the first ``samples`` answers to a prompt."""
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
        """Of the prompt, and of the problem."""
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


def _check_law(path: Path, head: Any, law: SamplingSettings) -> None:
    if not isinstance(head, dict) or head.get("answers") != FORMAT or not isinstance(head.get("law"), dict):
        wanted = f'its first line must be {{"answers": {FORMAT}, "law": ...}}'
        raise ConfigError("--out", str(path), f"is no file of answers, {wanted}; name another folder")
    was = head["law"]
    if other := sorted(name for name in {**was, **law} if was.get(name) != law.get(name)):
        shown = ", ".join(f"{name} {was.get(name)!r} (asked for: {law.get(name)!r})" for name in other)
        raise ConfigError("--out", str(path), f"holds answers drawn by another law: {shown}; name another folder")


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
