"""problem.yaml of the four versions of the format, as one data type.

legacy, legacy-icpc      validation, validator_flags, grading, limits.time_multiplier ...
2023-07-draft, 2025-09   type, limits.time_limit, limits.time_multipliers, constants, languages ...
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox.core import MIB, Limits
from sandbox.errors import InvalidProblem
from sandbox.languages import LANGUAGES
from sandbox.packages.documents import NUMBER_MAX, Keys, load_yaml

LEGACY: Final = ("legacy", "legacy-icpc")
NEW: Final = ("2023-07-draft", "2025-09")
_TYPES: Final = ("pass-fail", "scoring", "multi-pass", "interactive", "submit-answer")
_EXCLUDE: Final = (("pass-fail", "scoring"), ("multi-pass", "submit-answer"), ("interactive", "submit-answer"))
_LANGUAGES: Final = (
    *("ada", "algol68", "apl", "bash", "c", "cgmp", "cobol", "cpp", "cppgmp", "crystal", "csharp", "d", "dart"),
    *("elixir", "erlang", "forth", "fortran", "fsharp", "gerbil", "go", "haskell", "java", "javaalgs4"),
    *("javascript", "julia", "kotlin", "lisp", "lua", "modula2", "nim", "objectivec", "ocaml", "octave"),
    *("odin", "pascal", "perl", "php", "prolog", "python2", "python3", "python3numpy", "racket", "ruby"),
    *("rust", "scala", "simula", "smalltalk", "snobol", "swift", "typescript", "visualbasic", "zig"),
)
"""All languages that the format names; a language of the table may be one more."""
_CONSTANT: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SILENT: Final = ("name", "uuid", "source", "license", "rights_owner", "keywords")  # irrelevant for judging
_TIMELIMIT_INI: Final = re.compile(r"^\s*timelimit\s*=(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Timing:
    """How the time limit is found. Seconds of CPU time."""

    fixed_s: float | None
    fixed_by: str
    ac_to_limit: float
    limit_to_tle: float
    resolution_s: float


@dataclass(frozen=True, slots=True)
class SubmissionLimits:
    """What a submission may use, and what validators may."""

    memory_bytes: int
    output_bytes: int
    code_bytes: int
    passes: int
    validation: Limits


@dataclass(frozen=True, slots=True)
class Settings:
    version: str
    types: frozenset[str]
    timing: Timing
    bounds: SubmissionLimits
    custom_validator: bool | None
    """Set by legacy packages; None: custom where there is one."""
    custom_score: bool
    validator_flags: tuple[str, ...]
    minimise: bool
    languages: tuple[str, ...] | None
    """Codes of those allowed; None means all."""
    constants: dict[str, str]
    old_group_keys: dict[str, object]
    """Keys of test groups that the oldest packages have in problem.yaml."""
    notes: tuple[str, ...] = ()
    """Parts of the package that have no effect here."""

    @property
    def legacy(self) -> bool:
        return self.version in LEGACY

    def fill_in(self, text: str) -> str:
        """Return a text with the package's constants in their places."""
        for name, value in self.constants.items():
            text = text.replace("{{" + name + "}}", value)
        return text

    @property
    def scoring(self) -> bool:
        return "scoring" in self.types

    @property
    def talks(self) -> bool:
        """Whether one output alone does not decide the verdict."""
        return not self.types.isdisjoint(("interactive", "multi-pass"))

    @property
    def interactive(self) -> bool:
        return "interactive" in self.types


def read_settings(package: Path) -> Settings:
    """Raises InvalidProblem for a version, key or value that is not known or not supported."""
    path = package / "problem.yaml"
    if not path.is_file():
        raise InvalidProblem(f"{package}: has no problem.yaml; give the directory of a problem package")
    keys = load_yaml(path)
    version = keys.text("problem_format_version", "legacy")
    if version not in (*LEGACY, *NEW):
        raise keys.wrong("problem_format_version", version, f"one of {', '.join((*LEGACY, *NEW))}")
    return _read_legacy(package, version, keys) if version in LEGACY else _read_new(package, version, keys)


