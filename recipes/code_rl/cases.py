"""From the tests of a row to a sandbox Problem: sampling, and where an unjudgeable row becomes an Unusable."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from overlap.config import Config, at_least
from overlap.rows import SourceRow
from overlap.task import Task, task_options
from recipes.code_rl.core import LANGUAGE, PACKAGE, UNJUDGEABLE
from sandbox.core import Case, Kind, Limits, Problem
from sandbox.errors import InvalidProblem
from sandbox.rewards import CONTEST_PREAMBLE

CONTEST_COMPARE: Final = "float(1e-6)"
"""Contests accept numbers that are this close where the expected one is written as a float; integers are exact."""


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """``data.options`` of code tasks."""

    tests_per_problem: int = at_least(1, 15)
    """At most this many tests of a problem are run in training, those with the longest inputs (DeepCoder). Held-out
    problems are judged by all of their tests, as published figures are."""
    preamble: Literal["contest", "none"] = "contest"
    """"contest": programs for contest formats find the imports that public graders put in front; "none": nothing."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs and tests may import, such as numpy; each makes runs slower."""


@dataclass(frozen=True, slots=True)
class Judging:
    """How the problems of a source are judged."""

    tests_per_problem: int = 15
    """At most this many tests are kept, those with the longest inputs (DeepCoder); 0: all."""
    cpu_s: float = 4.0
    """CPU time per test, s."""
    preamble: Literal["contest", "none"] = "contest"
    """Whether programs for contest formats get ``CONTEST_PREAMBLE``."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs and tests may import."""
    evaluated: Callable[[str], bool] | None = None
    """By id: problems that are evaluated on, not trained on, keep all of their tests."""

    @classmethod
    def from_config(cls, cfg: Config, task: type[Task]) -> Judging:
        """As the fields of a run say, whose ``data.options`` are those of ``task``."""
        options: CodeOptions = task_options(cfg, task)
        return cls(options.tests_per_problem, cfg.verify.cpu_s, options.preamble, options.packages)

    @property
    def contest_preamble(self) -> str:
        """What runs before a program for a contest problem."""
        if self.preamble == "none":
            return ""
        return CONTEST_PREAMBLE + ("import numpy, numpy as np\n" if "numpy" in self.packages else "")

    def problem(
        self,
        row: SourceRow,
        id: str,
        kind: Kind,
        cases: Sequence[Case],
        fn_name: str | None = None,
        preamble: str = "",
        **more: Any,
    ) -> Problem:
        """The sandbox problem; an Unusable where it could not tell a right program from a wrong one."""
        whole = not self.tests_per_problem or (self.evaluated is not None and self.evaluated(id))
        kept = tuple(cases) if whole else longest(cases, self.tests_per_problem)
        limits = Limits(cpu_s=self.cpu_s)
        try:
            return Problem(id, kind, kept, fn_name=fn_name, preamble=preamble, limits=limits, **more)
        except InvalidProblem as error:
            raise row.fault(id, f"cannot be judged: {error}") from error

    def contest(
        self, row: SourceRow, id: str, kind: Kind, cases: Sequence[Case], fn_name: str | None = None, **more: Any
    ) -> Problem:
        """The sandbox problem of a contest: with the graders' imports, and numbers compared as contests do."""
        return self.problem(
            row, id, kind, cases, fn_name, self.contest_preamble, **{"compare": CONTEST_COMPARE, **more}
        )

    def check_imports(self, row: SourceRow, *texts: str) -> None:
        """An Unusable where test code imports what programs will not have."""
        for text in texts:
            if missing := sorted(_imported(text) - sys.stdlib_module_names - {"solution", *self.packages}):
                raise row.fault(
                    missing[0], f"its tests import this package; give data.options.packages=[{missing[0]}]", PACKAGE
                )


def _imported(text: str) -> set[str]:
    """Top-level names of the modules that a Python text imports anywhere; none for a text that is no Python."""
    if "import" not in text:
        return set()
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names if name}


def longest(cases: Sequence[Case], most: int) -> tuple[Case, ...]:
    """The ``most`` cases with the longest inputs, in their first order. Ties go to the earlier case."""
    ranked = sorted(range(len(cases)), key=lambda i: (-len(str(cases[i].input)), i))[:most]
    return tuple(cases[i] for i in sorted(ranked))


def distinct(cases: Iterable[Case]) -> list[Case]:
    """Without those whose input came before: a set's examples are often among its tests."""
    return list({case.input: case for case in reversed(list(cases))}.values())[::-1]


def refuse_other_languages(row: SourceRow, language: str) -> None:
    """An Unusable for a row whose programs are of another language than Python."""
    if language.lower() not in ("python", "python3", "py"):
        raise row.fault(language, "programs are judged in Python here", LANGUAGE)


def refuse_files(row: SourceRow, *names: str) -> None:
    """An Unusable for a problem whose programs read or write files instead of the standard streams."""
    for name in names:
        if row.text(name, default="").strip() not in ("", "stdin", "stdout", "stdio", "standard input"):
            raise row.fault(row.values[name], f"{name}: programs must use standard input and output", UNJUDGEABLE)
