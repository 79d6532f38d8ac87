"""The table of languages, their toolchains on this machine, and what stands around a program (``harness/``).

What for: everything that is particular to a language. Knows nothing of jails.
"""

from sandbox.languages import toolchain
from sandbox.languages.cpp_call import argument_types
from sandbox.languages.language import Harness, Language, Runtime
from sandbox.languages.layout import Layout, NoEntry, lay_out
from sandbox.languages.table import LANGUAGES, by_suffix, find

__all__ = [
    "LANGUAGES",
    "Harness",
    "Language",
    "Layout",
    "NoEntry",
    "Runtime",
    "argument_types",
    "by_suffix",
    "find",
    "lay_out",
    "toolchain",
]
