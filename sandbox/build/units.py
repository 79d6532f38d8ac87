"""Puts a program together for the kind of its problem, and starts it.

    Problem x Program (x test) ──▶ Unit: files and argv of a compilation ──▶ built artefact ──▶ Run

Text goes around the program, never into it. A test beneath a program is placed between names that can be known only
from both, and the code that begins the run refers to them: above an open comment, a condition or another `main`
nothing is built or complete.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from sandbox.core.checks import encode_text
from sandbox.core.nouns import MIB, Case, Limits, Program
from sandbox.core.problem import Problem
from sandbox.jail.run import JailedRun
from sandbox.languages import toolchain
from sandbox.languages.cpp_call import argument_types
from sandbox.languages.language import Language, LanguageHarness
from sandbox.languages.layout import CompileError, ProgramLayout, lay_out, named_for_compiler

_RUNTIME_BYTES: Final = 80 * MIB  # left to a managed runtime beside its heap, so that it collects in time
_YOUNG_BYTES: Final = 64 * MIB  # most that young objects get of a heap; a large array must fit into the rest
_FILES: Final = Path(__file__).parents[1] / "languages" / "harness"
# C++'s comments and texts are passed over, so that only a class Solution of the program's own is found.
_CPP_SOLUTION: Final = re.compile(
    r"//[^\n]*|/\*.*?(?:\*/|\Z)|\bR\"([^()\\\s]{0,16})\(.*?(?:\)\1\"|\Z)|\"(?:\\.|[^\"\\\n])*+|'(?:\\.|[^'\\\n])*+'?"
    r"|(?P<found>\b(?:class|struct)\s+Solution\b)",
    re.DOTALL,
)
_CLOSES: Final = re.compile(r"[\s}]*\}")  # a test's first words, where it ends what the program has left open
_BRACE: Final = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*+\"?|'(?:\\.|[^'\\\n])*+'?|([{}])", re.DOTALL)
_MAIN: Final = re.compile(r"\b(func|fn)\s+main\s*\(\s*\)")  # of a test in Go or Rust
# What a program in C or C++ may define, in any spelling: too many are found rather than too few.
_SPLICE: Final = re.compile(r"\\[ \t\f\v\r]*\n")
_DEFINE: Final = re.compile(r"[#:/]\s*define(?:\s+([^\W\d][\w$]*)(\()?|\s*/\*)")
_GIVEN: Final = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([^\W\d][\w$]*).*", re.MULTILINE)
_DECIDES: Final = ("EXIT_SUCCESS", "EXIT_FAILURE")
# What a test names of the standard headers, whose guards keep them from being read again.
_VALUES: Final = {
    **{f"{name}_MAX": f"__{name}_MAX__" for name in ("INT", "SCHAR", "SHRT", "SIZE", "INT32", "INT64")},
    **{f"{name}_MAX": f"__{at}_MAX__" for name, at in (("LONG", "LONG"), ("LLONG", "LONG_LONG"))},
    **{
        f"{name}_MIN": f"(-__{at}_MAX__ - 1)" for name, at in (("INT", "INT"), ("LONG", "LONG"), ("LLONG", "LONG_LONG"))
    },
    **{"UINT_MAX": "(__INT_MAX__ * 2U + 1U)", "ULONG_MAX": "(__LONG_MAX__ * 2UL + 1UL)", "EOF": "(-1)"},
    **{"ULLONG_MAX": "(__LONG_LONG_MAX__ * 2ULL + 1ULL)", "DBL_MAX": "__DBL_MAX__", "DBL_EPSILON": "__DBL_EPSILON__"},
    **{"FLT_MAX": "__FLT_MAX__", "INFINITY": "(__builtin_inff())", "NAN": '(__builtin_nanf(""))'},
    "M_PI": "3.14159265358979323846",
}
_NULL: Final = "#ifdef __cplusplus\n#define NULL __null\n#else\n#define NULL ((void *)0)\n#endif"
_STANDARD: Final = {"NULL": _NULL, **{name: f"#define {name} {value}" for name, value in _VALUES.items()}}
_BOOL: Final = dict.fromkeys(("bool", "true", "false"), "#undef _STDBOOL_H\n#include <stdbool.h>")
_TOKEN: Final = "SANDBOX_TOKEN"


@dataclass(frozen=True, slots=True)
class Unit:
    """A compilation in the work directory, and how its result is started."""

    language: Language
    harness: LanguageHarness
    files: tuple[tuple[str, bytes], ...]
    argv: tuple[str, ...]
    wants_header: bool
    """Its text names the header that the language compiles ahead."""
    artifact: str
    """Name of what the compilation makes."""
    beside: tuple[tuple[str, bytes], ...] = ()
    """Files beside the artefact when it runs."""

    @property
    def reports(self) -> bool:
        return self.language.reports or self.harness is not _PLAIN


_PLAIN: Final = LanguageHarness("its process has ended with exit code 0")


def compose(
    language: Language, problem: Problem, program: str | ProgramLayout, case: Case, *, decides: bool = False
) -> Unit:
    """Compose the compilation of a program for a problem (of the cases only an assert's is part of it), or of a checker
    or an interactor.

    Raises ToolchainMissing, and CompileError where the program is at fault.
    """
    layout = lay_out(language, Program(program)) if isinstance(program, str) else program
    layout = named_for_compiler(language, layout)
    source = layout.source
    harness = _PLAIN if problem.kind in ("stdio", "interactive") else language.harness[problem.kind]
    if problem.preamble:
        source = f"{problem.preamble}\n{source}"
    test = case.input if problem.kind == "assert" else ""
    token = f"sandbox_{hashlib.sha256(encode_text(source) + bytes(1) + encode_text(test)).hexdigest()[:20]}"
    if closed := _CLOSES.match(test):
        source, test = f"{source}\n{closed[0]}", test[closed.end() :]
    beneath = not harness.test_file or (bool(harness.after) and _is_inside(test))
    after = _beneath(harness, problem, layout.source, test).replace(_TOKEN, token) if beneath else ""
    text = harness.before + source + after
    chance = language.chance if decides else ()
    ours = [
        (name, content.replace(_TOKEN.encode(), token.encode()))
        for name, content in _read((*language.compile_files, *harness.files, *chance))
    ]
    # An interpreter's artefact is the source itself, beside which it finds the other files by their names.
    interpreted = language.artifact == language.source
    tests = ((harness.test_file, encode_text("" if beneath else test)),) if harness.test_file else ()
    if not interpreted:
        ours += tests
    files = {name: encode_text(text) for name, text in layout.files} | {layout.main: encode_text(text)}
    kept = set(dict(ours))
    if not is_native_language(language) and not interpreted:
        kept.add(language.artifact)
    if taken := {name.partition("/")[0] for name in files} & kept:
        raise CompileError(f"{min(taken)!r} is the name of a file of the judge; give yours another")
    texts = [text] if len(layout.compiled) == 1 else [text for name, text in layout.files if name in layout.compiled]
    artifact = layout.main if interpreted else language.artifact
    more = (part for words, part in language.asked_for if any(word in text for word in words for text in texts))
    argv = _compiler_argv(language, (*language.compile, *harness.compile, *chance, *more), layout, artifact)
    wants_header = bool(language.header) and any(language.header in text for text in texts)
    beside = tests if interpreted else ()
    return Unit(language, harness, (*files.items(), *ours), argv, wants_header, artifact, beside)


def _is_inside(test: str) -> bool:
    """Return whether a test closes more braces than it opens: it begins in a class that the program has left open."""
    braces = [found[1] for found in _BRACE.finditer(test)]
    return braces.count("}") > braces.count("{")


def _beneath(harness: LanguageHarness, problem: Problem, source: str, test: str) -> str:
    """Return the code to put under the program `source`, with SANDBOX_TOKEN in it."""
    if harness.rename_main:
        test = _MAIN.sub(rf"\1 {harness.rename_main}()", test)
    marks = callee(problem.fn_name or "", f"{problem.preamble}\n{source}")
    if "{types}" in harness.after:
        marks["{types}"] = argument_types([each.input for each in problem.cases])
    if "{forget}" in harness.after:
        marks["{forget}"] = forget_macros(source, problem.preamble)
    after = harness.after
    for mark, words in marks.items():
        after = after.replace(mark, words)
    return after.replace("{test}", test)


def _compiler_argv(language: Language, parts: Iterable[str], layout: ProgramLayout, artifact: str) -> tuple[str, ...]:
    """Return the compiler's argv, with the program's names unchanged: a name is no format, and as ./NAME no option."""
    chosen: dict[str, Sequence[str]] = {
        "{source}": [f"./{name}" for name in layout.compiled],
        "{start}": ["-start", layout.start] if layout.start else [],
    }
    ours = {"artifact": f"./{artifact}"}
    pieces = (chosen[part] if part in chosen else toolchain.fill(language, [part], ours) for part in parts)
    return tuple(itertools.chain.from_iterable(pieces))


def start_unit(unit: Unit, limits: Limits, stdin: bytes, artefact: bytes, job: bytes) -> JailedRun:
    """Return the run of a built unit. `artefact`: what to execute, or the file that its runtime loads."""
    language = unit.language
    names = {"artifact": f"./{unit.artifact}", **_sizes(language, limits)}
    argv = toolchain.fill(language, unit.harness.run or language.run, names)
    files = (*_read(unit.harness.run_files), *unit.beside)
    program = artefact if is_native_language(language) else None
    return JailedRun(
        limits,
        stdin,
        job=job if unit.reports else None,
        argv=argv,
        program=program,
        files=((unit.artifact, artefact), *files) if program is None else files,
        environment=environment_variables(language, limits),
        runtime=language.runtime,
        with_tools=program is None,
    )


def is_native_language(language: Language) -> bool:
    """The artefact is executed itself, not loaded by a runtime."""
    return language.run[:1] == ("{artifact}",)


def environment_variables(language: Language, limits: Limits) -> tuple[tuple[str, str], ...]:
    sizes = _sizes(language, limits)
    return tuple((name, value.format_map(sizes)) for name, value in language.environment)


def job(problem: Problem, wanted: dict[str, Any]) -> bytes:
    """Return the bytes that a harness reads from its job descriptor before the nonce. `args`: JSON, already checked."""
    asserts = problem.kind == "assert" or wanted.get("asserts", False)
    head = json.dumps({"kind": problem.kind, "fn_name": problem.fn_name, "asserts": asserts})
    args = wanted.get("args") or "null"
    return f'{head[:-1]}, "args": {args}}}'.encode("utf-8", "surrogatepass")


def _sizes(language: Language, limits: Limits) -> dict[str, object]:
    heap = max(limits.memory_bytes - _RUNTIME_BYTES, limits.memory_bytes // 2)
    stack = max(min(limits.stack_bytes, language.runtime.stack_bytes_max) - MIB, MIB // 2)
    young = min(heap // 8, _YOUNG_BYTES)
    return {"heap_mib": max(1, heap // MIB), "young_mib": max(1, young // MIB), "stack_kib": stack >> 10}


@cache
def _read(names: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, (_FILES / name).read_bytes()) for name in names)


def callee(fn_name: str, source: str) -> dict[str, str]:
    """Return how C++ names and calls the function, deducing argument types from the cases.

    A name without a class is a method where the program has a class Solution, as in Python. The `::` prefix avoids
    names from `using namespace std`.
    """
    cls, _, name = fn_name.rpartition(".")
    if not cls and any(found["found"] for found in _CPP_SOLUTION.finditer(source)):
        cls = "Solution"
    given = "(static_cast<decltype(sandbox_given) &&>(sandbox_given)...)"
    if not cls:
        return {"{owner}": "int", "{callee}": f"::{name}", "{called}": f"::{name}{given}"}
    called = f"sandbox_harness::sandbox_made<::{cls}>().{name}{given}"
    return {"{owner}": f"::{cls}", "{callee}": f"&Sandbox_owner::{name}", "{called}": called}


def forget_macros(source: str, preamble: str) -> str:
    """Return lines for C's preprocessor after which a program's macros hold no longer, and a preamble's hold again.

    Constants in capitals may be the test's as well, so they stay, but for those of the standard's headers. Raises
    CompileError for a spelling that hides the name of a macro.
    """
    source, preamble = (_SPLICE.sub("", text) for text in (source, preamble))
    again = _STANDARD | _BOOL | {found[1]: found[0] for found in _GIVEN.finditer(preamble)}
    lines: dict[str, None] = {}
    for found in _DEFINE.finditer(source):
        name, takes_arguments = found[1], found[2]
        if name is None:
            raise CompileError("a comment hides the name of a macro; write '#define NAME'")
        constant = name.isupper() and not (takes_arguments or name.startswith("_") or name in _DECIDES)
        if name in again or not constant:
            lines |= {f"#undef {name}": None, again.get(name, ""): None}
    return "\n".join(lines)
