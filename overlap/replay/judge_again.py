"""Judges the samples that a run has kept once more: by another task, verifier or set of tests. No engine is needed.

    rollouts.jsonl, else trajectories.jsonl ──▶ the same answers ──▶ verifier ──▶ before -> after

Samples of ``rollouts.jsonl`` come out as such a file, with their new rewards: ``train --from-rollouts`` learns from it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from overlap.aio import together
from overlap.core import Packed, Prompt, Request, Scored, Trajectory, equal_rewards
from overlap.errors import compile_error, count_of
from overlap.json_types import to_json_types
from overlap.record.rollouts import Rollouts
from overlap.record.timing import mean

CHUNK = 256
"""Samples that are in memory at once."""
MASKED = "not judged"
SHOWN_PROBLEMS = 10
PromptKey = tuple[str, str]
"""Split and id of a prompt."""


class Outcome(NamedTuple):
    """What a judgement came to."""

    reward: float | None
    verdict: str
    """"" without one."""
    failure: str = ""

    def __str__(self) -> str:
        if self.reward is None:
            return MASKED
        return f"{self.verdict or 'no verdict'} {self.reward:g}"

    @property
    def name(self) -> str:
        """The verdict; of a reward without one, the reward, or its range where it is neither 0 nor 1."""
        return MASKED if self.reward is None else self.verdict or _reward_name(self.reward)


def _reward_name(reward: float) -> str:
    """Five names for all rewards, so that a table of rewards that vary from sample to sample can be read."""
    if reward in (0, 1):
        return f"reward {reward:g}"
    return "reward < 0" if reward < 0 else "reward > 1" if reward > 1 else "reward 0..1"


@dataclass(frozen=True, slots=True)
class KeptSample:
    """A sample as the run kept it. ``row`` is its line of ``rollouts.jsonl``, if it is one of these."""

    id: str
    split: str
    step: int
    problem: str
    before: Outcome
    trajectory: Callable[[Prompt], Trajectory]
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Rejudged:
    """A sample that was judged again."""

    id: str
    split: str
    step: int
    problem: str
    before: Outcome
    after: Outcome
    why: str = ""
    """What the sandbox says of the first test that failed, or the compiler of the program."""

    @property
    def changed(self) -> bool:
        """Whether reward or verdict are others."""
        return self.before[:2] != self.after[:2]


@dataclass
class RejudgedRun:
    """All samples of a run that were judged again, and those that were not."""

    source: Path
    samples: list[Rejudged] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Why samples were not judged at all, and how many."""
    out: Path | None = None
    note: str = ""
    """What ``train --from-rollouts`` makes of ``out``."""

    @property
    def changed(self) -> list[Rejudged]:
        """Those with another reward or verdict, the largest change first."""
        return sorted((s for s in self.samples if s.changed), key=lambda s: -abs(_value(s.after) - _value(s.before)))

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON types."""
        moves = Counter((s.before.name, s.after.name) for s in self.samples)
        found: dict[str, Any] = {
            "source": str(self.source),
            "out": str(self.out) if self.out else None,
            "note": self.note,
            "samples": len(self.samples),
            "changed": [_sample_json(sample) for sample in self.changed],
            "left_out": dict(self.left_out),
            "verdicts": [{"before": was, "after": now, "samples": n} for (was, now), n in sorted(moves.items())],
            "figures": {name: {"before": was, "after": now} for name, was, now in self._figures()},
            "problems": [change._asdict() for change in self._problems()],
        }
        return cast(dict[str, Any], to_json_types(found))

    def lines(self, limit: int) -> Iterator[str]:
        """A report for a person, with at most ``limit`` samples."""
        changed = self.changed
        yield f"{count_of(len(self.samples), 'sample')} of {self.source} judged again, {len(changed):,} changed"
        yield from (f"not judged again: {count_of(n, 'sample')}: {why}" for why, n in self.left_out.most_common())
        yield from ("", f"{'':<22}{'before':>10}{'after':>10}")
        for name, was, now in self._figures():
            digits = 3 if name.startswith(("mean", "solved")) else 0
            yield f"{name:<22}{was:>10.{digits}f}{now:>10.{digits}f}"
        yield from self._verdict_table()
        if problems := self._problems():
            yield from ("", "problems that changed most: mean reward, samples that changed")
            for each in problems:
                yield f"  {each.problem:<28} {each.before:.3f} -> {each.after:.3f}   {each.changed} of {each.samples}"
        if changed:
            yield from ("", f"samples that changed{f' (the first {limit})' if len(changed) > limit else ''}")
        for sample in changed[:limit]:
            why = f"   {sample.after.failure or sample.why}".rstrip()
            place = f"step {sample.step} {sample.id}" if sample.split == "train" else f"{sample.split} {sample.id}"
            yield f"  {place:<22} {sample.problem:<20} {sample.before} -> {sample.after}{why}"
        if self.out is not None:
            yield from ("", f"{self.out}: {self.note}")

    def _figures(self) -> list[tuple[str, float, float]]:
        both = [(s.before, s.after) for s in self.samples]
        rewards = [[one.reward for one in side if one.reward is not None] for side in zip(*both, strict=True)]
        rewards = rewards or [[], []]
        groups = self._groups()
        teaching = [sum(len(some) > 1 and not equal_rewards(some) for some in side) for side in groups]
        found = [("mean reward", mean(rewards[0]), mean(rewards[1]))]
        solved = [[float(value >= 1) for value in side] for side in rewards]
        found.append(("solved share", mean(solved[0]), mean(solved[1])))
        found.append(("groups that teach", float(teaching[0]), float(teaching[1])))
        lost = [float(sum(one.reward is None for one in side)) for side in zip(*both, strict=True)] or [0.0, 0.0]
        return [*found, ("not judged", lost[0], lost[1])]

    def _groups(self) -> tuple[list[list[float]], list[list[float]]]:
        """The rewards of each group of the training, before and after."""
        before, after = dict[tuple[int, str], list[float]](), dict[tuple[int, str], list[float]]()
        for s in self.samples:
            if s.split == "train":
                for known, one in ((before, s.before), (after, s.after)):
                    some = known.setdefault((s.step, s.id.partition("s")[0]), [])
                    some += [] if one.reward is None else [one.reward]
        return list(before.values()), list(after.values())

    def _verdict_table(self) -> Iterator[str]:
        moves = Counter((s.before.name, s.after.name) for s in self.samples)
        if not moves:
            return
        names = sorted({name for pair in moves for name in pair})
        width = max(10, *(len(name) + 2 for name in names))
        yield from ("", f"{'before, then after':<20}" + "".join(f"{name:>{width}}" for name in names))
        for was in names:
            if any(moves[was, now] for now in names):
                yield f"{was:<20}" + "".join(f"{moves[was, now] or '.':>{width}}" for now in names)

    def _problems(self) -> list[ProblemChange]:
        """The problems whose samples changed, the largest change of their mean reward first."""
        by_problem: dict[str, list[Rejudged]] = {}
        for sample in self.samples:
            by_problem.setdefault(sample.problem, []).append(sample)
        found = [_problem_change(name, samples) for name, samples in by_problem.items()]
        found = [each for each in found if each.changed]
        return sorted(found, key=lambda each: (-abs(each.after - each.before), -each.changed))[:SHOWN_PROBLEMS]


class ProblemChange(NamedTuple):
    """A problem with samples that changed: mean rewards, and how many of its samples did."""

    problem: str
    before: float
    after: float
    changed: int
    samples: int


def _problem_change(name: str, samples: Sequence[Rejudged]) -> ProblemChange:
    before, after = _mean_reward([s.before for s in samples]), _mean_reward([s.after for s in samples])
    return ProblemChange(name, before, after, sum(s.changed for s in samples), len(samples))


def _mean_reward(outcomes: Sequence[Outcome]) -> float:
    return mean([outcome.reward for outcome in outcomes if outcome.reward is not None] or [0.0])


def _value(outcome: Outcome) -> float:
    return outcome.reward or 0.0


def _sample_json(sample: Rejudged) -> dict[str, Any]:
    return {
        **{name: getattr(sample, name) for name in ("id", "split", "step", "problem", "why")},
        "before": sample.before._asdict(),
        "after": sample.after._asdict(),
    }


# --- what is kept -----------------------------------------------------------------------------------------------


def kept_samples(rollouts: Rollouts) -> Iterator[KeptSample]:
    """The samples of a ``rollouts.jsonl``. Raises ConfigError."""
    for row in rollouts.rows():
        judgement = row["judgement"] or {}
        before = Outcome(row["reward"], str(judgement.get("verdict", "")), "".join(row["failure"]))
        name = f"g{row['group']}s{row['sample']}"
        yield KeptSample(name, "train", row["step"], row["prompt"], before, _whole(rollouts, row), row)


def _whole(rollouts: Rollouts, row: Mapping[str, Any]) -> Callable[[Prompt], Trajectory]:
    return lambda prompt: rollouts.scored(Request(row["group"], row["sample"], prompt), 0.0).trajectory


def shown_samples(samples: Iterable[Mapping[str, Any]]) -> Iterator[KeptSample]:
    """The samples of a ``trajectories.jsonl``: answers without the engine's log-probs. Raises ConfigError."""
    for row in samples:
        before = Outcome(row["reward"], row["verdict"] or "", row["failure"])
        yield KeptSample(row["id"], row["split"], row["step"], row["prompt_id"], before, _answer(row))


