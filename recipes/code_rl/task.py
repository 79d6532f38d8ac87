"""Code RL as a task: problems ──▶ prompts; answer ──▶ program; judgement ──▶ reward.

The reward is sparse (DeepCoder): 1 when every kept test passes, otherwise 0. Training problems keep some of their
tests, held-out problems all of them. No partial credit, nothing for format: an
answer without a program gets 0 too, without a sandbox run, because a wrong format is the policy's fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from overlap.core import LeftOut, Probe, Prompt
from overlap.rows.row import is_held_out
from overlap.rows.split_file import is_split_file
from overlap.task import Task
from recipes.code_rl import probes, prompts, splits
from recipes.code_rl.cases import CodeOptions, Judging
from recipes.code_rl.core import CodeProblem
from recipes.code_rl.data import ProblemSet, load_problems
from sandbox.core.nouns import Program, Verdict
from sandbox.rewards.calls import CONTEST_MODULES
from sandbox.rewards.extract import extract_program

if TYPE_CHECKING:
    from overlap.config.fields import Config
    from sandbox.core.nouns import Judgement
    from sandbox.core.problem import Problem

_HERE = Path(__file__).parent
PROBLEM_FILES = (_HERE / "problems" / "easy.jsonl", _HERE / "problems" / "contest.jsonl")
"""Our own problems: functions, and programs that read and print."""
SPLITS = {"smollm2-135m-instruct": _HERE / "splits" / "smollm2-135m.jsonl"}
"""Measured splits of them, by policy: what ``data.train=""`` means for it. Other policies get all of them."""


@dataclass(frozen=True, slots=True)
class CodeTask(Task):
    """Programs judged by tests. For chat policies: the answer begins inside a code fence.

    ``train`` and ``heldout`` are sources (``overlap.rows``) or split files (``splits``). "" is our own problems for
    ``train``, and what ``train`` leaves out for ``heldout``.
    """

    train: str = ""
    heldout: str = ""
    judging: Judging = field(default_factory=Judging)
    stop: tuple[str, ...] = ()
    options: ClassVar[type] = CodeOptions

    @classmethod
    def from_config(cls, cfg: Config) -> CodeTask:
        measured = SPLITS.get(cfg.model.policy.lower())
        data = cfg.data
        return cls(
            train=data.train or (str(measured) if measured and measured.is_file() else ""),
            heldout=data.heldout,
            judging=Judging.from_config(cfg, cls),
            stop=cfg.rollout.stop,
        )

    @property
    def own_limits(self) -> str:  # type: ignore[override]
        return "" if self._ours else self.judging.own_limits

    @property
    def _ours(self) -> bool:
        """True when the problems are our own, none of which is of a contest format."""
        return self.train in ("", *map(str, SPLITS.values()))

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]
        ahead = () if self._ours or self.judging.preamble == "none" else CONTEST_MODULES
        return (*self.judging.packages, *ahead)

    def problems(self, split: str) -> tuple[CodeProblem, ...]:
        """The problems of "train" or "heldout", in a fixed order. Raises ConfigError."""
        return self._split(split).problems

    def prompts(self, tokenizer: Any, split: str) -> Sequence[Prompt | LeftOut]:
        found = self._split(split)
        return [*(self.prompt(tokenizer, problem) for problem in found.problems), *found.left_out]

    def prompt(self, tokenizer: Any, problem: CodeProblem) -> Prompt:
        """The prompt of one problem."""
        return replace(prompts.prefilled(tokenizer, problem), notes=problem.notes)

    def probes(self, prompt: Prompt) -> Iterable[Probe]:
        return probes.probes(prompt.data)

    def program(self, prompt: Prompt, answer: str) -> tuple[Problem, Program] | None:
        source = self.extract(prompt, answer)
        return (prompt.data.problem, Program(source)) if source else None

    def extract(self, prompt: Prompt, answer: str) -> str:
        """The program in an answer (see ``sandbox.rewards.extract``), "" for none."""
        return extract_program(answer, prefill=prompt.prefill, stop=self.stop)

    def reward(self, prompt: Prompt, answer: str, judgement: Judgement | None) -> float:
        return 1.0 if judgement is not None and judgement.verdict is Verdict.AC else 0.0

    def _split(self, split: str) -> ProblemSet:
        """Return one split. The other one, which is read with it, is kept until it is requested."""
        key = (type(self), self.train, self.heldout, self.judging, _stamp(self.train), _stamp(self.heldout))
        kept = _OTHER.pop(key, {})
        if split not in kept:
            both = dict(zip(("train", "heldout"), self._both(), strict=True))
            kept = {split: both.pop(split)}
            _OTHER.clear()
            _OTHER[key] = both
        return kept[split]

    def _both(self) -> tuple[ProblemSet, ProblemSet]:
        """(train, heldout); rows that gave no problem are counted with "train" where both are of one source.

        A row's own ``split`` holds, whatever the source is named for.
        """
        if self.heldout in ("", self.train) and self.train and is_split_file(self.train):
            train, held = splits.load_splits(self.train, ("train", "heldout"), self.judging, "data.train")
        elif self.heldout:
            train = splits.only(self._load("train", self.train, "data.train", self.judging), "train", "data.train")
            whole = replace(self.judging, tests_per_problem=0)  # figures of other tests compare with none
            held = self._load("heldout", self.heldout, "data.heldout", whole)
            held = splits.only(held, "heldout", "data.heldout")
        else:
            both = self._load("train", self.train, "data.train", replace(self.judging, evaluated=_maybe_held_out))
            train_problems, held_problems = splits.divide(both.problems, self.judging, "data.train")
            return ProblemSet(both.source, train_problems, both.left_out), ProblemSet(both.source, held_problems)
        splits.refuse_overlap(train.problems, held.problems)
        return train, held

    def _load(self, split: str, source: str, field: str, judging: Judging) -> ProblemSet:
        if source and is_split_file(source):
            return splits.load_splits(source, (split,), judging, field)[0]
        if source:
            return load_problems(source, judging, field)
        files = [load_problems(str(path), judging, field) for path in PROBLEM_FILES]
        return ProblemSet("", tuple(p for f in files for p in f.problems), tuple(r for f in files for r in f.left_out))


_OTHER: dict[tuple[object, ...], dict[str, ProblemSet]] = {}
"""The splits of the sources that were read last that no caller has requested yet."""


def _maybe_held_out(id: str, split: object) -> bool:
    """Return whether a row may be held out: for an unmarked row among marked ones it is known when all are read."""
    return is_held_out(id) if split in (None, "") else split != "train"


def _stamp(source: str) -> tuple[int, int] | None:
    """Another one when the file was changed; None for what is no file."""
    try:
        found = Path(source).expanduser().stat()
    except (OSError, ValueError, RuntimeError):
        return None
    return found.st_mtime_ns, found.st_size


class ReasoningCodeTask(CodeTask):
    """Code task for policies that think before they answer (DeepSeek-R1 distillates): free turn, program after it."""

    __slots__ = ()

    def prompt(self, tokenizer: Any, problem: CodeProblem) -> Prompt:
        return replace(prompts.reasoning(tokenizer, problem), notes=problem.notes)

    def extract(self, prompt: Prompt, answer: str) -> str:
        return extract_program(answer, stop=self.stop, thinks=True)
