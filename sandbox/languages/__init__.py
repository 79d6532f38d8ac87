"""The table of languages, their toolchains on this machine, and the harness files around a program (``harness/``).

Everything that is specific to a language; knows nothing of jails.
"""

from sandbox.languages import toolchain
from sandbox.languages.cpp_call import argument_types
from sandbox.languages.language import Language, LanguageHarness, Runtime
from sandbox.languages.layout import Misnamed, ProgramLayout, lay_out, named_for_compiler
from sandbox.languages.table import LANGUAGES, by_package_code, by_suffix, find_language

__all__ = [
    "LANGUAGES",
    "Language",
    "LanguageHarness",
    "Misnamed",
    "ProgramLayout",
    "Runtime",
    "argument_types",
    "by_package_code",
    "by_suffix",
    "find_language",
    "lay_out",
    "named_for_compiler",
    "toolchain",
]
