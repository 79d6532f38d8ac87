"""From the tests of a row to a sandbox Problem: sampling, and where an unjudgeable row becomes an Unusable."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field

from overlap.config.fields import Config
from overlap.config.rules import config_section
from overlap.rows.row import SourceRow
from overlap.task import Task, task_options
from recipes.code_rl.contradictions import contradiction
from recipes.code_rl.core import CONTRADICTORY, LANGUAGE, PACKAGE, UNJUDGEABLE
from recipes.code_rl.row_limits import memory_limit_bytes, time_limit_s
from sandbox.core.nouns import MIB, Case, Limits
from sandbox.core.problem import Kind, Problem
from sandbox.errors import InvalidProblem
from sandbox.rewards.calls import CONTEST_PREAMBLE

INCOMPLETE: Final = "official tests missing"
_MEMORY_LEAST: Final = 64 * MIB
"""Less is too little for Python and what graders import, whatever a contest in C++ gives."""
CONTEST_COMPARE: Final = "float(1e-6)"
"""Contests accept numbers that are this close where the expected one is written as a float; integers are exact."""


@config_section
class CodeOptions:
    """``data.options`` of code tasks."""

    tests_per_problem: int = Field(15, ge=1)
    """At most this many tests of a problem are run in training, those with the longest inputs (DeepCoder). Held-out
    problems are judged by all of their tests, as published figures are."""
    preamble: Literal["contest", "none"] = "contest"
    """"contest": programs for contest formats find the imports that public graders put in front; "none": nothing."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs and tests may import, such as numpy; each makes runs slower."""
    time_factor: float = Field(5.0, gt=0)
    """Factor on a contest's own time limit for Python; where there is none, ``verify.cpu_s`` is the limit."""
    cpu_s_most: float = Field(30.0, gt=0)
    """Bound on the CPU time per test that a row's own limit may come to, s."""
    memory_mib_most: int = Field(1024, ge=64)
    """Bound on the memory that a row's own limit may come to, MiB."""
    incomplete_tests: Literal["leave_out", "keep"] = "leave_out"
    """Use or leave out problems of which the set says that some of the official tests are missing."""


@dataclass(frozen=True, slots=True)
class Judging:
    """Settings by which the problems of a source are judged."""

    tests_per_problem: int = 15
    """At most this many tests are kept, those with the longest inputs (DeepCoder); 0: all."""
    cpu_s: float = 4.0
    """CPU time per test, s."""
    preamble: Literal["contest", "none"] = "contest"
    """"contest": programs for contest formats get ``CONTEST_PREAMBLE``."""
    packages: tuple[str, ...] = ()
    """Installed packages that programs and tests may import."""
    time_factor: float = 5.0
    """Factor on a contest's own time limit for Python."""
    cpu_s_most: float = 30.0
    """Bound on ``cpu_s`` by a row's own limit, s."""
    memory_most: int = 1024 * MIB
    """Bound on memory by a row's own limit, bytes."""
    incomplete: bool = False
    """Use problems of whose official tests some are missing."""
    evaluated: Callable[[str, object], bool] | None = None
    """By id and the row's own ``split``: problems that are evaluated on, not trained on, keep all of their tests."""

    @classmethod
    def from_config(cls, cfg: Config, task: type[Task]) -> Judging:
        """As the fields of a run say, whose ``data.options`` are those of ``task``."""
        options: CodeOptions = task_options(cfg, task)
        return cls(
            options.tests_per_problem, cfg.verify.cpu_s, options.preamble, options.packages, options.time_factor,
            options.cpu_s_most, options.memory_mib_most * MIB, options.incomplete_tests == "keep",
        )  # fmt: skip

    @property
    def contest_preamble(self) -> str:
        """Source that runs before a program for a contest problem."""
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
        """Return the sandbox problem. Raises Unusable where it could not distinguish right programs from wrong ones."""
        whole = self.evaluated is not None and self.evaluated(id, row.values.get("split"))
        if what := contradiction(kind, cases, more.get("compare", "tokens")):
            raise row.fault(what, "its tests want two results of this", CONTRADICTORY)
        cases = cases if kind == "assert" else distinct(cases)
        kept = tuple(cases) if whole else self.sampled(cases)
        more.setdefault("limits", Limits(cpu_s=self.cpu_s))
        try:
            return Problem(id, kind, kept, fn_name=fn_name, preamble=preamble, **more)
        except InvalidProblem as error:
            raise row.fault(id, f"cannot be judged: {error}") from error

    def contest(
        self, row: SourceRow, id: str, kind: Kind, cases: Sequence[Case], fn_name: str | None = None, **more: Any
    ) -> Problem:
        """The sandbox problem of a contest: with the graders' imports, numbers compared as contests do, and the row's
        own limits.
        """
        if row.values.get("official_tests_complete") is False:
            if not self.incomplete:
                way_out = "data.options.incomplete_tests=keep uses it"
                raise row.fault("official_tests_complete=false", way_out, INCOMPLETE, by_choice=True)
            row.notes.append(f"with {INCOMPLETE}")
        more = {"compare": CONTEST_COMPARE, "limits": self.limits(row), **more}
        return self.problem(row, id, kind, cases, fn_name, self.contest_preamble, **more)

    @property
    def own_limits(self) -> str:
        """Text of the plan on how the limits that rows name are applied."""
        time = f"where a row names a time limit, that x {self.time_factor:g} instead, up to {self.cpu_s_most:g} s"
        return f"{time}; a memory limit of a row up to {self.memory_most >> 20} MiB"

    def limits(self, row: SourceRow) -> Limits:
        """The limits that a row of a contest names, within the bounds; ``cpu_s`` where it names no time."""
        asked = time_limit_s(row)
        cpu_s = self.cpu_s if asked is None else asked * self.time_factor
        if asked is not None and cpu_s > self.cpu_s_most:
            cpu_s = self.cpu_s_most
            row.notes.append(f"with a time limit that is cut to {cpu_s:g} s (data.options.cpu_s_most)")
        if (memory := memory_limit_bytes(row)) is None:
            return Limits(cpu_s=cpu_s)
        if memory > self.memory_most:
            row.notes.append(
                f"with a memory limit that is cut to {self.memory_most >> 20} MiB (data.options.memory_mib_most)"
            )
        return Limits(cpu_s=cpu_s, memory_bytes=max(min(memory, self.memory_most), _MEMORY_LEAST))

    def sampled(self, cases: Sequence[Case]) -> tuple[Case, ...]:
        """The cases that are judged by in training."""
        return longest(cases, self.tests_per_problem) if self.tests_per_problem else tuple(cases)

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
