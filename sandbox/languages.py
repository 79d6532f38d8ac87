"""The table of languages. Adding one is adding an entry.

A language is compiled by `compile` (argv, run in the jail, in the work directory) into `artifact`, or is run by the
warm harness when it has no `compile`. `{source}` and `{artifact}` stand for file names.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from typing import Final

from sandbox.core import COMPILE_LIMITS, Limits
from sandbox.errors import SandboxError, ToolchainMissing


@dataclass(frozen=True, slots=True)
class Language:
    name: str
    source: str
    """File name of the source."""
    artifact: str = ""
    compile: tuple[str, ...] = ()
    version: tuple[str, ...] = ()
    """argv that prints the toolchain's version."""
    package: str = ""
    """What to install when the toolchain is missing."""
    kinds: tuple[str, ...] = ("stdio",)
    compile_limits: Limits = COMPILE_LIMITS


_TABLE: Final = (
    Language("python", "main.py", kinds=("stdio", "function", "assert")),
    Language(
        "cpp",
        "main.cpp",
        artifact="main",
        compile=(
            "/usr/bin/g++",
            "-O2",
            "-std=c++17",
            "-pipe",
            "-fmax-errors=5",
            "-o",
            "{artifact}",
            "{source}",
        ),
        version=("/usr/bin/g++", "-dumpfullversion"),
        package="g++ (Debian, Ubuntu: apt-get install g++)",
    ),
)
LANGUAGES: Final[dict[str, Language]] = {language.name: language for language in _TABLE}
_ALIASES: Final = {"py": "python", "python3": "python", "c++": "cpp", "cc": "cpp", "cxx": "cpp"}


def find(name: str) -> Language:
    """The language called `name`. Raises SandboxError for an unknown one."""
    key = _ALIASES.get(name.lower(), name.lower())
    if key not in LANGUAGES:
        raise SandboxError(f"language={name!r} is unknown; use one of {', '.join(LANGUAGES)}")
    return LANGUAGES[key]


@cache
def toolchain(language: Language) -> str:
    """The toolchain's name and version, as written into every Judgement. Raises ToolchainMissing."""
    if not language.version:
        return f"{platform.python_implementation().lower()} {platform.python_version()}"
    tool = language.version[0]
    if shutil.which(tool) is None:
        raise ToolchainMissing(f"language {language.name!r} needs {tool}; install {language.package}")
    done = subprocess.run(language.version, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        raise ToolchainMissing(f"{' '.join(language.version)} failed: {done.stderr.strip()[:200]}")
    return f"{tool.rpartition('/')[2]} {done.stdout.split()[0]}"
