"""Find where a program of several files starts, and what of it is compiled: the language's own rule.

    together    C, C++, Java, Go: all its sources are compiled at once; Go's only beside the one that it starts in
    alone       Python, JavaScript, Rust: the one that it starts in, which names the others

It starts in the file, or Java's class, that `Program.entry` names. Otherwise in the one source; or in the language's
`main.py` or the like; or in `main` with any ending, in any case of letters; or in Python's `__main__.py`; or in the
source that comes first by name. Java looks there, and in all classes after it, for a `main`, the class Main first; a
linker finds the `main` of C, C++ and Go anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from sandbox.core.checks import NAME_MAX, quoted
from sandbox.core.nouns import Program
from sandbox.languages.language import Language

_UNUSABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class CompileError(Exception):
    """The program does not compile, or a name of its files cannot be used; the message is the log. ``cause``: the limit
    that ended the compiler, or "".
    """

    def __init__(self, log: str, cause: str = "") -> None:
        super().__init__(log)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class ProgramLayout:
    """The files of a program by what they are for."""

    main: str
    """Name of the file that it starts in."""
    source: str
    """Its text."""
    compiled: tuple[str, ...]
    """Names that are given to the compiler, `main` first."""
    files: tuple[tuple[str, str], ...]
    """All files, where there are several."""
    start: str = ""
    """Java: the class that was named."""


def lay_out(language: Language, program: Program) -> ProgramLayout:
    """Raises CompileError, also where there is no file to start in."""
    start = program.entry if language.starts_in_class else ""
    for name in (start, *(name for name, _ in program.files)):
        _check_name(name)
    if not program.files:
        return ProgramLayout(language.source, program.source, (language.source,), (), start=start)
    names = sorted(name for name, _ in program.files if name.endswith(language.suffixes))
    if not names:
        raise CompileError(f"no file is {language.title}: their names end in {' or '.join(language.suffixes)}")
    main = _main(language, program.entry, names)
    compiled = [name for name in names if name != main] if language.together else []
    if language.one_folder:
        compiled = [name for name in compiled if name.rpartition("/")[0] == main.rpartition("/")[0]]
    return ProgramLayout(main, dict(program.files)[main], (main, *compiled), program.files, start)


def named_for_compiler(language: Language, layout: ProgramLayout) -> ProgramLayout:
    """The program with names that its compiler takes: Go's refuses or passes over a file called "-x.go" or "_x.go"."""
    if not language.one_folder:
        return layout
    names = {name: _plain(name) for name in layout.compiled}
    files = tuple((names.get(name, name), text) for name, text in layout.files)
    return replace(layout, main=names[layout.main], compiled=tuple(names.values()), files=files)


def _plain(name: str) -> str:
    folder, slash, base = name.rpartition("/")
    return name if base[0].isalnum() else f"{folder}{slash}sandbox_{base}"


def _check_name(name: str) -> None:
    """Check a name, which is an argument of a compiler or occurs in its messages. Raises CompileError."""
    if _UNUSABLE.search(name) or len(name) > NAME_MAX:
        raise CompileError(
            f"the name {quoted(name)} has control characters, or more than {NAME_MAX}; use one like 'util.py'"
        )


def _main(language: Language, entry: str, names: list[str]) -> str:
    if entry and not language.starts_in_class:
        if entry not in names:
            raise CompileError(f"entry={entry!r} is none of its sources: {', '.join(names)}")
        return entry
    wanted = [f"{entry.replace('.', '/')}{suffix}".lower() for suffix in language.suffixes] if entry else []
    for name in names:
        if name.lower() in wanted:
            return name
    if not entry and language.source in names:  # beside a Main.py, main.py
        return language.source
    by_name = [name for name in names if name.rpartition("/")[2].lower().partition(".")[0] == "main"]
    by_name += [name for name in names if name.rpartition("/")[2] == "__main__.py"]
    top = [name for name in by_name if "/" not in name] or by_name
    return (top or [name for name in names if "/" not in name] or names)[0]
