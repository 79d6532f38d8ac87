"""Texts and values that are hard to read, by whoever reads them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sandbox.build import units
from sandbox.build.units import compose
from sandbox.compare import modes
from sandbox.core.nouns import SOURCE_BYTES_MAX, Case, Limits
from sandbox.core.problem import Problem
from sandbox.jail.run import RunResult
from sandbox.judging import assert_values, python_asserts, verdicts
from sandbox.judging.prepared import read_frame
from sandbox.languages.table import LANGUAGES
from sandbox.rewards.extract import extract_program

MIB = 1 << 20
Work = Callable[[], object]


@dataclass(frozen=True)
class Flood:
    """Something hard to read: `make(size)` makes about `size` bytes of it, and returns what the judge does then."""

    name: str
    make: Callable[[int], Work]
    most: int = 16 * MIB
    """The judge takes in no more."""
    language: str = ""
    """It needs this one's toolchain."""


def repeated(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


MODES = (
    *("exact", "lines", "tokens", "float(1e-6)", "lcb", "sf", "code_contests"),
    *("kattis", "kattis(float_tolerance 1e-6)", "kattis(case_sensitive space_change_sensitive)"),
)
TEXTS: dict[str, Callable[[int], tuple[bytes, bytes]]] = {
    "equal": lambda n: (repeated(b"12 ab\n", n), repeated(b"12 ab\n", n) + b"\n"),
    "numbers written otherwise": lambda n: (repeated(b"0.50 ", n), repeated(b"+.50 ", n)),
    "lines written otherwise": lambda n: (repeated(b"0.50\n", n), repeated(b".500\n", n)),
    "letters of another case": lambda n: (repeated(b"yes\n", n), repeated(b"YES\n", n)),
    "one number": lambda n: (b"1" * n, b"1" * (n - 1) + b"2"),
    "one fraction": lambda n: (b"0." + b"3" * n, b"0." + b"3" * (n - 1) + b"4"),
    "a number that is none": lambda n: (b"1" * n + b"x", b"1" * n + b".5"),
    "a fraction that is none": lambda n: (b"1" * (n // 2) + b"." + b"1" * (n // 2) + b"x", b"1.5"),
    "an exponent that is none": lambda n: (b"1e" + b"1" * n + b"x", b"1.5"),
    "far exponents": lambda n: (repeated(b"1e999999 ", n), repeated(b"1.e999999 ", n)),
    "underscores": lambda n: (b"1_" * (n // 2), b"1.5"),
    "nan(": lambda n: (b"nan(" + b"a" * n, b"nan"),
    "spaces": lambda n: (b"1" + b" " * n + b"2", b"1" + b" " * n + b"3"),
    "blank lines": lambda n: (b"1" + b"\n" * n + b"2", b"1" + b"\n" * n + b"3"),
    "carriage returns": lambda n: (b"1" + b"\r" * n + b"2", b"1" + b"\r" * n + b"3"),
    "bytes that are no text": lambda n: (b"\xff" * n, b"\xfe" * n),
}


def compared(mode: str, texts: Callable[[int], tuple[bytes, bytes]]) -> Callable[[int], Work]:
    def make(size: int) -> Work:
        output, expected = texts(size)
        return lambda: modes.parse_mode(mode)(output, expected)

    return make


_PRIME = (1 << 61) - 1  # integers that differ by it have one hash
VALUES: dict[str, Callable[[int], str]] = {
    "a list of integers": lambda n: "[" + "1," * (n // 2) + "1]",
    "a list of lists": lambda n: "[" + "[]," * (n // 3) + "1]",
    "floats": lambda n: "[" + "0.1," * (n // 4) + "1]",
    "texts": lambda n: '["' + "a" * n + '"]',
    "tuples in a set": lambda n: '{"s": [' + ",".join(f'{{"t": [{k}]}}' for k in range(n // 16)) + "]}",
    "equal members of a set": lambda n: '{"s": [' + "1," * (n // 2) + "1]}",
    "members with one hash": lambda n: '{"s": [' + ",".join(_long(k) for k in range(n // 32)) + "]}",
    "keys with one hash": lambda n: '{"d": [' + ",".join(f"[{_long(k)}, 1]" for k in range(n // 36)) + "]}",
    "tuples with one hash": lambda n: '{"s": [' + ",".join(f'{{"t": [{_long(k)}]}}' for k in range(n // 40)) + "]}",
    "powers of two": lambda n: '{"s": [' + ",".join(f'{{"i": "{1 << k:#x}"}}' for k in range(math.isqrt(8 * n))) + "]}",
    "a long integer in hexadecimal": lambda n: '{"i": "0x' + "f" * n + '"}',
    "a long integer in decimal": lambda n: "1" * n,
    "a long key": lambda n: '{"d": [[{"i": "0x' + "f" * n + '"}, 1]]}',
    "bytes": lambda n: '{"b": "' + "ff" * (n // 2) + '"}',
}


def _long(number: int) -> str:
    return f'{{"i": "{number * _PRIME:#x}"}}'


def valued(text: Callable[[int], str]) -> Callable[[int], Work]:
    def make(size: int) -> Work:
        frame = b'{"ok": true, "values": [' + text(size).encode() + b"]}"
        problem = Problem("p", "function", (Case("[]", "[1]"),), fn_name="f", compare="float(1e-6)")

        def work() -> object:
            done = ended()
            read = read_frame(b"n" * 32 + frame, b"n" * 32)
            return verdicts.decide_values(problem, problem.cases[0], None, done, read, LANGUAGES["python"])

        return work

    return make


def asserted(test: str, value: Callable[[int], list[Any]]) -> Callable[[int], Work]:
    def make(size: int) -> Work:
        plan, found = python_asserts.plan_asserts(f"assert {test}"), value(size)
        return lambda: [assert_values.holds(check, found) for check in plan.checks]

    return make


ASSERTS: dict[str, Callable[[int], list[Any]]] = {
    "set(f()) == {1}": lambda n: [[k * _PRIME for k in range(n // 32)]],
    "len(set(f())) == 1": lambda n: [[(k * _PRIME, 1) for k in range(n // 40)]],
    "dict(f()) == {1: 1}": lambda n: [[(k * _PRIME, 1) for k in range(n // 40)]],
    "sorted(f()) == [1]": lambda n: [list(range(n // 8, 0, -1))],
    "sum(f()) == 3": lambda n: [[1 << 4 * (n // 2), *[1] * (n // 4)]],
    "sum(f(), []) == [3]": lambda n: [[[1] * (n // 4), *[[]] * (n // 8)]],
    "f() * f() == 1": lambda n: [1 << 4 * (n // 2)] * 2,
    "f() % f() == 1": lambda n: [(1 << 4 * (n // 2)) - 1, (1 << n) - 1],
    "f() // f() == 1": lambda n: [(1 << 4 * (n // 2)) - 1, (1 << n) - 1],
    "f() in f()": lambda n: ["a" * (n // 4) + "b", "a" * n],
}
STDERR = {
    "python": "Traceback (most recent call last):\n  File\n",
    "c": "Assertion `",
    "cpp": "terminate called after std::bad_ Assertion `x' ",
    "java": 'Exception in thread " java.lang.Assertion \n java.lang.',
    "javascript": "^\n JavaScript heap out of ",
    "rust": "thread 'main' panicked at ",
    "rust ": "thread 'main' ' ' ' ' ",
    "rust  ": "' ",
    "javascript ": " ^",
    "python ": "\n",
    "go": "panic: fatal error: runtime: ",
}
SOURCES = {"c": "/* ", "cpp": "class  ", "java": "class A { ", "javascript": "`${", "rust": "/* "}
MACROS = ("#define ", "#define A(", "# ", "/ define\n", "\\\n", "#define\\\n", "define /", "\\ \t")
ANSWERS = {
    "fences": "```python\n",
    "open fences": "````" * 9 + "\n```a`\n",
    "backticks": "`",
    "spaces": " ",
    "tags": "``` {.,:\n",
    "thoughts": "<think></think>",
    "tabs": "\t```\n\t",
}


def ended(**parts: bytes) -> RunResult:
    """A run that ended with exit code 1, and left these."""
    streams = {"stdout": b"", "stderr": b"", "result": b"", **parts}
    return RunResult(None, 1, None, 0.0, 0.0, 0, 0, **streams, collected=None)


def crashed(language: str, unit: str) -> Callable[[int], Work]:
    problem = Problem("p", "assert", (Case("assert f()"),), language=language)

    def make(size: int) -> Work:
        opening = STDERR[language].encode()
        done = ended(stderr=opening + repeated(unit.encode(), size - len(opening)))
        tongue, plan = LANGUAGES[language], python_asserts.plan_asserts("assert f()")
        return lambda: (
            verdicts.decide_ending(done, None, Limits(), tongue),
            verdicts.decide_values(problem, problem.cases[0], plan, done, None, tongue),
        )

    return make


def of_units(unit: str, work: Callable[[str], object]) -> Callable[[int], Work]:
    """What is done with a text that is nothing but ``unit``, again and again."""

    def make(size: int) -> Work:
        text = unit * (size // len(unit))
        return lambda: work(text)

    return make


def composed(language: str) -> Callable[[str], object]:
    problem = Problem("p", "assert", (Case("main"),), language=language)
    return lambda source: compose(LANGUAGES[language], problem, source, problem.cases[0])


def extracted(answer: str) -> object:
    return extract_program(answer), extract_program(answer, prefill="```python\n", stop=("```",))


def floods() -> Iterator[Flood]:
    for mode in MODES:
        for kind, texts in TEXTS.items():
            yield Flood(f"{mode}: {kind}", compared(mode, texts))
    for kind, text in VALUES.items():
        few = kind.startswith(("a long", "texts", "bytes"))
        yield Flood(f"value: {kind}", valued(text), most=16 * MIB if few else 2 * MIB)
    for test, value in ASSERTS.items():
        yield Flood(f"assert: {test}", asserted(test, value))
    for language, unit in STDERR.items():
        yield Flood(f"stderr: {language.strip()} {unit!r}", crashed(language.strip(), unit), most=64 << 10)
    for language, unit in SOURCES.items():
        work = of_units(unit, composed(language))
        yield Flood(f"source: {language} {unit!r}", work, SOURCE_BYTES_MAX, language)
    for unit in MACROS:
        work = of_units(unit, lambda source: units.forget_macros(source, source))
        yield Flood(f"source: c {unit!r}", work, most=SOURCE_BYTES_MAX)
    for unit in ("class ", "struct\n\n", "/*", "class Solution"):
        work = of_units(unit, lambda source: units.callee("f", source))
        yield Flood(f"source: cpp {unit!r}", work, most=SOURCE_BYTES_MAX)
    for kind, unit in ANSWERS.items():
        yield Flood(f"answer: {kind}", of_units(unit, extracted))