def _answer(row: Mapping[str, Any]) -> Callable[[Prompt], Trajectory]:
    def made(prompt: Prompt) -> Trajectory:
        request = Request(row["group"], row["sample"], prompt)
        # Answers of schema 2 and before begin with the prefill.
        text = row["answer"] if row["schema"] >= 3 else row["answer"].removeprefix(prompt.prefill)
        ids: Packed[int] = Packed.from_base64("i", row.get("token_ids", ""))
        return Trajectory(request, ids, (), text, row["finish"], (), 0.0, 0.0, turns=row["turns"])

    return made


# --- judging ----------------------------------------------------------------------------------------------------


async def judge_samples(
    kept: Iterable[KeptSample],
    prompts: Mapping[PromptKey, Prompt],
    other: Mapping[PromptKey, str],
    score: Callable[[Trajectory], Awaitable[Scored]],
    into: RejudgedRun,
    on_rows: Callable[[Sequence[Mapping[str, Any]]], None],
    progress: Callable[[int], None],
) -> None:
    """Judge all of ``kept`` by ``score``, which is that of a verifier. ``prompts`` are the task's; ``other``: why the
    answers to a prompt are none to the prompt of that name now. ``on_rows`` gets lines of a new ``rollouts.jsonl``.
    """
    samples = iter(kept)
    while some := list(islice(samples, CHUNK)):
        judged = await together(*(_judged(each, prompts, other, score, into) for each in some))
        on_rows([row for row in judged if row is not None])
        progress(len(into.samples) + into.left_out.total())


