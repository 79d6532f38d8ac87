"""Answers that a run has kept, judged once more: by another task, verifier or set of tests. No engine is needed.

RUN/trajectories.jsonl ──▶ the same answers ──▶ verifier ──▶ before -> after
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.core import Prompt, Request, Scored, Split, Trajectory, equal_rewards
from overlap.core.errors import ConfigError, compile_error, count_of
from overlap.record.kept_samples import restored
from overlap.record.ownership import find_run_file, resolve
from overlap.record.row_shapes import unpacked_ints
from overlap.record.run_files import RunFile
from overlap.record.sample_file import SampleFile, SampleHead
from overlap.record.timing import mean
from overlap.run.run_inputs import RunInputs
from sandbox.pool.quotas import cores

FIELD = "--answers"
MASKED = "not judged"
SHOWN = 20
"""Samples of a comparison that are listed."""
PromptKey = tuple[Split, str]
"""Split and id of a prompt."""


class Outcome(NamedTuple):
    """Reward and verdict of a judgement; ``why`` it is not the best one."""

    reward: float | None
    verdict: str
    """"" without one."""
    why: str = ""

    def __str__(self) -> str:
        return MASKED if self.reward is None else f"{self.verdict or 'no verdict'} {self.reward:g}"

    @property
    def name(self) -> str:
        """The verdict; of a reward without one, the reward, or its range where it is neither 0 nor 1: so a table of
        rewards that vary from sample to sample can be read.
        """
        if self.reward is None or self.verdict:
            return self.verdict if self.reward is not None else MASKED
        if self.reward in (0, 1):
            return f"reward {self.reward:g}"
        return "reward < 0" if self.reward < 0 else "reward > 1" if self.reward > 1 else "reward 0..1"

    @classmethod
    def of(cls, scored: Scored) -> Outcome:
        """The outcome of a sample, with what its first failing test or its compiler says."""
        judgement, why = scored.judgement, scored.failure
        if judgement is None:
            return cls(scored.reward, "", why)
        if not judgement.cases:
            why = why or compile_error(judgement.compile_log)
        why = why or next((case.message for case in judgement.cases if case.verdict != "AC"), "")
        return cls(scored.reward, str(judgement.verdict), why[:120])


@dataclass(frozen=True, slots=True, eq=False)
class KeptAnswer:
    """A sample as the run kept it."""

    id: str
    key: PromptKey
    step: int
    before: Outcome
    restored: Callable[[Prompt], Scored]
    """The sample as an answer to this prompt, with the reward that it had. Raises ConfigError."""


@dataclass
class ChosenAnswers:
    """The kept answers of a split, and how many others were left out, by the reason."""

    before: dict[KeptAnswer, Scored] = field(default_factory=dict)
    """Answers to prompts of today, as they were scored before."""
    judged: list[KeptAnswer] = field(default_factory=list)
    """The keys of ``before`` that have an answer."""
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, kept: KeptAnswer, scored: Scored) -> None:
        """Add an answer, to be judged unless it has none."""
        self.before[kept] = scored
        if scored.trajectory.failure or scored.trajectory.finish == "abort":
            self.left_out["it has no answer that could be judged (its episode failed, or was broken off)"] += 1
        else:
            self.judged.append(kept)


@dataclass(frozen=True, slots=True)
class ChangedAnswer:
    """A sample before and after it was judged once more."""

    kept: KeptAnswer
    after: Outcome

    @property
    def before(self) -> Outcome:
        return self.kept.before

    @property
    def changed(self) -> bool:
        """True where reward or verdict differ."""
        return self.before[:2] != self.after[:2]

    def __str__(self) -> str:
        split, problem = self.kept.key
        place = f"step {self.kept.step} {self.kept.id}" if split == "train" else f"{split} {self.kept.id}"
        return f"{place:<22} {problem:<20} {self.before} -> {self.after}   {self.after.why}".rstrip()


class KeptAnswers:
    """The answers of a run directory, or of a file with them. Raises ConfigError where there are none."""

    def __init__(self, where: str | Path) -> None:
        path = resolve(str(where))
        if not path.is_file():
            config = find_run_file(str(where), RunFile.CONFIG, field=FIELD, way_out="name a run directory")
            path = RunFile.TRAJECTORIES.of(config.parent)
            if not path.is_file():
                way_out = "has kept no samples: run.samples=all keeps all, run.samples=some those to look at"
                raise ConfigError(FIELD, str(where), way_out)
        self.path = path
        beside = RunFile.CONFIG.of(path.parent)
        self.config = beside if beside.is_file() else None
        self._at_s = time.monotonic()

    @cached_property
    def answers(self) -> tuple[KeptAnswer, ...]:
        """All of them, in their order. Raises ConfigError."""
        file = SampleFile(self.path)
        return tuple(self._answer(file, head) for head in file.heads())

    def _answer(self, file: SampleFile, head: SampleHead) -> KeptAnswer:
        values = head.values

        def answered(prompt: Prompt) -> Scored:
            row = file.row(head)
            if "restore" in row:
                return restored(row, prompt, self._at_s, FIELD, self.path)
            request, ids = Request(row["group"], row["sample"], prompt), unpacked_ints(row.get("token_ids", ""))
            answer = Trajectory(request, ids, (), row["answer"], row["finish"], (), 0.0, 0.0, turns=row["turns"])
            return Scored(answer, row["reward"], None, row["failure"], 0.0, 0.0, 0.0)

        before = Outcome(values["reward"], values["verdict"] or "", values["failure"])
        return KeptAnswer(values["id"], (values["split"], values["prompt_id"]), values["step"], before, answered)

    @cached_property
    def whole(self) -> bool:
        """True when a learner can train on the answers: answers of training have the "restore" column."""
        return self._data is not None

    @cached_property
    def _data(self) -> str | None:
        """The digest of the prompts that were answered, as the first answer of the training has it."""
        file = SampleFile(self.path)
        first = next((head for head in file.heads() if head.values["split"] == "train"), None)
        stored = file.row(first).get("restore") if first else None
        return None if stored is None else str(stored.get("data", ""))

    def chosen(self, inputs: RunInputs, split: Split | None, limit: int | None) -> ChosenAnswers:
        """The answers of a split to its first ``limit`` prompts. Raises ConfigError where none of them can be judged
        by these inputs.
        """
        now = _by_key(inputs.train, inputs.heldout)
        keys = dict.fromkeys(each.key for each in self.answers if split in (None, each.key[0]))
        wanted = set(list(keys)[:limit])
        found = ChosenAnswers()
        for each in (each for each in self.answers if each.key in wanted):
            prompt = now.get(each.key)
            if prompt is None:
                found.left_out["the data has no such problem"] += 1
            else:
                found.add(each, each.restored(prompt))
        if not found.judged:
            why = ", ".join(f"{count_of(n, 'sample')}: {reason}" for reason, n in found.left_out.most_common())
            way_out = (
                f"nothing of {self.path} can be judged by it ({why or 'no sample'}); name the data that it answered"
            )
            raise ConfigError(f"data.{split or 'train'}", getattr(inputs.cfg.data, split or "train"), way_out)
        return found


def config_for(answers: KeptAnswers, config: Path | None, overrides: Sequence[str]) -> Config:
    """The configuration by which answers are judged: the one given, or the one beside them. Raises ConfigError."""
    here = [f"verify.workers={cores()}"] if config is None else []  # the run's machine may have had more
    return load_config(config or answers.config, [*here, *overrides])


def _by_key(train: Sequence[Prompt], heldout: Sequence[Prompt]) -> dict[PromptKey, Prompt]:
    splits: tuple[tuple[Split, Sequence[Prompt]], ...] = (("train", train), ("heldout", heldout))
    return {(split, prompt.id): prompt for split, prompts in splits for prompt in prompts}


@dataclass(frozen=True)
class Comparison:
    """The answers that were judged once more, and why others were not."""

    source: Path
    answers: tuple[ChangedAnswer, ...]
    left_out: Mapping[str, int]

    @property
    def changed(self) -> list[ChangedAnswer]:
        """Answers with another reward or verdict, the largest change first."""
        some = [each for each in self.answers if each.changed]
        return sorted(some, key=lambda each: -abs((each.after.reward or 0.0) - (each.before.reward or 0.0)))

    def lines(self, limit: int = SHOWN) -> Iterator[str]:
        """A table for a person, with at most ``limit`` samples."""
        changed = self.changed
        yield f"{count_of(len(self.answers), 'sample')} of {self.source} judged again, {len(changed):,} changed"
        for why, count in sorted(self.left_out.items(), key=lambda each: -each[1]):
            yield f"not judged again: {count_of(count, 'sample')}: {why}"
        yield from ("", f"{'':<22}{'before':>10}{'after':>10}")
        for name, was, now in self.figures():
            digits = 3 if name.startswith(("mean", "solved")) else 0
            yield f"{name:<22}{was:>10.{digits}f}{now:>10.{digits}f}"
        yield from self._verdict_table()
        if changed:
            yield from ("", f"samples that changed{f' (the first {limit})' if len(changed) > limit else ''}")
        yield from (f"  {each}" for each in changed[:limit])

    def figures(self) -> list[tuple[str, float, float]]:
        """Name, before, after."""
        sides = [[each.before for each in self.answers], [each.after for each in self.answers]]
        rewards = [[one.reward for one in side if one.reward is not None] for side in sides]
        rows = {
            "mean reward": [mean(some) for some in rewards],
            "solved share": [mean([float(reward >= 1) for reward in some]) for some in rewards],
            "groups that teach": [float(self._teaching(side)) for side in sides],
            MASKED: [float(sum(one.reward is None for one in side)) for side in sides],
        }
        return [(name, was, now) for name, (was, now) in rows.items()]

    def _teaching(self, outcomes: Sequence[Outcome]) -> int:
        """Groups of the training whose rewards differ."""
        groups = dict[tuple[int, str], list[float]]()
        for each, outcome in zip(self.answers, outcomes, strict=True):
            if each.kept.key[0] == "train" and outcome.reward is not None:
                groups.setdefault((each.kept.step, each.kept.id.partition("s")[0]), []).append(outcome.reward)
        return sum(len(some) > 1 and not equal_rewards(some) for some in groups.values())

    def _verdict_table(self) -> Iterator[str]:
        moves = Counter((each.before.name, each.after.name) for each in self.answers)
        names = sorted({name for pair in moves for name in pair})
        width = max([10, *(len(name) + 2 for name in names)])
        yield from ("", f"{'before, then after':<20}" + "".join(f"{name:>{width}}" for name in names))
        for was in names:
            if any(moves[was, now] for now in names):
                yield f"{was:<20}" + "".join(f"{moves[was, now] or '.':>{width}}" for now in names)
