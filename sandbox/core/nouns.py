"""Data types of the sandbox: problems, programs, limits, verdicts. Frozen, typed, standard library only.

    Problem × Program ──▶ judge ──▶ Judgement(CaseResult per case that ran)

Units are in the field names. What cannot be right raises on construction; a Problem is in `problem.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import islice
from typing import Any, Final, Literal

from sandbox.core.checks import check_files, check_pairs, check_texts, quoted, wrong_type
from sandbox.core.excerpt import Excerpt
from sandbox.errors import InvalidProblem, InvalidProgram, WrongType

Isolation = Literal["auto", "A", "B", "C"]

MIB: Final = 1 << 20
SOURCE_BYTES_MAX: Final = 4 * MIB
SECONDS_MAX: Final = 1_000_000
BYTES_MAX: Final = 1 << 44
COUNT_MAX: Final = 1 << 20
FAILURES_SHOWN_MAX: Final = 20


def freeze(noun: object, *names: str) -> None:
    """Replace lists, which come from JSON, by tuples."""
    for name in names:
        value = getattr(noun, name)
        if isinstance(value, list) or (isinstance(value, tuple) and value):
            frozen = tuple(tuple(item) if isinstance(item, list) else item for item in value)
            object.__setattr__(noun, name, frozen)


class Verdict(StrEnum):
    """Outcome of judging a program. A closed set; values equal names."""

    AC = "AC"  # accepted
    WA = "WA"  # wrong answer
    TLE = "TLE"  # CPU-time limit, or the wall-time backstop
    MLE = "MLE"  # memory limit
    OLE = "OLE"  # output limit
    RE = "RE"  # runtime error: exit code, signal, uncaught exception, or an end before the result
    CE = "CE"  # does not compile
    SEC = "SEC"  # tried what no judged program may do


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources that one run of a program may use."""

    cpu_s: float = 4.0
    """CPU seconds of all its processes together; the limit that decides."""
    wall_s: float | None = None
    """Wall seconds, the backstop; None means 3 * cpu_s + 2."""
    memory_bytes: int = 512 * MIB
    """Resident bytes of all its processes together."""
    output_bytes: int = 16 * MIB
    """Bytes on stdout, on stderr and in a function's result, each."""
    processes: int = 64
    """Processes and threads alive at once."""
    open_files: int = 64
    """File descriptors per process."""
    file_bytes: int | None = None
    """Bytes of the largest file; None means 64 MiB, or output_bytes where those are more: the kernel has one limit for
    files and outputs. The private work directory holds 96 MiB in all."""
    stack_bytes: int = 256 * MIB
    """Bytes of the main thread's stack (native programs)."""

    def __post_init__(self) -> None:
        for item in fields(self):
            name, value = f"limits.{item.name}", getattr(self, item.name)
            if value is None and item.name in ("wall_s", "file_bytes"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise WrongType(f"{name}={quoted(value)}: must be a positive number, not {type(value).__name__}")
            most = SECONDS_MAX if item.name.endswith("_s") else BYTES_MAX if item.name.endswith("_bytes") else COUNT_MAX
            if not 0 < value <= most:
                raise InvalidProblem(f"{name}={quoted(value)}: must be a positive number, at most {most}")
            if not item.name.endswith("_s") and not isinstance(value, int):
                raise WrongType(f"{name}={value!r}: must be a whole number, not {type(value).__name__}")

        if self.file_bytes is not None and self.file_bytes < self.output_bytes:
            raise InvalidProblem(
                f"limits.file_bytes={self.file_bytes}: is below output_bytes={self.output_bytes}, and the kernel has "
                "one limit for both; lower output_bytes too, or leave file_bytes out"
            )

    @property
    def file_limit_bytes(self) -> int:
        return self.file_bytes if self.file_bytes is not None else max(64 * MIB, self.output_bytes)

    @property
    def wall_limit_s(self) -> float:
        return self.wall_s if self.wall_s is not None else 3 * self.cpu_s + 2


COMPILE_LIMITS: Final = Limits(
    cpu_s=15.0, wall_s=40.0, memory_bytes=1536 * MIB, output_bytes=1 * MIB, file_bytes=96 * MIB, open_files=256
)

REFEREE_LIMITS: Final = Limits(cpu_s=30.0, wall_s=120.0, memory_bytes=1024 * MIB, output_bytes=64 * MIB)
"""Limits of one run of a checker or an interactor."""


_OPTIONAL_TEXTS: Final = {
    "expected": "text (of a function problem: a JSON value) or None",
    "group": "the name of a subtask, or None",
    "compare": "a mode of comparison as text, or None",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    stdio: `input` is stdin and `expected` is stdout. function: `input` is a JSON list of positional arguments (or, for
    programs in Python, a Python literal of one, such as [{1: 2}]) and `expected` a JSON value. assert: `input` is test
    code of the problem's language that follows the program (and brings a `main` of its own where the language
    needs one), and `expected` is None.
    interactive, and stdio with a checker: `expected` is the answer file of the referee, and may be None.
    """

    input: str
    expected: str | None = None
    group: str | None = None
    """The subtask that this case belongs to. Without one, a case counts for the verdict and earns no points."""
    arguments: tuple[str, ...] = ()
    """stdio and interactive: the program's command line."""
    files: tuple[tuple[str, str], ...] = ()
    """stdio and interactive: names and texts of files in the program's work directory."""
    compare: str | None = None
    """stdio: instead of the problem's mode."""
    referee_arguments: tuple[str, ...] = ()
    """Arguments of the checker or the interactor, after those of its convention."""

    def __post_init__(self) -> None:
        freeze(self, "arguments", "files", "referee_arguments")
        check_texts("case", self, "input", form="text (of a function problem: a JSON list of its arguments)")
        for name, form in _OPTIONAL_TEXTS.items():
            if getattr(self, name) is not None:
                check_texts("case", self, name, form=form)
        for name in ("arguments", "referee_arguments"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
                raise wrong_type("case", name, value, "a list of texts")
        check_pairs("case", self.files)

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict without the fields that have their default, except input, expected and group."""
        plain = {"input": self.input, "expected": self.expected, "group": self.group}
        return plain | {
            item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default
        }


@dataclass(frozen=True, slots=True)
class Subtask:
    """Points for passing every case of a group."""

    name: str
    points: float


@dataclass(frozen=True, slots=True)
class Program:
    """A program: one source, or several files.

    Raises InvalidProgram where the files cannot be in one directory, WrongType for a field that is no text.
    """

    source: str = ""
    language: str = "python"
    files: tuple[tuple[str, str], ...] = ()
    """Instead of `source`: pairs of name and text. All files exist when the program is compiled and when it runs."""
    entry: str = ""
    """The file (Java: class) where the program starts. By default the language's rule (languages/layout.py)."""

    def __post_init__(self) -> None:
        freeze(self, "files")
        check_texts("program", self, "source", "language", "entry")
        if self.source and self.files:
            raise InvalidProgram("program: source and files are given; put the source among the files")
        if self.files:
            check_files("program", self.files, InvalidProgram)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Result of one case that ran. `message` is a short cause, and never holds the expected output."""

    index: int
    verdict: Verdict
    cpu_s: float
    wall_s: float
    memory_bytes: int
    message: str = ""
    feedback: tuple[tuple[str, str], ...] = ()
    """Names and texts of the files that a checker or interactor (convention kattis) left in its feedback directory.
    They are for the problem's author: they may hold the expected output."""
    got: Excerpt | None = None
    """Output in the first 20 cases that failed: what it printed, the value that the program's function returned (as
    JSON, or its repr where it has no JSON form), the values that the calls of the failed assert gave, what it sent the
    interactor. Of a run that a limit ended, what it had printed, at most the first 64 KiB. None where nothing is known.
    The program alone decides what is written here."""
    stderr: Excerpt | None = None
    """Content of stderr in the same cases, if any; of more than 64 KiB the two ends."""
    exit_code: int | None = None
    """None where the program was ended, by a signal or by the sandbox, and where our harness caught its error."""
    signal: int | None = None
    """The signal that ended the program, unless the sandbox sent it."""

    def __post_init__(self) -> None:
        freeze(self, "feedback")

    def to_json(self) -> dict[str, Any]:
        """A plain dict; what the program said and how it ended only where that is known."""
        data = {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}
        for name in _EXCERPTS & data.keys():
            data[name] = data[name].to_json()
        return data | {"verdict": self.verdict.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseResult:
        """Raises KeyError, TypeError and ValueError for anything that `to_json` does not write."""
        excerpts = {name: Excerpt.from_json(data[name]) for name in _EXCERPTS & data.keys()}
        return cls(**{**data, **excerpts, "verdict": Verdict(data["verdict"])})


def drop_later_excerpts(cases: Sequence[CaseResult]) -> tuple[CaseResult, ...]:
    """The same results with the excerpts of the first failures only: all of them could make a judgement megabytes."""
    failed = (index for index, case in enumerate(cases) if case.got is not None or case.stderr is not None)
    later = set(islice(failed, FAILURES_SHOWN_MAX, None))
    return tuple(replace(case, got=None, stderr=None) if n in later else case for n, case in enumerate(cases))


_EXCERPTS: Final = frozenset({"got", "stderr"})


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result for one program."""

    problem_id: str
    verdict: Verdict
    """AC iff every case passed, otherwise that of the first case that failed."""
    cases: tuple[CaseResult, ...]
    """Results of the cases that ran, in order; empty when the program does not compile. Judging stops at the first
    failure unless it was asked for all cases (``stop_at_first_failure=False``)."""
    passed: int
    """Cases that passed. Those after an early stop did not run, and do not count as passed."""
    total: int
    weak: bool
    """True when a case was accepted on a completion token: the program could have forged it."""
    tier: str
    """The isolation tier: A, B or C."""
    language: str
    toolchain: str
    compile_log: str
    queue_s: float
    run_s: float
    earned: float | None = None
    """0 to 1: points of the subtasks whose cases all passed, as a share of all points; None without subtasks."""
    node: str = ""
    """The machine that judged, in a cluster; otherwise ""."""
    compile_cause: str = ""
    """Cause that ended the compiler other than itself, as in ``ProgramRun.cause``."""

    @property
    def share(self) -> float:
        """The share of cases that passed, from 0 to 1; 0 for a program that does not compile.

        Raises ValueError where judging stopped at a failure: the results of the other cases are not known.
        """
        if not self._ran_all:
            raise ValueError(
                f"judging stopped after {len(self.cases)} of {self.total} cases, so the share that passes is not "
                "known: judge with stop_at_first_failure=False (in a Task: all_cases = True)"
            )
        return self.passed / self.total if self.total else 0.0

    @property
    def score(self) -> float:
        """The score from 0 to 1: by points where there are subtasks, otherwise ``share``. Raises ValueError as that
        does.
        """
        return self.share if self.earned is None else self.earned

    @property
    def _ran_all(self) -> bool:
        return len(self.cases) == self.total or self.verdict is Verdict.CE

    def to_json(self) -> dict[str, Any]:
        """A plain dict; the score, None where it is not known; ``node`` and ``compile_cause`` where there is one."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("node", "compile_cause"):
            if not data[name]:
                del data[name]
        data["verdict"] = self.verdict.value
        data["cases"] = [case.to_json() for case in self.cases]
        return {**data, "score": self.score if self._ran_all or self.earned is not None else None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Judgement:
        cases = tuple(map(CaseResult.from_json, data["cases"]))
        rest = {key: value for key, value in data.items() if key != "score"}
        return cls(**{**rest, "verdict": Verdict(data["verdict"]), "cases": cases})
