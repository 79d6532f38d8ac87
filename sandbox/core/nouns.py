"""Data types of the sandbox: problems, programs, limits, verdicts. Frozen, typed, standard library only.

    Problem × Program ──▶ judge ──▶ Judgement(CaseResult per case that ran)

Units are in the field names. A Problem that cannot be judged raises InvalidProblem on construction, so that "no tests"
can never turn into "all tests passed".
"""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from sandbox.core.checks import Convention, Kind, check_keys, check_problem, check_program, quoted
from sandbox.errors import InvalidProblem

MIB: Final = 1 << 20
SOURCE_BYTES_MAX: Final = 4 * MIB
SECONDS_MAX: Final = 1_000_000
BYTES_MAX: Final = 1 << 44
COUNT_MAX: Final = 1 << 20


def freeze(noun: object, *names: str) -> None:
    """Replace lists, which come from JSON, by tuples."""
    for name in names:
        value = getattr(noun, name)
        if isinstance(value, list) or (isinstance(value, tuple) and value):
            frozen = tuple(tuple(item) if isinstance(item, list) else item for item in value)
            object.__setattr__(noun, name, frozen)


class Verdict(StrEnum):
    """What a program did. A closed set; values equal names."""

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
    """What one run of a program may use."""

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
    file_bytes: int = 64 * MIB
    """Bytes of the largest file; the private work directory holds 96 MiB in all."""
    stack_bytes: int = 256 * MIB
    """Bytes of the main thread's stack (native programs)."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None and item.name == "wall_s":
                continue
            most = SECONDS_MAX if item.name.endswith("_s") else BYTES_MAX if item.name.endswith("_bytes") else COUNT_MAX
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                raise InvalidProblem(f"limits.{item.name}={quoted(value)}: must be a positive number, at most {most}")
            if not item.name.endswith("_s") and not isinstance(value, int):
                raise InvalidProblem(f"limits.{item.name}={value!r}: must be a whole number")

    @property
    def wall_limit_s(self) -> float:
        return self.wall_s if self.wall_s is not None else 3 * self.cpu_s + 2


COMPILE_LIMITS: Final = Limits(
    cpu_s=15.0, wall_s=40.0, memory_bytes=1536 * MIB, output_bytes=1 * MIB, file_bytes=96 * MIB, open_files=256
)

REFEREE_LIMITS: Final = Limits(cpu_s=30.0, wall_s=120.0, memory_bytes=1024 * MIB, output_bytes=64 * MIB)
"""For one run of a checker or an interactor."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    stdio: `input` is stdin and `expected` is stdout. function: `input` is a JSON list of positional arguments and
    `expected` a JSON value. assert: `input` is test code of the problem's language that stands after the program (and
    brings a `main` of its own where the language needs one), and `expected` is None.
    interactive, and stdio with a checker: `expected` is the answer file of the one who decides, and may be None.
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
    """For the checker or the interactor, after those of its convention."""

    def __post_init__(self) -> None:
        freeze(self, "arguments", "files", "referee_arguments")

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
    """A program: one source, or several files. Raises InvalidProgram where the files cannot lie in one directory."""

    source: str = ""
    language: str = "python"
    files: tuple[tuple[str, str], ...] = ()
    """Instead of `source`: pairs of name and text. All files exist when the program is compiled and when it runs."""
    entry: str = ""
    """The file (Java: class) where the program starts. By default the language's rule (languages/layout.py)."""

    def __post_init__(self) -> None:
        freeze(self, "files")
        check_program(self)