async def _judged(
    kept: KeptSample,
    prompts: Mapping[PromptKey, Prompt],
    other: Mapping[PromptKey, str],
    score: Callable[[Trajectory], Awaitable[Scored]],
    into: RejudgedRun,
) -> dict[str, Any] | None:
    key = kept.split, kept.problem
    if why := other.get(key) or ("" if key in prompts else "the data has no such problem"):
        into.left_out[why] += 1
        return None
    trajectory = kept.trajectory(prompts[key])
    if trajectory.failure or trajectory.finish == "abort":
        into.left_out["it has no answer that could be judged (its episode failed, or was broken off)"] += 1
        return dict(kept.row) if kept.row else None
    scored = replace(await score(trajectory), trajectory=trajectory)
    into.samples.append(_rejudged(kept, scored))
    if kept.row is None:
        return None
    judgement = scored.judgement.to_json() if scored.judgement else None
    new = {"reward": scored.reward, "failure": scored.failure, "judgement": judgement}
    row = {name: value for name, value in kept.row.items() if name != "program_sha256"}
    return row | new | ({"program_sha256": scored.program_sha256} if scored.program_sha256 else {})


def _rejudged(kept: KeptSample, scored: Scored) -> Rejudged:
    judgement = scored.judgement
    verdict = str(judgement.verdict) if judgement else ""
    failing = next((case.message for case in judgement.cases if case.verdict != "AC"), "") if judgement else ""
    if judgement and not judgement.cases:
        failing = compile_error(judgement.compile_log)
    after = Outcome(scored.reward, verdict, scored.failure)
    return Rejudged(kept.id, kept.split, kept.step, kept.problem, kept.before, after, failing[:120])


def rollouts_line(row: Mapping[str, Any]) -> str:
    """A line of ``rollouts.jsonl``."""
    return json.dumps(row) + "\n"
