"""Programs of a package: a file, or a directory of files, with what include/ adds and constants replaced.

path ── files ─▶ language by the endings ─▶ include/default, include/LANGUAGE ─▶ {{constants}} ─▶ Program
"""

from __future__ import annotations

import io
import os
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox.core import MIB, Program
from sandbox.errors import InvalidProblem
from sandbox.languages import LANGUAGES, Language, Misnamed, by_package_code, by_suffix, find_language, lay_out
from sandbox.packages.settings import Settings

FILES_BYTES_MAX: Final = 16 * MIB
_PYTHON_2: Final = re.compile(rb"#!.*python2\b")


class Unsupported(Exception):
    """No language here runs the program; the text says which it lacks."""


@dataclass(frozen=True, slots=True)
class Sources:
    """A program as its author wrote it."""

    path: Path
    files: dict[str, bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.files.values()))


def read_sources(path: Path) -> Sources:
    """Read a file, or a directory with all its files except hidden ones. Raises InvalidProblem, OSError."""
    if not path.is_file() and not path.is_dir():
        raise InvalidProblem(f"{path}: is neither a file nor a directory")
    if path.is_file():
        return Sources(path, {path.name: _read(path)})
    found = {}
    for each in sorted(path.rglob("*")):
        inside = each.relative_to(path)
        if each.is_file() and not any(part[0] in ".-" for part in inside.parts):
            found[str(inside)] = _read(each)
    if sum(map(len, found.values())) > FILES_BYTES_MAX:
        raise InvalidProblem(f"{path}: holds more than {FILES_BYTES_MAX} bytes")
    return Sources(path, found)


def case_files(directory: Path | None) -> dict[str, bytes]:
    """Return the files that a program finds when it runs on a case; `directory` is the case's .files, if it has one."""
    return {} if directory is None else read_sources(directory).files


def check_links(root: Path) -> None:
    """Raises InvalidProblem for a symbolic link in `root` that leads out of it: what it shows is not the author's."""
    inside = root.resolve()
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name[0] not in ".-"]
        for path in (Path(folder, name) for name in (*folders, *files) if name[0] not in ".-"):
            if not path.is_symlink():
                continue
            try:
                fine = path.resolve().is_relative_to(inside)
            except (OSError, RuntimeError):  # a cycle of links
                fine = False
            if not fine:
                raise InvalidProblem(f"{path}: is a symbolic link to {os.readlink(path)!r}, which is not below {root}")


def _read(path: Path) -> bytes:
    if path.stat().st_size > FILES_BYTES_MAX:
        raise InvalidProblem(f"{path}: is longer than {FILES_BYTES_MAX} bytes")
    return path.read_bytes()


def language_of(sources: Sources, code: str = "") -> Language:
    """Return the language by the format's code if given, else by the file suffixes. Raises Unsupported."""
    if code:
        if (named := by_package_code(code)) is None:
            known = ", ".join(sorted(language.package_code for language in LANGUAGES.values()))
            raise Unsupported(f"the language {code!r} is not supported; use one of {known}")
        return named
    counts: dict[str, int] = {}
    for name, content in sources.files.items():
        language = by_suffix(Path(name).suffix)
        python_2 = language is not None and language.name == "python" and _PYTHON_2.match(content[:100])
        if language is not None and not python_2:
            counts[language.name] = counts.get(language.name, 0) + 1
    if not counts:
        if not sources.files:
            raise Unsupported("it is an empty directory")
        endings = sorted({Path(name).suffix for name in sources.files})
        if any(by_suffix(ending) for ending in endings):
            raise Unsupported("Python 2 is not supported")
        raise Unsupported(f"no supported language has the suffix {', '.join(map(repr, endings))}")
    if len(counts) > 1 and max(counts.values()) == sorted(counts.values())[-2]:
        raise Unsupported(
            f"files of {' and '.join(sorted(counts))} in equal number; name the language in submissions.yaml"
        )
    return find_language(max(counts, key=lambda name: counts[name]))


def make_program(
    sources: Sources,
    language: Language,
    settings: Settings,
    *,
    include: Mapping[str, bytes] | None = None,
    entry: str = "",
) -> Program:
    """Raises InvalidProgram for names that cannot be files."""
    files = {**sources.files, **(include or {})}
    texts = {name: settings.fill_in(_decode(content, language, name)) for name, content in files.items()}
    if len(texts) == 1 and not entry:
        (source,) = texts.values()
        return Program(source, language.name)
    entry = entry or _own_entry(sources, language, include or {})
    return Program(language=language.name, files=tuple(texts.items()), entry=entry)


def _own_entry(sources: Sources, language: Language, include: Mapping[str, bytes]) -> str:
    """Without a driver in include/, a program starts in a file of its own, whatever the others are called."""
    if language.starts_in_class or any(Path(name).stem.lower() in ("main", "__main__") for name in include):
        return ""
    own = tuple((name, "") for name in sources.files if name not in include)
    try:
        return lay_out(language, Program(language=language.name, files=own)).main if include and own else ""
    except Misnamed:
        return ""


def read_include(package: Path, language: Language) -> dict[str, bytes]:
    """Files that lie beside every submission in a language."""
    found: dict[str, bytes] = {}
    for folder in ("default", language.package_code):
        if (package / "include" / folder).is_dir():
            found |= read_sources(package / "include" / folder).files
    return found


def _decode(content: bytes, language: Language, name: str) -> str:
    """Text; a Python source by the coding that it declares."""
    if language.name == "python" and by_suffix(Path(name).suffix) is language:
        try:
            coding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
            return content.decode(coding)
        except (SyntaxError, UnicodeDecodeError, LookupError):
            pass  # decoded as bytes, which the compiler refuses
    return content.decode("utf-8", "surrogateescape")
