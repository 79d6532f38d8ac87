"""Paths of the machine that a run may read: what languages need, and no files that a user placed beside them.

Of /usr the tools, what they link, include and load, and time zones; of the interpreter the standard library as it is
when the jail starts, without site-packages; further toolchains and packages as the caller names them.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final

_SYSTEM: Final = (
    *("/usr/bin", "/usr/sbin", "/usr/include", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/libexec/gcc"),
    *("/usr/share/nodejs", "/usr/share/zoneinfo", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"),
    *("/usr/local/include", "/usr/local/lib64", "/usr/local/libexec/gcc"),
)
_SPLIT: Final = ("/bin", "/sbin", "/lib32", "/lib64", "/libx32")  # where they are no links into /usr
_LIBRARIES: Final = re.compile(
    r".+-linux-.+|.+\.so(\..+)?|bfd-plugins|compat-ld|gcc|gold-ld|jvm|llvm-.+|locale|nodejs|rustlib|ssl"
)
_LOADED: Final = re.compile(r"lib.+\.so(\..+)?")  # by the library's extensions, where the system's are not used
_UNUSED: Final = re.compile(r"site-packages|dist-packages|(site|user)customize\.py|test|idlelib|turtledemo|config-.+")


def system() -> list[str]:
    """Return paths of the machine that exist."""
    found = [*_SYSTEM, *(path for path in _SPLIT if not os.path.islink(path))]
    for folder in ("/usr/lib", "/usr/local/lib", *(["/lib"] if not os.path.islink("/lib") else [])):
        found += [f"{folder}/{name}" for name in _names(folder) if _LIBRARIES.fullmatch(name)]
    return [path for path in found if os.path.exists(path)]


def interpreter() -> list[str]:
    """Return paths of this interpreter that a program can import or start."""
    home, prefix = _home(), sys.base_prefix
    found = [f"{home}/{name}" for name in _names(home) if not _UNUSED.fullmatch(name)]
    found += [f"{prefix}/lib/{name}" for name in _names(f"{prefix}/lib") if _LOADED.fullmatch(name)]
    return [*found, os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)]


def listable_directories() -> list[str]:
    """Return directories whose names may be listed recursively: an import lists the library's, a linker its own."""
    return [path for path in ("/usr/lib", "/lib", _home()) if os.path.exists(path)]


def _home() -> str:
    return os.path.dirname(os.__file__)


def _names(folder: str) -> list[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
