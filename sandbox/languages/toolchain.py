"""Finds compilers and runtimes on this machine, and what a jail must show of them.

    tool("rustc")     its path, or None          fill(language, argv)   {tools} replaced by paths; ToolchainMissing
    toolchain(lang)   name and version           roots()                paths outside /usr that jails show, read-only

Looked for on SANDBOX_PATH (by default the caller's PATH, kept for our own processes), then where installers put them.
Found once per process. A tool that does not answer in time is not missing: Starved, and it is asked again.
"""

from __future__ import annotations

import glob
import os
import platform
import pwd
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from sandbox.errors import SandboxError, Starved, ToolchainMissing, is_shortage, not_started
from sandbox.languages.language import Language
from sandbox.languages.table import LANGUAGES
from sandbox.terminal import current_environment

_TIMEOUTS_S: Final = (20.0, 60.0)  # one try each
_SYSTEM: Final = ("/usr/bin", "/usr/sbin", "/bin", "/sbin")  # every jail shows these
_LINKED: Final = ("/usr/lib", "/usr/share", "/usr/libexec")  # where links of the system lead to
_OPEN_TO_ALL: Final = ("/tmp", "/var/tmp", "/dev", "/proc")  # a file of any user is no toolchain
_HOMES: Final = ("/usr/bin", "/bin", "/usr/local/bin", "/usr/local/go/bin", "{home}/.cargo/bin")


@cache
def find_tool(name: str) -> str | None:
    """Return the path of a program, resolved where it only forwards to another (rustup's `rustc`)."""
    home = _home()
    asked = os.environ.get("SANDBOX_PATH", os.environ.get("PATH", "")).split(":")
    for place in (*asked, *(path.format(home=home) for path in _HOMES)):
        path = os.path.join(place, name)
        real = os.path.realpath(path)
        if place.startswith("/") and os.access(path, os.X_OK) and not _under(real, _OPEN_TO_ALL):
            return path if _under(real, (*_SYSTEM, *_LINKED)) else _behind(name, path)
    return None


def _behind(name: str, path: str) -> str | None:
    for language in LANGUAGES.values():
        if language.sysroot and language.sysroot[0] == f"{{{name}}}":
            root = _output([path, *language.sysroot[1:]])
            real = os.path.join(root, "bin", name)
            return real if root and os.access(real, os.X_OK) else None
    return os.path.realpath(path)


def _output(argv: Sequence[str]) -> str:
    """Return a tool's stdout; empty when it fails. Raises Starved, SandboxError where none can be started."""
    ours = current_environment() | {"LC_ALL": "C", "RUSTUP_AUTO_INSTALL": "0", "GOTOOLCHAIN": "local"}
    for timeout_s in _TIMEOUTS_S:
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=timeout_s, check=False, env=ours, cwd="/"
            )
        except (subprocess.TimeoutExpired, OSError) as error:
            if isinstance(error, subprocess.TimeoutExpired):
                continue
            if is_shortage(error):
                raise SandboxError(not_started(argv[0], error)) from error
            return ""
        if done.returncode != -signal.SIGKILL:
            return done.stdout.strip() if done.returncode == 0 else ""
    raise Starved(f"{' '.join(argv)} does not answer, or was killed: the machine has no room, or it hangs by itself")


def fill(language: Language, argv: Sequence[str], names: Mapping[str, object]) -> tuple[str, ...]:
    """`argv` with every name in braces replaced; parts that become empty are left out. Raises ToolchainMissing."""
    known = {**names, **_paths(language)}
    return tuple(filled for part in argv if (filled := part.format_map(known)))


def _paths(language: Language) -> dict[str, str]:
    found = {name: find_tool(name) for name in language.tools}
    if missing := [name for name, path in found.items() if path is None]:
        raise ToolchainMissing(f"language {language.name!r} needs {missing[0]}; install {language.package}")
    linker = "-fuse-ld=gold" if find_tool("ld.gold") else ""  # takes half the time of GNU ld
    return {**{name: path for name, path in found.items() if path}, "linker": linker}


@cache
def _version(name: str, argv: tuple[str, ...]) -> str | None:
    found = re.search(r"\d+(\.\d+)+", _output(argv))
    return f"{name} {found[0]}" if found else None


def toolchain(language: Language) -> str:
    """The toolchain's name and version, as written into every Judgement. Raises ToolchainMissing."""
    if not language.version:
        return f"{platform.python_implementation().lower()} {platform.python_version()}"
    argv = fill(language, language.version, {})
    version = _version(language.tools[0], argv)
    if version is None:
        raise ToolchainMissing(f"{' '.join(argv)} tells no version; install {language.package}")
    return version


@cache
def roots() -> tuple[str, ...]:
    """Return the places of all toolchains, beside the system's tools and libraries, which every jail shows."""
    found: dict[str, None] = {}
    for language in LANGUAGES.values():
        paths = [find_tool(name) for name in language.tools]
        if not all(paths):
            continue
        found |= dict.fromkeys(_root(path) for path in paths if path and not _under(os.path.realpath(path), _SYSTEM))
        found |= dict.fromkeys(path for pattern in language.see for path in sorted(glob.glob(pattern)))
    return tuple(found)


def _root(path: str) -> str:
    """The directory that holds a tool and its libraries; the tool alone where that would show a home directory."""
    real = os.path.realpath(path)
    root = os.path.dirname(os.path.dirname(real))
    home = _home()
    return real if root in ("/", "/usr", "/usr/local", home, "/home") or os.path.dirname(root) == home else root


def _home() -> str:
    """The user's own directory; "/" for a user of a container without an entry."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return "/"


def _under(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(place + "/") for place in places)
