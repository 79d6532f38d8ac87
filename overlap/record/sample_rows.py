"""The rows of ``trajectories.jsonl``: what was asked and answered, what became of it, and how each test judged it.

A row begins with its head, the small values; its bulk begins with "prompt". ``docs/samples.md`` lists both.

{"schema": 2, "split": "train", "step": 3, "group": 17, "sample": 0, "prompt_id": "p4", "reward": 1.0, ...,
 "prompt": "...", "answer": "...", "program": {"source": ..., "language": ...}, "tests": [...], "token_ids": "...", ...}

Numbers per token are base64 of 4 bytes each, lowest first, as in ``rollouts.jsonl``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from overlap.core import Packed
from overlap.record.case_rows import CaseRows
from overlap.record.json_lines import to_json

if TYPE_CHECKING:
    from overlap.core import Group, Prompt, Scored, Split, Trajectory
    from sandbox.core import Problem, Program

SCHEMA = 2
LOG_CHARS = 2000
FAILURE_CHARS = 500
Decode = Callable[["Prompt"], str]
"""Gives a prompt's text."""
ProgramOf = Callable[["Prompt", str], "tuple[Problem, Program] | None"]
"""``Task.program``."""


@dataclass(frozen=True, slots=True)
class SampleNotes:
    """What a sample does not know of itself: why its group is kept, what came of its reward, the learner's view.

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
    step: int
    decode: Decode
    program_of: ProgramOf
    """A program or problem that it cannot give, as user code may raise anything, is null in the row."""
    _prompts: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    _cases: CaseRows = field(default_factory=CaseRows)

    def line(self, sample: Scored, notes: SampleNotes) -> bytes:
        """One line of JSON, with its end."""
        trajectory = sample.trajectory
        problem, program = self._job(trajectory) or (None, None)
        prompt, prompt_ids = self._prompt(trajectory.request.prompt)
        judgement = sample.judgement
        bulk: dict[str, bytes] = {
            "prompt": prompt,
            "answer": to_json(trajectory.request.prompt.prefill + trajectory.text),
            **({"dialog": to_json(self._dialog(trajectory))} if trajectory.used is not None else {}),
            "program": to_json(_program_row(program)),
            "kind": to_json(problem.kind if problem else ""),
            "tests": to_json(self._cases.rows(judgement.cases if judgement else (), problem)),
            "compile_log": to_json(_both_ends(judgement.compile_log if judgement else "", LOG_CHARS)),
            **_branch_fields(trajectory, notes.learner[:1]),
            "prompt_token_ids": prompt_ids,
            **_fork_fields(trajectory.forks, notes.learner[1:]),
        }
        return b"%b, %b}\n" % (to_json(_head(self.split, self.step, sample, notes))[:-1], _members(bulk))

    def _job(self, trajectory: Trajectory) -> tuple[Problem, Program] | None:
        """What the verifier was given; None where it was given nothing."""
        if trajectory.failure or trajectory.finish == "abort":
            return None
        prompt = trajectory.request.prompt
        try:
            return self.program_of(prompt, prompt.prefill + trajectory.text)
        except Exception:  # the user's code; the verifier, which calls it too, has reported it
            return None

    def _prompt(self, prompt: Prompt) -> tuple[bytes, bytes]:
        """Its text and its token ids as JSON."""
        if prompt.id not in self._prompts:
            self._prompts[prompt.id] = to_json(self.decode(prompt)), packed_json("i", prompt.token_ids)
        return self._prompts[prompt.id]

    def _dialog(self, trajectory: Trajectory) -> str:
        """All that the policy saw and wrote on the branch of an episode's last answer."""
        ids = (*trajectory.prompt_ids, *trajectory.token_ids)
        return self.decode(replace(trajectory.request.prompt, token_ids=ids))


def _head(split: Split, step: int, sample: Scored, notes: SampleNotes) -> dict[str, Any]:
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


def _branch_fields(branch: Trajectory, learner: Sequence[Sequence[float]]) -> dict[str, bytes]:
    """What is known of each token of a branch; ``learner`` has the learner's log-probs of it, or nothing."""
    found = {"token_ids": packed_json("i", branch.token_ids), "logprobs": packed_json("f", branch.logprobs)}
    if learner:
        found["learner_logprobs"] = packed_json("f", learner[0])
    return found | ({"mask": b'"%b"' % b64encode(branch.mask)} if branch.mask else {})


def _fork_fields(forks: Sequence[Trajectory], learner: Sequence[Sequence[float]]) -> dict[str, bytes]:
    if not forks:
        return {}
    rows = [
        b"{%b}"
        % _members(
            {
                **_branch_fields(fork, learner[index : index + 1]),
                "prompt_token_ids": packed_json("i", fork.prompt_ids),
                "text": to_json(fork.text),
                "finish": to_json(fork.finish),
                "versions": to_json([[span.version, span.start, span.end] for span in fork.spans]),
            }
        )
        for index, fork in enumerate(forks)
    ]
    return {"forks": b"[%b]" % b", ".join(rows)}


def packed_json(code: Literal["i", "f"], values: Iterable[Any]) -> bytes:
    """A JSON text of base64; written without the search for what JSON escapes, of which it has nothing."""
    return b'"%b"' % b64encode(Packed(code, values).array)


def _members(values: Mapping[str, bytes]) -> bytes:
    """The members of a JSON object whose values are JSON."""
    return b", ".join(b'"%b": %b' % (name.encode(), value) for name, value in values.items())


def _both_ends(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]}\n... {len(text) - limit} characters left out ...\n{text[-tail:]}"
