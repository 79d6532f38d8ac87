"""The parts of an entry of the zoo, and the problems that many entries share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sandbox.core.nouns import MIB, Case, Limits, Program
from sandbox.core.problem import Problem

ROWS: Final = 55
FAST: Final = Limits(cpu_s=0.5, wall_s=3.0, memory_bytes=256 * MIB, output_bytes=1 * MIB, processes=32)
DOUBLE: Final = Problem("double", "function", (Case("[1]", "2"), Case("[21]", "42")), fn_name="f", limits=FAST)
ASSERTS: Final = Problem("double", "assert", (Case("assert f(1) == 2\nassert f(21) == 42"),), fn_name="f", limits=FAST)
SUM: Final = Problem("sum", "stdio", (Case("3 4\n", "7"), Case("20 22\n", "42")), limits=FAST)
OPENED: Final = Problem("opened", "stdio", (Case("", "opened"),), limits=FAST)
"""Problem for attacks on the machine: they print `opened` where they succeed, and end by the refusal where not."""
HONEST_DOUBLE: Final = "def f(x):\n    return 2 * x\n"
HONEST_SUM: Final = "print(sum(map(int, input().split())))\n"


@dataclass(frozen=True, slots=True)
class Attack:
    """A hostile program, and the end that it must come to."""

    source: str
    want: str = "WA"
    """The verdicts that are right, by names."""
    cause: str = "wrong (value|output)"
    """A regular expression that the judge's message, or the compiler's log, must match: who blocked it."""
    fools: str = ""
    """Names of careless graders that pay it."""
    language: str = "python"
    harmful: bool = False
    """The program would hurt a machine that does not confine it, so `sandbox zoo` runs it only when asked to."""
    want_b: str = ""
    """The verdicts that are right in tier B, where they are others."""

    def verdicts(self, tier: str) -> list[str]:
        """Return the names of the verdicts that are right in this tier."""
        return (self.want_b if self.want_b and tier == "B" else self.want).split()


@dataclass(frozen=True, slots=True)
class Entry:
    """One way to cheat."""

    id: str
    row: int
    title: str
    mechanism: str
    """Mechanism that makes it fail here."""
    problem: Problem
    attacks: tuple[Attack, ...] = ()
    honest: tuple[Program, ...] = ()
    own_test: str = ""
    """The test that attacks our own process, for a row that no program can act out in full."""


@dataclass(frozen=True, slots=True)
class LabelledProgram:
    """A labelled program: what a reward function is checked with."""

    id: str
    problem: Problem
    program: Program
    right: bool
    hostile: bool = False
    row: dict[str, Any] | None = None
    """Columns of the data that it is of, for reward functions of other trainers."""


def python(*sources: str) -> tuple[Program, ...]:
    return tuple(Program(source) for source in sources)


def cpp(*sources: str) -> tuple[Program, ...]:
    return tuple(Program(source, "cpp") for source in sources)


def system_call(arguments: str, before: str = "") -> str:
    """A program that makes a system call, whose number is the first of `arguments`, and prints `opened` unless it
    fails; `before` is placed above the call.
    """
    return (
        f"import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n{before}if libc.syscall({arguments}) == -1:\n"
        "    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\nprint('opened')\n"
    )
