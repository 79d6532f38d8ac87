"""The sets that a policy is evaluated on: published ones by name, or any source of problems, each judged by all tests.

    RequestedSet(name, source) ──▶ rows (in the window) ──▶ EvaluationSet ──▶ EvaluationTask ──▶ prompts "name/id"

A window of contest dates is for rows that have them (LiveCodeBench): problems from before a policy's data was gathered
measure what it remembers. A set without dates is evaluated whole.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overlap.core import LeftOut, Prompt
from overlap.core.errors import ConfigError
from overlap.rows.row import SourceRow
from overlap.rows.split_file import is_split_file
from overlap.task import Task, load_task
from recipes.code_rl.cases import Judging
from recipes.code_rl.data import ProblemSet, load_problems
from recipes.code_rl.task import CodeTask
from sandbox.rewards.calls import CONTEST_MODULES

if TYPE_CHECKING:
    from overlap.config.fields import Config
    from sandbox.core.nouns import Judgement, Program
    from sandbox.core.problem import Problem

HELD_OUT: Final = "heldout"
"""The held-out problems of the configuration: without ``data.heldout``, the ones that the recipe ships."""
_LCB: Final = "livecodebench/code_generation_lite"
_DEEPCODER: Final = "agentica-org/DeepCoder-Preview-Dataset"
_DATE = "contest_date"


@dataclass(frozen=True, slots=True)
class ContestWindow:
    """Contest dates from ``first`` to ``last``, both included; None is open."""

    first: date | None = None
    last: date | None = None

    def holds(self, row: SourceRow) -> bool:
        """Return whether the row is in the window. Rows without dates are.

        Raises Unusable for a date that cannot be read.
        """
        if (self.first is None and self.last is None) or _DATE not in row.values:
            return True
        day = _day(row)
        return (self.first is None or self.first <= day) and (self.last is None or day <= self.last)

    def __str__(self) -> str:
        return f"{self.first or ''}..{self.last or ''}" if self.first or self.last else ""


def _day(row: SourceRow) -> date:
    value = row.values[_DATE]
    if isinstance(value, datetime):
        return value.date()
    try:
        return date.fromisoformat(str(value)[:10])
    except ValueError as error:
        raise row.fault(value, f"{_DATE} must begin with YYYY-MM-DD, for a window of dates was asked for") from error


@dataclass(frozen=True, slots=True)
class Known:
    """A published set."""

    source: str
    window: ContestWindow = ContestWindow()
    packages: tuple[str, ...] = ()
    """Packages that its tests import."""


KNOWN: Mapping[str, Known] = {
    "livecodebench": Known(
        f"{_LCB}:{'+'.join(['test.jsonl', *(f'test{n}.jsonl' for n in range(2, 7))])}",
        ContestWindow(date(2024, 8, 1), date(2025, 2, 1)),
    ),
    "lcbv5": Known(f"{_DEEPCODER}:lcbv5:test"),
    "codeforces": Known(f"{_DEEPCODER}:codeforces:test"),
    "humaneval+": Known("evalplus/humanevalplus::test", packages=("numpy",)),
    "mbpp+": Known("evalplus/mbppplus::test", packages=("numpy",)),
}
"""By name. The window of ``livecodebench`` is DeepCoder's; ``lcbv5`` and ``codeforces`` are the sets as its authors
published them, the former of that same window.
"""
PUBLISHED: Final = ("livecodebench", "codeforces", "humaneval+", "mbpp+")
"""The sets on which DeepCoder's authors report results."""


@dataclass(frozen=True, slots=True)
class RequestedSet:
    """A requested set; ``source`` is "" for the held-out problems of the configuration."""

    name: str
    source: str
    window: ContestWindow = ContestWindow()
    packages: tuple[str, ...] = ()


def requested_sets(words: Sequence[str], window: ContestWindow, default: Sequence[str]) -> tuple[RequestedSet, ...]:
    """The sets of ``--set`` (name, name=source, or source), or else those called ``default``. Raises ConfigError.

    A ``window`` with an end replaces a set's own.
    """
    found: dict[str, RequestedSet] = {}
    for word in words or default:
        name, equals, source = word.partition("=")
        known = KNOWN.get(name)
        if not equals and known is None and name != HELD_OUT:
            check_source("--set", word, (*KNOWN, HELD_OUT))
            name, source = _stem(word), word
        if not name or (equals and not source):
            raise ConfigError("--set", word, f"write NAME=SOURCE, or one of {', '.join((*KNOWN, HELD_OUT))}")
        if name in found:
            raise ConfigError("--set", word, f"{name} was named before: give each set another name")
        known = known or Known("")
        found[name] = RequestedSet(
            name, source or known.source, window if str(window) else known.window, known.packages
        )
    return tuple(found.values())


