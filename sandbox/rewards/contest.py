"""The code that public graders of contest problems put in front of a program."""

from __future__ import annotations

from typing import Final

_STARRED: Final = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "typing"),
)
_WHOLE: Final = (*_STARRED, "fractions", "time")
CONTEST_PREAMBLE: Final = (
    "".join(f"from {name} import *\n" for name in (*_STARRED, "builtins"))
    + f"import {', '.join(_WHOLE)}\n"
    + "sys.setrecursionlimit(600_000)\n"
)
"""Code that the graders of LiveCodeBench, TACO, rLLM and verl put in front of a program: every name of these modules,
and the modules. The builtins come last, so that ``pow``, ``open`` and ``sum`` stay what they are."""
CONTEST_MODULES: Final = _WHOLE
"""Imported ahead in every jail whose programs get the preamble: 3 ms of CPU a test instead of 8."""
