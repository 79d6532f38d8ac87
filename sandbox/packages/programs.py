"""Programs of a package: a file, or a directory of files, with what include/ adds and constants replaced.

path ── files ─▶ language by the endings ─▶ include/default, include/LANGUAGE ─▶ {{constants}} ─▶ Program
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox.core.nouns import MIB, Program
from sandbox.errors import InvalidProblem
from sandbox.languages.language import Language
from sandbox.languages.layout import Misnamed, lay_out
from sandbox.languages.table import LANGUAGES, by_package_code, by_suffix, find_language
from sandbox.packages.links import check_followed
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


def read_sources(path: Path, leaving: Collection[Path] = ()) -> Sources:
    """Read a file, or a directory with all its files except hidden ones. Raises InvalidProblem, OSError.

    leaving: links that lead out of the package, and are not followed.
    """
    check_followed(path, leaving)
    if not path.is_file() and not path.is_dir():
        raise InvalidProblem(f"{path}: is neither a file nor a directory")
    if path.is_file():
        return Sources(path, {path.name: _read(path, FILES_BYTES_MAX)})
    found: dict[str, bytes] = {}
    left = FILES_BYTES_MAX
    for each in sorted(path.rglob("*")):
        inside = each.relative_to(path)
        if each.is_file() and not any(part[0] in ".-" for part in inside.parts):
            found[str(inside)] = _read(each, left)
            left -= len(found[str(inside)])
    return Sources(path, found)


def submission_paths(package: Path, leaving: Collection[Path] = ()) -> Iterator[Path]:
    """Yield the files and directories in the directories of submissions/, by name."""
    for folder in sorted((package / "submissions").glob("*")):
        if folder.is_dir() and folder.name[0] not in ".-" and folder not in leaving:
            yield from sorted(path for path in folder.iterdir() if path.name[0] not in ".-")


def submission_name(path: Path) -> str:
    """Relative to submissions/."""
    return f"{path.parent.name}/{path.name}"


def case_files(directory: Path | None) -> dict[str, bytes]:
    """Return the files that a program finds when it runs on a case; `directory` is the case's .files, if it has one."""
    return {} if directory is None else read_sources(directory).files


def _read(path: Path, most: int) -> bytes:
    if path.stat().st_size > most:
        raise InvalidProblem(f"{path}: exceeds {FILES_BYTES_MAX} bytes, alone or with the files beside it")
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
    if language.name == "python":  # in a package it prints nothing; elsewhere an empty answer does not compile
        bare = [name for name, text in texts.items() if name.endswith(".py") and not _statements(text)]
        texts |= {name: f"{texts[name]}\npass\n" for name in bare}
    if len(texts) == 1 and not entry:
        (source,) = texts.values()
        return Program(source, language.name)
    entry = entry or _own_entry(sources, language, include or {})
    return Program(language=language.name, files=tuple(texts.items()), entry=entry)


def _statements(source: str) -> bool:
    """Whether a line of a Python source holds more than a comment."""
    return any(line and line[0] != "#" for line in map(str.strip, source.removeprefix("\ufeff").splitlines()))


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
