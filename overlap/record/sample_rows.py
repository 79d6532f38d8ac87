"""The rows of ``trajectories.jsonl``: prompt and answer, the outcome, and how each test judged the answer.

A row begins with its head, the small values; its bulk begins with "prompt". ``docs/look.md`` lists both.

{"schema": 3, "split": "train", "step": 3, "group": 17, "sample": 0, "prompt_id": "p4", "reward": 1.0, ...,
 "prompt": "...", "answer": "...", "prefill": "...", "program": {"source": ..., "language": ...}, "tests": [...], ...}

"prompt" is the text of ``prompt_token_ids`` and ends with the prefill, "answer" is the policy's text behind it.

Numbers per token are base64 of 4 bytes each, lowest first: int32 and float32, as ``Packed`` holds them. A row with a
"restore" column gives the sample back whole (``kept_samples``); one that is made for that alone has no texts but the
answer:

"restore": {"data": "1f6c...", "generated": [-12.5, -2.0], "verified": [-1.5, -1.0, -0.5], "judgement": {...}, ...}

It has what the columns for people lack. Times are seconds before the row was
made (of a step: before it was trained on), because the reader has another clock. Of a request's prompt the id is
stored alone: the order of prompts follows from the seed and the number of the group.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from overlap.core import Packed
from overlap.record.json_lines import json_line
from sandbox.core.excerpt import Excerpt
from sandbox.core.nouns import Program, Verdict
from sandbox.core.problem import Problem

if TYPE_CHECKING:
    from overlap.core import Prompt, Scored, Split, Trajectory
    from sandbox.core.nouns import CaseResult

SCHEMA = 3
LOG_CHARS = 2000
FAILURE_CHARS = 500
TESTS = 30
"""Tests of a sample that are written at most, of the tests that ran: the first failed ones, then the first of all."""
FAILED, FAILED_CHARS = 3, 1000
"""Number of failed tests that are written with longer texts, and the characters of such a text."""
OTHER_CHARS = 120
MESSAGE_CHARS = 500
_HALVES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two lone surrogates side by side, which JSON would read back as one character."""
_PLACE = ("group", "sample", "prompt")
"""Fields of a request that the head of its row has."""
Decode = Callable[["Prompt"], str]
"""Gives a prompt's text."""
ProgramOf = Callable[["Prompt", str], tuple[Problem, Program] | None]
"""``Task.program``."""


@dataclass(frozen=True, slots=True)
class SampleNotes:
    """Data that a sample does not hold: why its group is kept, the outcome of its reward, the learner's log-probs.

    ``learner``: the learner's log-probs of each of its branches, [T] each; empty where the learner did not say.
    """

    kept_as: tuple[str, ...] = ()
    advantage: float | None = None
    punishment: float | None = None
    dropped: str = ""
    learner: Sequence[Sequence[float]] = ()


