"""The nouns of the sandbox: problems, programs, limits, verdicts. Frozen, typed, standard library only.

    Problem × Program ──▶ judge ──▶ Judgement(CaseResult per case that ran)

Bytes and seconds are in the field names. A noun checks itself when it is made: a Problem that cannot be judged
raises InvalidProblem at once, so that "no tests" can never turn into "all tests passed".
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Literal, get_args

from sandbox.compare import parse_mode
from sandbox.errors import InvalidProblem
from sandbox.values import loads

Kind = Literal["stdio", "function", "assert"]
Isolation = Literal["auto", "A", "B", "C"]

KIB: Final = 1 << 10
MIB: Final = 1 << 20
SOURCE_BYTES_MAX: Final = 4 * MIB


class Verdict(StrEnum):
    """What a program did. Closed; values equal names."""

    AC = "AC"  # accepted
    WA = "WA"  # wrong answer
    TLE = "TLE"  # CPU-time limit, or the wall-time backstop
    MLE = "MLE"  # memory limit
    OLE = "OLE"  # output limit
    RE = "RE"  # runtime error: exit code, signal, uncaught exception, or an end before the result
    CE = "CE"  # does not compile


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
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
                raise InvalidProblem(f"limits.{item.name}={value!r}: must be a positive number")
            if not item.name.endswith("_s") and not isinstance(value, int):
                raise InvalidProblem(f"limits.{item.name}={value!r}: must be a whole number")

    @property
    def wall_limit_s(self) -> float:
        return self.wall_s if self.wall_s is not None else 3 * self.cpu_s + 2


COMPILE_LIMITS: Final = Limits(
    cpu_s=15.0,
    wall_s=40.0,
    memory_bytes=1536 * MIB,
    output_bytes=1 * MIB,
    file_bytes=96 * MIB,
    open_files=256,
)


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    stdio: `input` is stdin and `expected` is stdout. function: `input` is a JSON list of positional arguments and
    `expected` a JSON value. assert: `input` is test code of the problem's language that stands after the program (and
    brings a `main` of its own where the language needs one), and `expected` is None.
    """

    input: str
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """What is judged."""

    source: str
    language: str = "python"