def _read_legacy(package: Path, version: str, keys: Keys) -> Settings:
    keys.skip(*_SILENT, "author", "source_url")
    types = {"pass-fail" if version == "legacy-icpc" else keys.choice("type", "pass-fail", ("pass-fail", "scoring"))}
    words = keys.text("validation", "default").split() or ["default"]
    if words[0] not in ("default", "custom") or (words[0] == "default" and len(words) > 1):
        raise keys.wrong("validation", " ".join(words), "default, or custom with any of score, interactive, multi-pass")
    for word in words[1:]:
        if word not in ("score", "interactive", "multi-pass"):
            raise keys.wrong("validation", word, "one of score, interactive, multi-pass")
        if word == "score" and "scoring" not in types:
            raise keys.wrong("validation", " ".join(words), "without score, for the problem's type is not scoring")
    types |= {word for word in words[1:] if word != "score"}
    flags = tuple(keys.text("validator_flags").split())
    grading = keys.inner("grading")
    minimise = grading.choice("objective", "max", ("max", "min")) == "min"
    grading.skip("show_test_data_groups")
    old = {name: grading.take(name) for name in ("on_reject", "accept_score", "reject_score", "range")}
    grading.done()
    limits = keys.inner("limits")
    multiplier, margin = (
        limits.number(name, value, low=1) for name, value in (("time_multiplier", 5.0), ("time_safety_margin", 2.0))
    )
    timing = Timing(*_fixed_beside(package), multiplier, margin, 1.0)
    bounds, notes = _read_bounds(limits, types)
    limits.done()
    keys.done()
    return Settings(
        version, frozenset(types), timing, bounds, words[0] == "custom", "score" in words, flags, minimise, None, {},
        {name: value for name, value in old.items() if value is not None}, tuple(notes),
    )  # fmt: skip


def _fixed_beside(package: Path) -> tuple[float | None, str]:
    """A time limit that judging systems leave beside problem.yaml."""
    for name in (".timelimit", "domjudge-problem.ini"):
        path = package / name
        if not path.is_file():
            continue
        text = path.read_text("utf-8", "replace")
        for found in (
            [text.strip()] if name == ".timelimit" else [each.strip(" \t'\"") for each in _TIMELIMIT_INI.findall(text)]
        ):
            return Keys(str(path), {}).as_number("time limit", found, low=0.001, high=NUMBER_MAX), name
    return None, ""


def _read_new(package: Path, version: str, keys: Keys) -> Settings:
    keys.skip(*_SILENT, "version", "credits", "embargo_until")
    types = set(_distinct(keys, "type", "pass-fail", _TYPES))
    for pair in _EXCLUDE:
        if types.issuperset(pair):
            raise keys.wrong("type", sorted(types), f"without {pair[0]} or without {pair[1]}")
    languages = _distinct(
        keys, "languages", "all", ("all", *_LANGUAGES, *(each.package_code for each in LANGUAGES.values()))
    )
    constants = keys.inner("constants")
    values = {name: constants.text(name) for name in list(constants.left)}
    if wrong := next((name for name in values if not _CONSTANT.fullmatch(name)), None):
        raise keys.wrong("constants", wrong, "a name of letters, digits and _ that does not begin with a digit")
    notes = []
    if not keys.flag("allow_file_writing", default=False):
        notes.append("allow_file_writing is false, and not enforced: a program may write in its own work directory")
    limits = keys.inner("limits")
    multipliers = limits.inner("time_multipliers")
    ac, tle = (
        multipliers.number(name, value, low=1)
        for name, value in (("ac_to_time_limit", 2.0), ("time_limit_to_tle", 1.5))
    )
    multipliers.done()
    fixed, resolution = limits.number("time_limit", None, low=0.001), limits.number("time_resolution", 1.0, low=0.001)
    by = "problem.yaml" if fixed is not None else ""
    if fixed is None:
        fixed, by = _fixed_beside(package)
    bounds, more = _read_bounds(limits, types)
    limits.done()
    keys.done()
    return Settings(
        version, frozenset(types), Timing(fixed, by, ac, tle, resolution), bounds, None, "scoring" in types, (), False,
        None if "all" in languages else languages, values, {}, (*notes, *more),
    )  # fmt: skip


def _distinct(keys: Keys, name: str, default: str, known: Collection[str]) -> tuple[str, ...]:
    """One text, or a list of some: each known, none twice."""
    values = keys.texts(name, (default,), single=True)
    for value in values:
        if value not in known:
            raise keys.wrong(name, value, f"one of {', '.join(known)}")
    if not values or len(set(values)) < len(values):
        raise keys.wrong(name, list(values), "one or more, each once")
    return values


def _read_bounds(limits: Keys, types: set[str]) -> tuple[SubmissionLimits, list[str]]:
    """Defaults are those that the format calls typical, save that an interactor may say more than 8 MiB."""
    notes = [
        f"limits.{name} is given, and not followed: compilers have limits of their own here"
        for name in ("compilation_time", "compilation_memory")
        if limits.whole(name, None) is not None
    ]
    if "multi-pass" not in types:
        limits.refuse("validation_passes", why="it is for problems of type multi-pass")
    bounds = SubmissionLimits(
        memory_bytes=limits.whole("memory", 2048) * MIB,
        output_bytes=limits.whole("output", 8) * MIB,
        code_bytes=limits.whole("code", 128) * 1024,
        passes=limits.whole("validation_passes", 2, low=2) if "multi-pass" in types else 1,
        validation=Limits(
            cpu_s=limits.whole("validation_time", 60),
            memory_bytes=limits.whole("validation_memory", 2048) * MIB,
            output_bytes=limits.whole("validation_output", 64) * MIB,
        ),
    )
    return bounds, notes