@dataclass(slots=True)
class SampleRows:
    """Writes the rows of one step or one evaluation: a text that its samples share is made once."""

    split: Split
    step: int | None
    decode: Decode | None = None
    """None: rows without what people look at."""
    program_of: ProgramOf = field(default=lambda *_: None)
    """A program or problem that it cannot give, as user code may raise anything, is null in the row."""
    restore_at_s: float | None = None
    """Time at which rows with the "restore" column are made; for a step, the time at which it was trained on."""
    data: str = ""
    """The digest of the prompts, for that column."""
    _prompts: dict[str, str] = field(default_factory=dict)
    _excerpts: dict[tuple[str, int], Any] = field(default_factory=dict)

    def line(self, sample: Scored, notes: SampleNotes = SampleNotes()) -> bytes:
        """One line of JSON, with its end."""
        trajectory = sample.trajectory
        row = _head(self.split, self.step, sample, notes)
        row |= {"prompt": self._prompt(trajectory), "answer": trajectory.text}
        if self.decode is not None:
            row |= self._shown(sample, self.decode)
        row |= _tokens(trajectory, notes.learner[:1])
        if trajectory.forks:
            row["forks"] = list(_forks(trajectory.forks, notes.learner[1:], self.restore_at_s))
        if self.restore_at_s is not None:
            row["restore"] = _restore_column(sample, self.restore_at_s, self.data)
        return json_line(row)

    def _shown(self, sample: Scored, decode: Decode) -> dict[str, Any]:
        """The columns for people, beside prompt and answer."""
        trajectory, judgement = sample.trajectory, sample.judgement
        prompt = trajectory.request.prompt
        problem, program = self._job(trajectory)
        ids = (*trajectory.prompt_ids, *trajectory.token_ids)
        return {
            "prefill": prompt.prefill,
            **({"dialog": decode(replace(prompt, token_ids=ids))} if trajectory.used is not None else {}),
            "program": _program_row(program),
            "kind": problem.kind if problem else "",
            "tests": self.tests(judgement.cases if judgement else (), problem),
            "compile_log": _both_ends(judgement.compile_log if judgement else "", LOG_CHARS),
        }

    def _job(self, trajectory: Trajectory) -> tuple[Problem, Program] | tuple[None, None]:
        """Problem and program that the verifier was given, if any."""
        if trajectory.failure or trajectory.finish == "abort":
            return None, None
        prompt = trajectory.request.prompt
        try:
            problem, program = self.program_of(prompt, prompt.prefill + trajectory.text) or (None, None)
        except Exception:  # the user's code; the verifier, which calls it too, has reported it
            return None, None
        return (problem, program) if isinstance(problem, Problem) and isinstance(program, Program) else (None, None)

    def _prompt(self, trajectory: Trajectory) -> str:
        """Text of the context of the response, which an episode may have begun in its own words."""
        prompt, ids = trajectory.request.prompt, trajectory.prompt_ids
        if self.decode is None:
            return ""
        if ids != prompt.token_ids:
            return self.decode(replace(prompt, token_ids=ids))
        if prompt.id not in self._prompts:
            self._prompts[prompt.id] = self.decode(prompt)
        return self._prompts[prompt.id]

    def tests(self, cases: Sequence[CaseResult], problem: Problem | None) -> list[dict[str, Any]]:
        """The rows of the tests that ran, in their order; ``problem`` is what they were the tests of."""
        shown = [case for case in cases if case.verdict is not Verdict.AC][:FAILED]
        failed = {case.index for case in shown}
        if len(cases) > TESTS:
            others = [case for case in cases if case.index not in failed][: TESTS - len(shown)]
            cases = sorted((*shown, *others), key=lambda case: case.index)
        return [self._test(case, problem, FAILED_CHARS if case.index in failed else OTHER_CHARS) for case in cases]

    def _test(self, case: CaseResult, problem: Problem | None, limit: int) -> dict[str, Any]:
        asked = problem.cases[case.index] if problem and case.index < len(problem.cases) else None
        row = {
            "index": case.index,
            "verdict": str(case.verdict),
            "cpu_s": case.cpu_s,
            "wall_s": case.wall_s,
            "memory_bytes": case.memory_bytes,
            "message": case.message[:MESSAGE_CHARS],
            "exit": case.exit_code,
            "signal": case.signal,
            "input": self._excerpt(asked.input if asked else None, limit),
            "expected": self._excerpt(asked.expected if asked else None, limit),
            "got": _shorter(case.got, limit),
        }
        return row if case.stderr is None else {**row, "stderr": _shorter(case.stderr, limit)}

    def _excerpt(self, text: str | None, limit: int) -> Any:
        if text is None:
            return None
        if (text, limit) not in self._excerpts:
            self._excerpts[text, limit] = Excerpt.of(text, limit).to_json()
        return self._excerpts[text, limit]


