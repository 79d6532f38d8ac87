"""Answers that a run has kept, judged once more: by another task, verifier or set of tests. No engine is needed.

RUN/trajectories.jsonl ──▶ the same answers ──▶ verifier ──▶ before -> after
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

from overlap.config.fields import Config
from overlap.config.load import check_run_version, load_config
from overlap.core import Prompt, Request, Scored, Split, Trajectory
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
    """A sample that a run has kept: the small values of its row, and the sample as it was scored before."""

    values: Mapping[str, Any]
    scored: Scored

    @property
    def id(self) -> str:
        return str(self.values["id"])

    @property
    def before(self) -> Outcome:
        return Outcome(self.values["reward"], self.values["verdict"] or "", self.values["failure"])


class JudgedAgain(NamedTuple):
    """A sample and its new outcome."""

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
        row = self.kept.values
        place = f"step {row['step']} {row['id']}" if row["split"] == "train" else f"{row['split']} {row['id']}"
        return f"{place:<22} {row['prompt_id']:<20} {self.before} -> {self.after}   {self.after.why}".rstrip()


@dataclass
class ChosenAnswers:
    """Kept answers to prompts of today: ``all`` of them, those to be ``judged``, how many cannot be by reason."""

    all: list[KeptAnswer] = field(default_factory=list)
    judged: list[KeptAnswer] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, answer: KeptAnswer) -> None:
        trajectory = answer.scored.trajectory
        self.all.append(answer)
        if trajectory.failure or trajectory.finish == "abort":
            self.left_out["it has no answer that could be judged (its episode failed, or was broken off)"] += 1
        else:
            self.judged.append(answer)


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
        beside = RunFile.CONFIG.of(path.parent)
        self.path, self.config, self.file = path, beside if beside.is_file() else None, SampleFile(path)
        self._at_s = time.monotonic()

    def restored(self, head: SampleHead, prompt: Prompt) -> Scored:
        """A sample as an answer to this prompt, with the reward that it had. Raises ConfigError."""
        row = self.file.row(head)
        if "restore" in row:
            return restored(row, prompt, self._at_s, FIELD, self.path)
        request, ids = Request(row["group"], row["sample"], prompt), unpacked_ints(row.get("token_ids", ""))
        answer = Trajectory(request, ids, (), row["answer"], row["finish"], (), 0.0, 0.0, turns=row["turns"])
        return Scored(answer, row["reward"], None, row["failure"], 0.0, 0.0, 0.0)

    @cached_property
    def whole(self) -> bool:
        """True when a learner can train on the answers: answers of training have the "restore" column."""
        first = next((head for head in self.file.heads() if head.values["split"] == "train"), None)
        return first is not None and self.file.row(first).get("restore") is not None

    def chosen(self, inputs: RunInputs, split: Split | None, limit: int | None) -> ChosenAnswers:
        """The answers of a split to its first ``limit`` prompts. Raises ConfigError where none of them can be judged
        by these inputs.
        """
        now = {(name, each.id): each for name in get_args(Split) for each in getattr(inputs, name)}
        keyed = [((head.values["split"], head.values["prompt_id"]), head) for head in self.file.heads()]
        wanted = set(list(dict.fromkeys(key for key, _ in keyed if split in (None, key[0])))[:limit])
        found = ChosenAnswers()
        for key, head in keyed:
            if key in wanted and key in now:
                found.add(KeptAnswer(head.values, self.restored(head, now[key])))
            elif key in wanted:
                found.left_out["the data has no such problem"] += 1
        if not found.judged:
            why = ", ".join(f"{count_of(n, 'sample')}: {reason}" for reason, n in found.left_out.most_common())
            way_out = f"nothing of {self.path} can be judged by it ({why or 'no sample'})"
            given = getattr(inputs.cfg.data, split or "train")
            raise ConfigError(f"data.{split or 'train'}", given, f"{way_out}; name the data that it answered")
        return found


def config_for(answers: KeptAnswers, config: Path | None, overrides: Sequence[str]) -> Config:
    """The configuration by which answers are judged: the one given, or the one beside them. Raises ConfigError, also
    where another version of this package wrote the latter.
    """
    of_a_run = answers.path.name == RunFile.TRAJECTORIES.filename  # beside other files is a configuration of the user's
    if config is None and answers.config is not None and of_a_run:
        check_run_version(answers.config)
    here = [f"verify.workers={cores()}"] if config is None else []  # the run's machine may have had more
    return load_config(config or answers.config, [*here, *overrides])


@dataclass(frozen=True)
class Comparison:
    """The answers that were judged once more, and why others were not."""

    source: Path
    answers: tuple[JudgedAgain, ...]
    left_out: Counter[str]

    @property
    def changed(self) -> list[JudgedAgain]:
        """Answers with another reward or verdict, the largest change first."""
        some = [each for each in self.answers if each.changed]
        return sorted(some, key=lambda each: -abs((each.after.reward or 0.0) - (each.before.reward or 0.0)))

    def lines(self) -> Iterator[str]:
        """A table for a person, with at most ``SHOWN`` samples."""
        changed = self.changed
        yield f"{count_of(len(self.answers), 'sample')} of {self.source} judged again, {len(changed):,} changed"
        for why, count in self.left_out.most_common():
            yield f"not judged again: {count_of(count, 'sample')}: {why}"
        yield from ("", f"{'':<22}{'before':>10}{'after':>10}")
        for name, (was, now) in self.figures().items():
            digits = 0 if name == MASKED else 3
            yield f"{name:<22}{was:>10.{digits}f}{now:>10.{digits}f}"
        yield ""
        for (was_name, now_name), count in Counter((a.before.name, a.after.name) for a in self.answers).most_common():
            yield f"{f'{was_name} -> {now_name}':<32}{count:>10,}"
        if changed:
            yield from ("", "samples that changed" + (f" (the first {SHOWN})" if len(changed) > SHOWN else ""))
        yield from (f"  {each}" for each in changed[:SHOWN])

    def figures(self) -> dict[str, tuple[float, float]]:
        """Name → before, after."""
        sides = [each.before for each in self.answers], [each.after for each in self.answers]
        was, now = ([one.reward for one in side if one.reward is not None] for side in sides)
        return {
            "mean reward": (mean(was), mean(now)),
            "solved share": (
                mean([float(reward >= 1) for reward in was]),
                mean([float(reward >= 1) for reward in now]),
            ),
            MASKED: (len(self.answers) - len(was), len(self.answers) - len(now)),
        }