@dataclass(frozen=True, slots=True)
class Problem:
    """Test cases and how to judge by them. Raises InvalidProblem if they cannot tell right from wrong."""

    id: str
    kind: Kind
    cases: tuple[Case, ...]
    fn_name: str | None = None
    """function problems: "f" or "Solution.method"."""
    preamble: str = ""
    """Code that runs before the program (Python), or stands above it (compiled languages)."""
    compare: str = "tokens"
    """A mode of sandbox/compare/modes.py: exact, tokens, float(1e-6), kattis(...), checker and so on."""
    limits: Limits = field(default_factory=Limits)
    language: str = "python"
    """assert problems: the language of the tests and of every program."""
    checker: Program | None = None
    """compare="checker": decides by input, output and expected answer; see sandbox/judging/referee.py."""
    interactor: Program | None = None
    """interactive problems: talks to the program and decides; see sandbox/judging/interactive.py."""
    convention: Convention = "testlib"
    """How checker or interactor is called, and what its exit code means."""
    referee_limits: Limits | None = None
    """Of the checker or the interactor; None means REFEREE_LIMITS."""
    passes: int = 1
    """Maximum number of runs per case.

    With more than one, a checker or interactor (convention kattis) that accepts and writes `nextpass.in` into its
    feedback directory provides the input of the next run.
    """
    subtasks: tuple[Subtask, ...] = ()
    """Points per group of cases; without any, the score is the share of the cases that pass."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", tuple(self.cases))
        object.__setattr__(self, "subtasks", tuple(self.subtasks))
        check_problem(self)

    def to_json(self) -> dict[str, Any]:
        """A plain dict; the format of `sandbox judge problem.json`."""
        return {
            "id": self.id,
            "kind": self.kind,
            "cases": [case.to_json() for case in self.cases],
            "fn_name": self.fn_name,
            "preamble": self.preamble,
            "compare": self.compare,
            "limits": asdict(self.limits),
            "checker": asdict(self.checker) if self.checker else None,
            "interactor": asdict(self.interactor) if self.interactor else None,
            "convention": self.convention,
            "referee_limits": asdict(self.referee_limits) if self.referee_limits else None,
            "passes": self.passes,
            "subtasks": [asdict(subtask) for subtask in self.subtasks],
            "language": self.language,
        }

    @classmethod
    def from_json(cls, data: Any) -> Problem:
        """The inverse of `to_json`; unknown and missing keys raise InvalidProblem."""
        known = {item.name for item in fields(cls)}
        check_keys("problem", data, known, required={"id", "kind", "cases"})
        parts = {
            "cases": _read_list("cases", data["cases"], Case),
            "limits": _read("limits", {} if data.get("limits") is None else data["limits"], Limits),
            "checker": _read("checker", data.get("checker"), Program),
            "interactor": _read("interactor", data.get("interactor"), Program),
            "referee_limits": _read("referee_limits", data.get("referee_limits"), Limits),
            "subtasks": _read_list("subtasks", [] if data.get("subtasks") is None else data["subtasks"], Subtask),
        }
        return cls(**{**data, **parts})


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

    def __post_init__(self) -> None:
        freeze(self, "feedback")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result for one program."""

    problem_id: str
    verdict: Verdict
    """AC iff every case passed, otherwise that of the first case that failed."""
    cases: tuple[CaseResult, ...]
    """Results of the cases that ran, in order; empty when the program does not compile."""
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

    @property
    def score(self) -> float:
        """The score from 0 to 1: by points where there are subtasks, otherwise the share of cases that passed."""
        if self.earned is not None:
            return self.earned
        return self.passed / self.total if self.total else 0.0

    def to_json(self) -> dict[str, Any]:
        """A plain dict, the score included; ``node`` where there is one."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        if not self.node:
            del data["node"]
        data["verdict"] = self.verdict.value
        data["cases"] = [
            {**{f.name: getattr(case, f.name) for f in fields(case)}, "verdict": case.verdict.value}
            for case in self.cases
        ]
        return {**data, "score": self.score}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Judgement:
        cases = tuple(CaseResult(**{**case, "verdict": Verdict(case["verdict"])}) for case in data["cases"])
        rest = {key: value for key, value in data.items() if key != "score"}
        return cls(**{**rest, "verdict": Verdict(data["verdict"]), "cases": cases})


def _read(where: str, data: Any, cls: type[Any]) -> Any:
    """Build a data type from its JSON object; null stays None."""
    if data is None:
        return None
    required = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
    check_keys(where, data, {item.name for item in fields(cls)}, required)
    return cls(**data)


def _read_list(where: str, data: Any, cls: type[Any]) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise InvalidProblem(f"problem: {where} must be a list of {cls.__name__} objects")
    return tuple(_read(f"{where}[{index}]", item if item is not None else [], cls) for index, item in enumerate(data))