def _head(split: Split, step: int | None, sample: Scored, notes: SampleNotes) -> dict[str, Any]:
    trajectory, judgement, request = sample.trajectory, sample.judgement, sample.trajectory.request
    parts = {} if sample.reward is None else {"task": sample.reward}
    return {
        "schema": SCHEMA,
        "split": split,
        "step": step,
        "group": request.group,
        "sample": request.sample,
        "id": sample.id,
        "prompt_id": request.prompt.id,
        "reward": sample.reward,
        "advantage": notes.advantage,
        "parts": parts if notes.punishment is None else {**parts, "punishment": notes.punishment},
        "verdict": str(judgement.verdict) if judgement else None,
        "failure": sample.failure[:FAILURE_CHARS],
        "dropped": notes.dropped,
        "kept_as": notes.kept_as,
        "weak": judgement.weak if judgement else False,
        "passed": judgement.passed if judgement else None,
        "total": judgement.total if judgement else None,
        "tokens": trajectory.sampled,
        "finish": trajectory.finish,
        "truncated": trajectory.truncated,
        "turns": trajectory.used.turns if trajectory.used else 1,
        "branches": len(trajectory.branches),
        "versions": [[span.version, span.start, span.end] for span in trajectory.spans],
        "generate_s": round(trajectory.finished_s - trajectory.started_s, 6),
        "queue_s": round(sample.started_s - sample.queued_s, 6),
        "verify_s": round(sample.finished_s - sample.started_s, 6),
        "node": judgement.node if judgement else "",
        "program_sha256": sample.program_sha256,
    }


def _program_row(program: Program | None) -> dict[str, Any] | None:
    if program is None:
        return None
    files = {"files": program.files} if program.files else {}
    return {"source": program.source, "language": program.language, **files}


def _tokens(branch: Trajectory, learner: Sequence[Sequence[float]]) -> dict[str, str]:
    """The numbers of the tokens of a branch; ``learner`` has the learner's log-probs of it, or nothing."""
    return {
        "token_ids": _packed("i", branch.token_ids),
        "logprobs": _packed("f", branch.logprobs),
        **({"learner_logprobs": _packed("f", learner[0])} if learner else {}),
        **({"mask": b64encode(branch.mask).decode()} if branch.mask else {}),
        "prompt_token_ids": _packed("i", branch.prompt_ids),
    }


def _forks(
    forks: Sequence[Trajectory], learner: Sequence[Sequence[float]], restore_at_s: float | None
) -> Iterator[dict[str, Any]]:
    for index, fork in enumerate(forks):
        spans = [[span.version, span.start, span.end] for span in fork.spans]
        row: dict[str, Any] = {
            "text": fork.text,
            "finish": fork.finish,
            "versions": spans,
            **_tokens(fork, learner[index : index + 1]),
        }
        if restore_at_s is not None:
            row["restore"] = _restore_branch(fork, restore_at_s)
            row["forks"] = list(_forks(fork.forks, (), restore_at_s))
        yield row


def _packed(code: Literal["i", "f"], values: Iterable[Any]) -> str:
    return Packed(code, values).base64.decode()


def _both_ends(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]}\n... {len(text) - limit} characters left out ...\n{text[-tail:]}"


def _shorter(excerpt: Excerpt | None, limit: int) -> Any:
    """The excerpt as JSON, with at most about ``limit`` characters."""
    if excerpt is None or len(excerpt.head) + len(excerpt.tail) <= limit:
        return excerpt and excerpt.to_json()
    if excerpt.whole:
        return Excerpt.of(excerpt.head, limit).to_json()
    tail = limit // 4
    return Excerpt(excerpt.head[: limit - tail], excerpt.tail[-tail:], excerpt.size, excerpt.sha256).to_json()


def _restore_column(scored: Scored, at_s: float, data: str) -> dict[str, Any]:
    """The column of a sample whose row is made at ``at_s``; ``data`` is the digest of all prompts of its run."""
    request, judgement = scored.trajectory.request, scored.judgement
    return {
        "data": data,
        "request": {f.name: getattr(request, f.name) for f in fields(request) if f.name not in _PLACE},
        **_restore_branch(scored.trajectory, at_s),
        "failure": _text(scored.failure),
        "verified": [t - at_s if t else None for t in (scored.queued_s, scored.started_s, scored.finished_s)],
        "judgement": judgement.to_json() if judgement else None,
    }


def _restore_branch(branch: Trajectory, at_s: float) -> dict[str, Any]:
    """The same of one branch of an episode."""
    return {
        "generated": [branch.started_s - at_s, branch.finished_s - at_s],
        "text": [*branch.text] if _HALVES.search(branch.text) else None,
        "turns": branch.turns,
        "cached_tokens": branch.cached_tokens,
        "unscored": _text(branch.failure),
        "used": branch.used and astuple(branch.used),
    }


def _text(text: str) -> str | list[str]:
    """A text in JSON: letter by letter where two of them would become one."""
    return [*text] if _HALVES.search(text) else text
