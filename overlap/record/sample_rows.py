"""The rows of ``trajectories.jsonl``: prompt and answer, the outcome, and how each test judged the answer.

A row begins with its head, the small values; its bulk begins with "prompt". ``docs/look.md`` lists both.

{"schema": 3, "split": "train", "step": 3, "group": 17, "sample": 0, "prompt_id": "p4", "reward": 1.0, ...,
 "prompt": "...", "prefill": "...", "answer": "...", "program": {"source": ..., "language": ...}, "tests": [...], ...}

"prompt" is the text of ``prompt_token_ids`` and ends with the prefill, "answer" is the policy's text behind it.

Numbers per token are base64 of 4 bytes each, lowest first: int32 and float32, as ``Packed`` holds them. A row with a
"restore" column gives the sample back whole (``sample_restore``); one that is made for that alone has no texts but the
answer.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from overlap.core import Packed
from overlap.record.case_rows import CaseRows
from overlap.record.json_lines import json_bytes
from overlap.record.sample_restore import restore_branch, restore_column
from sandbox.core.nouns import Program
from sandbox.core.problem import Problem

if TYPE_CHECKING:
    from overlap.core import Group, Prompt, Scored, Split, Trajectory

SCHEMA = 3
LOG_CHARS = 2000
FAILURE_CHARS = 500
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


def notes_of_group(
    group: Group, kept_as: tuple[str, ...], learner: Mapping[str, Sequence[Sequence[float]]], *, critic: bool
) -> Iterator[tuple[Scored, SampleNotes]]:
    """The samples of a group of a step, each with its notes. With a ``critic``, advantages are of tokens."""
    punishments = group.punishments or (None,) * len(group.samples)
    for sample, advantage, punishment in zip(group.samples, group.advantages, punishments, strict=True):
        learned = not (critic or group.dropped or sample.reward is None)
        yield (
            sample,
            SampleNotes(
                kept_as,
                advantage if learned else None,
                punishment if sample.reward is not None else None,
                group.dropped,
                learner.get(sample.id, ()),
            ),
        )


@dataclass(slots=True)
class SampleRows:
    """Writes the rows of one step or one evaluation: what its samples share is put into JSON once."""

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
    _prompts: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    _cases: CaseRows = field(default_factory=CaseRows)

    def line(self, sample: Scored, notes: SampleNotes = SampleNotes()) -> bytes:
        """One line of JSON, with its end."""
        trajectory = sample.trajectory
        prompt, prompt_ids = self._prompt(trajectory)
        head = json_bytes(_head(self.split, self.step, sample, notes))
        pieces = [head[:-1], *_member("prompt", prompt), *_member("answer", json_bytes(trajectory.text))]
        if self.decode is not None:
            pieces += self._shown(sample, self.decode)
        pieces += _tokens(trajectory, notes.learner[:1])
        pieces += _quoted("prompt_token_ids", prompt_ids)
        if trajectory.forks:
            forks = _forks(trajectory.forks, notes.learner[1:], self.restore_at_s)
            pieces += _member("forks", b"[%b]" % b", ".join(forks))
        if self.restore_at_s is not None:
            pieces += _member("restore", json_bytes(restore_column(sample, self.restore_at_s, self.data)))
        return b"".join((*pieces, b"}\n"))

    def _shown(self, sample: Scored, decode: Decode) -> Iterator[bytes]:
        """Yield the members for people, beside prompt and answer."""
        trajectory, judgement = sample.trajectory, sample.judgement
        problem, program = self._job(trajectory)
        yield from _member("prefill", json_bytes(trajectory.request.prompt.prefill))
        if trajectory.used is not None:
            ids = (*trajectory.prompt_ids, *trajectory.token_ids)
            dialog = decode(replace(trajectory.request.prompt, token_ids=ids))
            yield from _member("dialog", json_bytes(dialog))
        yield from _member("program", json_bytes(_program_row(program)))
        yield from _member("kind", json_bytes(problem.kind if problem else ""))
        yield from _member("tests", json_bytes(self._cases.rows(judgement.cases if judgement else (), problem)))
        log = _both_ends(judgement.compile_log if judgement else "", LOG_CHARS)
        yield from _member("compile_log", json_bytes(log))

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

    def _prompt(self, trajectory: Trajectory) -> tuple[bytes, bytes]:
        """The context of the response, which an episode may have begun in its own words: its text as JSON, and its
        token ids in base64.
        """
        prompt, ids = trajectory.request.prompt, trajectory.prompt_ids
        if ids != prompt.token_ids:
            return self._text(replace(prompt, token_ids=ids)), _packed("i", ids)
        if prompt.id not in self._prompts:
            self._prompts[prompt.id] = self._text(prompt), _packed("i", ids)
        return self._prompts[prompt.id]

    def _text(self, prompt: Prompt) -> bytes:
        return json_bytes(self.decode(prompt) if self.decode else "")


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


def _tokens(branch: Trajectory, learner: Sequence[Sequence[float]]) -> Iterator[bytes]:
    """Yield the data of each token of a branch; ``learner`` has the learner's log-probs of it, or nothing."""
    yield from _quoted("token_ids", _packed("i", branch.token_ids))
    yield from _quoted("logprobs", _packed("f", branch.logprobs))
    if learner:
        yield from _quoted("learner_logprobs", _packed("f", learner[0]))
    if branch.mask:
        yield from _quoted("mask", b64encode(branch.mask))


def _forks(
    forks: Sequence[Trajectory], learner: Sequence[Sequence[float]], restore_at_s: float | None
) -> Iterator[bytes]:
    """JSON objects."""
    for index, fork in enumerate(forks):
        spans = [[span.version, span.start, span.end] for span in fork.spans]
        told = json_bytes({"text": fork.text, "finish": fork.finish, "versions": spans})
        pieces = [told[:-1], *_quoted("prompt_token_ids", _packed("i", fork.prompt_ids))]
        pieces += _tokens(fork, learner[index : index + 1])
        if restore_at_s is not None:
            pieces += _member("restore", json_bytes(restore_branch(fork, restore_at_s)))
            pieces += _member("forks", b"[%b]" % b", ".join(_forks(fork.forks, (), restore_at_s)))
        yield b"".join((*pieces, b"}"))


def _member(name: str, value: bytes) -> tuple[bytes, bytes]:
    """A further member of a JSON object, whose value is JSON; in pieces, so that long ones are copied once."""
    return b', "%b": ' % name.encode(), value


def _quoted(name: str, value: bytes) -> tuple[bytes, bytes, bytes]:
    """The same for base64: a text in which nothing has to be escaped, so it is not searched for that."""
    return b', "%b": "' % name.encode(), value, b'"'


def _packed(code: Literal["i", "f"], values: Iterable[Any]) -> bytes:
    return Packed(code, values).base64


def _both_ends(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]}\n... {len(text) - limit} characters left out ...\n{text[-tail:]}"
