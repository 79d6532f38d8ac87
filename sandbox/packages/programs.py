"""Submissions of a package: their programs, and the verdicts that their authors expect.

path ── files ─▶ language by the suffixes ─▶ Program       folder, @EXPECTED_RESULTS@ in a comment ─▶ verdicts
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sandbox.core.nouns import MIB, Program
from sandbox.errors import InvalidProgram
from sandbox.languages.table import LANGUAGES, by_suffix
from sandbox.packages.documents import load_yaml, read_within

_FILES_BYTES_MAX: Final = 16 * MIB
_PYTHON_2: Final = re.compile(rb"#!.*python2\b")
_COMMENT: Final = re.compile(r"@EXPECTED_RESULTS?@:?[ \t]*([\w, \t-]*)")
_WORDS: Final = {
    **dict.fromkeys(("CORRECT", "ACCEPTED", "AC"), "AC"),
    **dict.fromkeys(("WRONG_ANSWER", "WA", "NO_OUTPUT", "PRESENTATION_ERROR"), "WA"),
    **dict.fromkeys(("TIMELIMIT", "TIME_LIMIT_EXCEEDED", "TLE"), "TLE"),
    **dict.fromkeys(("RUN_ERROR", "RUN_TIME_ERROR", "RUNTIME_ERROR", "RTE"), "RTE"),
    **dict.fromkeys(("MEMORY_LIMIT", "OUTPUT_LIMIT", "MLE", "OLE"), "RTE"),
    **dict.fromkeys(("COMPILER_ERROR", "CE"), "CE"),
}
_BOTH: Final = {
    "accepted": ("AC",),
    "wrong_answer": ("WA",),
    "time_limit_exceeded": ("TLE",),
    "run_time_error": ("RTE",),
}
_LEGACY: Final = {**_BOTH, "slow_accepted": ("AC", "TLE"), "rejected": ("WA", "TLE", "RTE", "CE")}
_LATER: Final = {**_BOTH, "brute_force": ("RTE", "TLE"), "rejected": ("WA", "TLE", "RTE")}


@dataclass(frozen=True, slots=True)
class Submission:
    name: str
    """Relative to submissions/."""
    program: Program | None = None
    expected: tuple[str, ...] = ()
    """Verdicts of the first case that fails, or AC; () expects nothing."""
    in_time: bool = False
    """Its run time bounds the time limit from below."""
    skipped: str = ""
    """Reason why it is not judged."""
    notes: tuple[str, ...] = ()


def read_submissions(package: Path, *, legacy: bool, scoring: bool) -> Iterator[Submission]:
    """Yield all in submissions/, by name. Raises InvalidProblem, OSError."""
    root = package / "submissions"
    listed = root / "submissions.yaml"
    globs = () if legacy or not listed.exists() else tuple(load_yaml(listed, package, []).left)
    for path in sorted(root.glob("[!.-]*")):
        for each in sorted(path.glob("[!.-]*")):
            name, verdicts = f"{path.name}/{each.name}", (_LEGACY if legacy else _LATER).get(path.name, ())
            if any(name.startswith(re.split(r"[*?\[{]", glob)[0]) for glob in globs):
                why = "submissions.yaml says what is expected of it, which is not supported"
                yield Submission(name, skipped=why)
            elif scoring and not verdicts:
                yield Submission(name, skipped=f"scores are not computed, and {path.name}/ says nothing else")
            else:
                yield _submission(name, each, package, verdicts, legacy=legacy)
        if path.is_file() and path != listed:
            yield Submission(path.name, skipped="it is in no folder, so nothing is expected of it")


def _submission(name: str, path: Path, package: Path, verdicts: tuple[str, ...], *, legacy: bool) -> Submission:
    try:
        program = read_program(path, package)
    except (OSError, ValueError) as error:  # InvalidProblem and InvalidProgram among them
        return Submission(name, skipped=str(error).replace(f"{path}: ", ""))
    folder, notes = path.parent.name, []
    bounds = ("accepted",) if legacy else ("accepted", "wrong_answer", "run_time_error")
    found = Submission(name, program, verdicts, in_time=folder in bounds)
    for comment in _COMMENT.findall("\n".join((program.source, *(text for _, text in program.files)))):
        said = tuple(_WORDS.get(word.upper().replace("-", "_"), "") for word in re.split(r"[\s,]+", comment.strip()))
        if "" in said:
            notes.append(f"@EXPECTED_RESULTS@: {comment.strip()!r} names no verdict, and is not followed")
        else:
            found = Submission(name, program, said, in_time=said == ("AC",))
    if not found.expected:
        found = Submission(name, skipped=f"{folder}/ is no folder of the format, and no comment says what is expected")
    return replace(found, notes=tuple(notes))


def read_program(path: Path, root: Path, language: str = "") -> Program:
    """A file, or a directory with all its files except hidden ones; without a language, the one of most files. Raises
    InvalidProgram, InvalidProblem, OSError.
    """
    files: dict[str, bytes] = {}
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        inside = each.relative_to(path if path.is_dir() else path.parent)
        if not each.is_dir() and not any(part[0] in ".-" for part in inside.parts):
            files[str(inside)] = read_within(each, root, _FILES_BYTES_MAX - sum(map(len, files.values())))
    language = language or _language_of(path, files)
    texts = {name: content.decode("utf-8", "surrogateescape") for name, content in files.items()}
    for name, text in texts.items() if language == "python" else ():
        if not any(line.strip() and line.strip()[0] != "#" for line in text.splitlines()):
            texts[name] = f"{text}\npass\n"  # it prints nothing; elsewhere an empty answer does not compile
    if len(texts) == 1:
        return Program(next(iter(texts.values())), language)
    return Program(language=language, files=tuple(texts.items()))


def _language_of(path: Path, files: dict[str, bytes]) -> str:
    found = [(by_suffix(Path(name).suffix), content) for name, content in files.items()]
    counts = Counter(each.name for each, content in found if each and not _PYTHON_2.match(content[:100])).most_common(2)
    if not counts:
        suffixes = ", ".join(sorted({repr(Path(name).suffix) for name in files})) or "no file"
        raise InvalidProgram(f"{path}: no language for {suffixes}; use {', '.join(LANGUAGES)} (Python 3)")
    if len(counts) == 2 and counts[0][1] == counts[1][1]:
        raise InvalidProgram(f"{path}: files of {counts[0][0]} and {counts[1][0]} in equal number")
    return counts[0][0]