@dataclass(frozen=True, slots=True)
class Problem:
    """What a program is judged by. Raises InvalidProblem when it could not tell a right program from a wrong one."""

    id: str
    kind: Kind
    cases: tuple[Case, ...]
    fn_name: str | None = None
    """function problems: "f" or "Solution.method"."""
    preamble: str = ""
    """Code that runs before the program (Python), or stands above it (compiled languages)."""
    compare: str = "tokens"
    """exact | lines | tokens | float(eps)."""
    limits: Limits = field(default_factory=Limits)
    language: str = "python"
    """assert problems: the language of the tests, and so of every program."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", tuple(self.cases))
        where = f"problem {self.id!r}"
        if self.kind not in get_args(Kind):
            raise InvalidProblem(f"{where}: kind={self.kind!r} is unknown; use one of {', '.join(get_args(Kind))}")
        if not self.cases:
            raise InvalidProblem(f"{where}: cases=() can tell nothing; give at least one case")
        parse_mode(self.compare)
        if self.kind == "function":
            _check_fn_name(where, self.fn_name)
        for index, case in enumerate(self.cases):
            _check_case(f"{where}: cases[{index}]", self.kind, case, self.language)
        if self.kind == "stdio" and not any((case.expected or "").strip() for case in self.cases):
            raise InvalidProblem(f"{where}: every expected output is blank, so an empty program would pass")

    def to_json(self) -> dict[str, Any]:
        """A plain dict; the format of `sandbox judge problem.json`."""
        return {
            "id": self.id,
            "kind": self.kind,
            "cases": [{"input": c.input, "expected": c.expected} for c in self.cases],
            "fn_name": self.fn_name,
            "preamble": self.preamble,
            "compare": self.compare,
            "limits": asdict(self.limits),
            "language": self.language,
        }

    @classmethod
    def from_json(cls, data: Any) -> Problem:
        """The inverse of `to_json`; unknown and missing keys raise InvalidProblem."""
        known = {item.name for item in fields(cls)}
        _check_keys("problem", data, known, required={"id", "kind", "cases"})
        if not isinstance(data["cases"], list):
            raise InvalidProblem("problem: cases must be a list of {input, expected}")
        for index, case in enumerate(data["cases"]):
            _check_keys(f"cases[{index}]", case, {"input", "expected"}, required={"input"})
        limits = data.get("limits") or {}
        _check_keys("limits", limits, {item.name for item in fields(Limits)}, required=set())
        rest = {key: data[key] for key in known & set(data) - {"cases", "limits"}}
        return cls(cases=tuple(Case(**case) for case in data["cases"]), limits=Limits(**limits), **rest)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case that ran. `message` is a short cause by whoever enforced it; it never holds the expected output."""

    index: int
    verdict: Verdict
    cpu_s: float
    wall_s: float
    memory_bytes: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome for one program."""

    problem_id: str
    verdict: Verdict
    """AC iff every case passed, otherwise that of the first case that failed."""
    cases: tuple[CaseResult, ...]
    """Those that ran, in order; none when the program does not compile."""
    passed: int
    total: int
    weak: bool
    """True when a case was accepted on a completion token: the program could have forged it."""
    tier: str
    """Isolation it ran under: A, B or C."""
    language: str
    toolchain: str
    compile_log: str
    queue_s: float
    run_s: float

    def to_json(self) -> dict[str, Any]:
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        data["verdict"] = self.verdict.value
        data["cases"] = [
            {**{f.name: getattr(case, f.name) for f in fields(case)}, "verdict": case.verdict.value}
            for case in self.cases
        ]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Judgement:
        cases = tuple(CaseResult(**{**case, "verdict": Verdict(case["verdict"])}) for case in data["cases"])
        return cls(**{**data, "verdict": Verdict(data["verdict"]), "cases": cases})


def _check_fn_name(where: str, fn_name: str | None) -> None:
    parts = (fn_name or "").split(".")
    if len(parts) > 2 or not all(part.isidentifier() for part in parts):
        raise InvalidProblem(f"{where}: fn_name={fn_name!r}: a function problem needs 'name' or 'Class.method'")


def _check_case(where: str, kind: str, case: Case, language: str) -> None:
    if not isinstance(case.input, str) or not isinstance(case.expected, str | None):
        raise InvalidProblem(f"{where}: input and expected must be text")
    if kind == "assert":
        if case.expected is not None:
            raise InvalidProblem(f"{where}: expected must be null in an assert problem; the asserts hold it")
        if language == "python":
            _check_asserts(where, case.input)
        elif not case.input.strip():
            raise InvalidProblem(f"{where}: input is blank, so every program would pass")
    elif case.expected is None:
        raise InvalidProblem(f"{where}: expected=null; give the expected output")
    elif kind == "function":
        if not isinstance(_parse_json(f"{where}.input", case.input), list):
            raise InvalidProblem(f"{where}: input must be a JSON list of positional arguments")
        _parse_json(f"{where}.expected", case.expected)


def _check_asserts(where: str, text: str) -> None:
    import ast

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidProblem(f"{where}: input is not Python: {error}") from error
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
        raise InvalidProblem(f"{where}: input holds no assert statement, so every program would pass")


def _parse_json(where: str, text: str) -> Any:
    try:
        return loads(text)
    except ValueError as error:
        raise InvalidProblem(f"{where}: not JSON: {error}") from error


def _check_keys(where: str, data: Any, known: set[str], required: set[str]) -> None:
    if not isinstance(data, dict):
        raise InvalidProblem(f"{where}: must be a JSON object, not {type(data).__name__}")
    if unknown := sorted(set(data) - known):
        raise InvalidProblem(f"{where}: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
    if missing := sorted(required - set(data)):
        raise InvalidProblem(f"{where}: key {missing[0]!r} is missing")