def check_source(flag: str, word: str, names: Sequence[str]) -> None:
    """Raise ConfigError for a word that can be no source: no path, no hub id, and nothing of that name is here. Sets
    are known by ``names``.
    """
    if word and "/" not in word and not Path(word).suffix and not Path(word).exists():
        near = difflib.get_close_matches(word.lower(), names, n=1)
        hint = f"did you mean {near[0]}? K" if near else "k"
        raise ConfigError(flag, word, f"no such set and no such file; {hint}nown are {', '.join(names)}")


def _stem(source: str) -> str:
    """A name for a source: the last part of its path, without what tells its format."""
    last = source.rstrip("/").rpartition("/")[2]
    stem = re.sub(r"(\.(jsonl?|parquet|ndjson))?(\.gz)?$", "", last)
    return re.sub(r"[^\w.+-]+", "-", stem).strip("-")


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """A set whose problems were read."""

    asked: RequestedSet
    problems: ProblemSet
    outside: int = 0
    """Rows outside the window."""
    dated: bool = False


def read_set(asked: RequestedSet, cfg: Config) -> EvaluationSet:
    """Read a set; its problems keep all of their tests. Raises ConfigError."""
    if not asked.source and cfg.data.heldout and not is_split_file(cfg.data.heldout):
        asked = replace(asked, source=cfg.data.heldout)
    if not asked.source:
        return EvaluationSet(asked, ProblemSet("", code_task(cfg).problems("heldout")))
    judging = Judging.from_config(cfg, CodeTask)
    packages = tuple(dict.fromkeys((*judging.packages, *asked.packages)))
    judging = replace(judging, tests_per_problem=0, packages=packages)
    outside, dated = 0, False

    def wanted(row: SourceRow) -> bool:
        nonlocal outside, dated
        dated = dated or _DATE in row.values
        inside = asked.window.holds(row)
        outside += not inside
        return inside

    field = f"--set {asked.name}"
    try:
        found = load_problems(asked.source, judging, field, wanted=wanted)
    except ConfigError as error:
        if outside and error.field == field and error.value == asked.source:
            raise ConfigError(field, str(asked.window), f"{outside} rows, none in this window; widen it") from error
        known = KNOWN.get(asked.name)
        if known is not None and known.source == asked.source:
            own = f"a copy of your own is named --set {asked.name}=FILE"
            raise type(error)(error.field, error.value, f"{error.way_out}; {own}") from error
        raise
    return EvaluationSet(asked, found, outside, dated)


def code_task(cfg: Config) -> CodeTask:
    """The task of a configuration, which says how problems are asked. Raises ConfigError where it is another task."""
    task: object = load_task(cfg.data.task, cfg)
    if not isinstance(task, CodeTask):
        raise ConfigError("data.task", cfg.data.task, "is no CodeTask, and these sets are problems of code")
    return task


class EvaluationTask(Task):
    """Sets of problems, asked and read out by a code task. A prompt's id begins with the name of its set."""

    options = CodeTask.options

    def __init__(self, task: CodeTask, sets: Iterable[EvaluationSet], limit: int | None = None) -> None:
        self.task, self.sets, self.limit = task, tuple(sets), limit
        needed = [name for found in self.sets for name in found.asked.packages]
        contests = task.judging.preamble != "none" and any(found.asked.source for found in self.sets)
        ahead = CONTEST_MODULES if contests else ()
        self.packages = tuple(dict.fromkeys((*task.judging.packages, *needed, *ahead)))

    def of_set(self, tokenizer: Any, found: EvaluationSet) -> list[Prompt | LeftOut]:
        """The prompts of one set, at most ``limit``, and the rows of it that give none."""
        problems = found.problems.problems[: self.limit]
        prompts = [self.task.prompt(tokenizer, problem) for problem in problems]
        return [*(replace(p, id=f"{found.asked.name}/{p.id}") for p in prompts), *found.problems.left_out]

    def prompts(self, tokenizer: Any, split: str) -> list[Prompt | LeftOut]:
        """All of them are held out."""
        return [p for found in self.sets for p in self.of_set(tokenizer, found)] if split == "heldout" else []

    def program(self, prompt: Prompt, answer: str) -> tuple[Problem, Program] | None:
        return self.task.program(prompt, answer)

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float:
        return self.task.reward(prompt, answer, judgement)
