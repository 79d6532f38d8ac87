"""The form of an entry in `table.py`: how programs are compiled, run and harnessed, and samples of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sandbox.core.nouns import COMPILE_LIMITS, Limits


@dataclass(frozen=True, slots=True)
class Runtime:
    """Resources that a runtime needs in addition to the program's limits."""

    threads: int = 0
    """Threads of its own, added to limits.processes."""
    open_files: int = 0
    """Descriptors of its own, added to limits.open_files."""
    stack_bytes_max: int = 1 << 40
    """The main stack is no larger: the C library reserves as much for every thread."""


@dataclass(frozen=True, slots=True)
class LanguageHarness:
    """Adaptation of a program to a kind of problem: text around it, files beside it, its own start."""

    complete: str
    """Condition for a complete run, as the end of a sentence: only then does the harness write the nonce."""
    before: str = ""
    after: str = ""
    """{test} means the case's test code; {forget} for lines that end the program's macros; {owner}, {callee},
    {called}, {types} for how C++ names and calls one. SANDBOX_TOKEN means, here and in all that this names, a name
    that no program knows: the code above the test can neither take its place nor take it away."""
    files: tuple[str, ...] = ()
    """Files of sandbox/languages/harness, beside the source when it is compiled."""
    compile: tuple[str, ...] = ()
    """Added to the language's compile argv."""
    rename_main: str = ""
    """A name that the test's `main` gets, where the harness brings its own."""
    test_file: str = ""
    """The test is in this file, not beneath the program: beside the source, or beside an interpreter's when it runs.
    Where `after` is given as well, that holds for a test that begins in a class which the program has left open."""
    run: tuple[str, ...] = ()
    """Instead of the language's run argv."""
    run_files: tuple[str, ...] = ()
    """Files of sandbox/languages/harness, beside the artefact when it runs."""


@dataclass(frozen=True, slots=True)
class KindExample:
    """Sample programs for a kind of problem besides stdio, and the case that they get."""

    case: str
    """assert: the test, which holds for what returns 2. function: arguments of `f`, which returns 2 as well."""
    right: str
    wrong: str
    """Returns 3."""
    early: str
    """Ends the process with exit code 0 before it is complete."""
    wrong_is: str = "WA"
    """RE where an assert that does not hold is an error like any other."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Small programs: `sandbox doctor` judges the first, the tests judge all."""

    adds: str
    """Prints the sum of two whole numbers, one line for one line."""
    fails: str
    """Ends with an uncaught error."""
    hoards: str
    """Takes memory without end."""
    spins: str
    """Computes without end."""
    broken: str
    """Does not compile."""
    asked: Mapping[str, KindExample]
    """Examples by kind of problem, one for each that the language has a harness for."""


@dataclass(frozen=True, slots=True)
class Language:
    name: str
    title: str
    """Name as people write it."""
    source: str
    """File name of the source."""
    samples: Samples
    suffixes: tuple[str, ...]
    """Suffixes of files that hold its programs."""
    aliases: tuple[str, ...] = ()
    """Other names that `find` takes."""
    artifact: str = ""
    tools: tuple[str, ...] = ()
    """Programs that must be found (see `sandbox.languages.toolchain`)."""
    version: tuple[str, ...] = ()
    """argv that prints the toolchain's version."""
    sysroot: tuple[str, ...] = ()
    """argv that prints where the real tools are, for a tool that only forwards to them."""
    see: tuple[str, ...] = ()
    """Further paths, as globs, that the toolchain reads outside /usr."""
    package: str = ""
    """Packages to install when the toolchain is missing."""
    compile: tuple[str, ...] = ()
    together: bool = False
    """All sources of a program are compiled at once; otherwise the one that it starts in (see layout.py)."""
    one_folder: bool = False
    """They must be in one directory, under names that begin with a letter or a digit."""
    starts_in_class: bool = False
    """`Program.entry` names a class, no file."""
    compile_files: tuple[str, ...] = ()
    """Files of sandbox/languages/harness that every compilation needs."""
    chance: tuple[str, ...] = ()
    """Such files that are compiled with a checker or an interactor, so that its random numbers cannot be foreseen."""
    compile_limits: Limits = COMPILE_LIMITS
    compile_runtime: Runtime = Runtime()
    run: tuple[str, ...] = ()
    runtime: Runtime = Runtime()
    reports: bool = False
    """A harness of ours starts every program, so it gets a job and writes a frame for stdio as well."""
    environment: tuple[tuple[str, str], ...] = ()
    harness: Mapping[str, LanguageHarness] = field(default_factory=lambda: MappingProxyType({}))
    """Kinds of problem besides stdio."""
    asked_for: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Words of which one occurs in a source, and what that adds to the compile argv."""
    header: str = ""
    """A header that is worth compiling ahead, and `precompile` to do so."""
    precompile: tuple[str, ...] = ()
    refused: str = r"(?!)"
    """A pattern: how its runtime says on stderr that memory was refused. It may not match one text in two ways."""
    said: str = r"(?!)(?P<said>)"
    """A pattern: what its runtime says on stderr of an uncaught error; the same holds."""
    crash_has_own_exit_code: bool = False
    """A program that crashes ends by a signal or with an exit code that is none of testlib's verdicts."""
    asserted: tuple[str, ...] = ()
    """Texts by which its runtime says on stderr that an assert failed: in their order, in one line and the next."""

    def __post_init__(self) -> None:
        if set(self.samples.asked) != set(self.harness):
            raise ValueError(f"language {self.name!r}: give a sample for each of its kinds {sorted(self.harness)}")

    @property
    def warm(self) -> bool:
        """Its programs are Python, run in a fork of the process that waits in the jail: nothing is built or started."""
        return not self.run

    @property
    def kinds(self) -> tuple[str, ...]:
        return ("stdio", *self.harness)
