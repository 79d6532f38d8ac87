"""Arguments and results of functions, as data sets store them: what was meant, where JSON has no form for it. And the
code that public graders of contest problems put in front of a program.

{"1": 2}                an argument whose keys are whole numbers: JSON made texts of them (APPS, verl)
[{1: 2}], [1, True]     Python's literals, written with ``str``
True, (1, 2), 'a'       results, likewise
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from sandbox.compare.values import loads
from sandbox.core.plain import python_literal

_WHOLE: Final = re.compile(r"0|-?[1-9]\d{0,18}")
_LITERAL: Final = re.compile(r"(?:True|False|None)|[\[({'\"].*", re.DOTALL)
_STARRED: Final = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "typing"),
)
CONTEST_MODULES: Final = (*_STARRED, "fractions", "time")
"""Imported ahead in every jail whose programs get the preamble: 3 ms of CPU a test instead of 8."""
CONTEST_PREAMBLE: Final = (
    "".join(f"from {name} import *\n" for name in (*_STARRED, "builtins"))
    + f"import {', '.join(CONTEST_MODULES)}\n"
    + "sys.setrecursionlimit(600_000)\n"
)
"""Code that the graders of LiveCodeBench, TACO, rLLM and verl put in front of a program: every name of these modules,
and the modules. The builtins come last, so that ``pow``, ``open`` and ``sum`` stay what they are."""


def call_text(arguments: Sequence[Any]) -> str:
    """The input of a case: a JSON list, or a Python literal for what JSON has not (sets, keys that are no texts). An
    argument whose keys are all whole numbers written as text gets these numbers as keys. Raises TypeError and
    ValueError for what is neither.
    """
    meant = [_with_whole_keys(argument) for argument in arguments]
    if not _is_pythonic(meant):
        return json.dumps(meant)
    text = repr(meant)
    python_literal(text)
    return text


def line_text(lines: Sequence[str]) -> str:
    """The input of a case from texts of one argument each: JSON, or Python's literals. Raises ValueError for others."""
    read = [_json(line) for line in lines]
    values = [value if is_json else python_literal(line) for (value, is_json), line in zip(read, lines, strict=True)]
    if not all(is_json for _, is_json in read):
        return repr(values)
    changed = _is_pythonic([_with_whole_keys(value) for value in values])
    return call_text(values) if changed else f"[{', '.join(lines)}]"


def result_texts(written: Sequence[Any]) -> list[str]:
    """Results as JSON. A text is JSON; where some are none and all of those are Python's literals, these; else a text
    that was stored without its quotes. What is no text is the result itself. Raises TypeError and ValueError for what
    has no JSON form, and a number beyond a double.
    """
    others = [text for text in written if isinstance(text, str) and not _json(text)[1]]
    read = _literals(others)
    texts = []
    for value in written:
        is_text = isinstance(value, str)
        texts.append(value if is_text and value not in read else json.dumps(read[value] if is_text else value))
    return texts


def _literals(texts: Sequence[str]) -> dict[str, Any]:
    """Return the value of each of these texts, which are no JSON."""
    if all(_LITERAL.fullmatch(text.strip()) for text in texts):
        with suppress(ValueError):
            return {text: python_literal(text) for text in texts}
    return {text: text for text in texts}


def _json(text: str) -> tuple[Any, bool]:
    try:
        return loads(text), True
    except ValueError as error:
        if "beyond a double" in str(error):
            raise
        return text, False


def _with_whole_keys(value: Any) -> Any:
    if isinstance(value, dict) and value and all(isinstance(key, str) and _WHOLE.fullmatch(key) for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def _is_pythonic(value: Any) -> bool:
    """Return whether JSON would change a value: it has no tuples, no sets and no keys but texts."""
    if isinstance(value, dict):
        return any(not isinstance(key, str) for key in value) or any(map(_is_pythonic, value.values()))
    return isinstance(value, tuple | set) or (isinstance(value, list) and any(map(_is_pythonic, value)))
