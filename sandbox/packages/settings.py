"""problem.yaml of the four versions of the format, as one data type.

legacy, legacy-icpc      validation, validator_flags, grading, limits.time_multiplier ...
2023-07-draft, 2025-09   type, limits.time_limit, limits.time_multipliers, constants, languages ...
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox.core.nouns import MIB, Limits
from sandbox.errors import InvalidProblem
from sandbox.languages.table import LANGUAGES
from sandbox.packages.documents import NUMBER_MAX, Keys, load_yaml, quoted_briefly

LEGACY: Final = ("legacy", "legacy-icpc")
NEW: Final = ("2023-07-draft", "2025-09")
_ALIASES: Final = {"2023-07": "2023-07-draft", "2025-09-draft": "2025-09"}
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
_SEQUENCE: Final = re.compile(r"\{\{([a-zA-Z_][a-zA-Z0-9_]*(?:\.[a-zA-Z0-9_]+)?)\}\}")
_SILENT: Final = (  # irrelevant for judging
    *("name", "uuid", "source", "source_url", "license", "rights_owner", "keywords"),
    *("author", "version", "credits", "embargo_until"),
)
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
    """None: custom where there is one."""
    validator_flags: tuple[str, ...]
    minimise: bool
    languages: tuple[str, ...] | None
    """Codes of those allowed; None means all."""
    constants: dict[str, str]
    old_group_keys: dict[str, object]
    """Keys of test groups that the oldest packages have in problem.yaml."""
    notes: tuple[str, ...] = ()
    """What has no effect here, or another than the version of the format has."""

    @property
    def legacy(self) -> bool:
        return self.version in LEGACY

    def fill_in(self, text: str) -> str:
        """Return a text with the package's constants in their places: {{NAME}}, {{NAME.VARIANT}}."""
        return _SEQUENCE.sub(lambda found: self.constants.get(found[1], found[0]), text) if self.constants else text

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
    """Raises InvalidProblem for a version or value that is not known or not supported, where judging depends on it."""
    path = package / "problem.yaml"
    if not path.is_file():
        raise InvalidProblem(f"{package}: has no problem.yaml; give the directory of a problem package")
    keys = load_yaml(path, [])
    version = keys.text("problem_format_version", "legacy")
    if version in _ALIASES:
        keys.note(f"problem_format_version {version!r} is read as {_ALIASES[version]!r}")
    version = _ALIASES.get(version, version)
    if version not in (*LEGACY, *NEW):
        raise keys.wrong("problem_format_version", version, f"one of {', '.join((*LEGACY, *NEW))}")
    keys.skip(*_SILENT)
    legacy = version in LEGACY
    types = _types(keys, legacy)
    custom = _validation(keys, legacy, types)
    flags = words(keys.text("validator_flags"))
    if flags and not legacy:
        keys.note("validator_flags is of version legacy, and followed")
    minimise, old = _grading(keys, legacy)
    languages, constants = _new_keys(keys, legacy)
    timing, bounds = _limits(package, keys, legacy, types)
    keys.done()
    return Settings(
        version, frozenset(types), timing, bounds, custom, flags, minimise, languages, constants, old,
        tuple(keys.notes),
    )  # fmt: skip


def words(text: str) -> tuple[str, ...]:
    """Arguments in one text, as a shell splits it; where a quote is not closed, at white space."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


def _types(keys: Keys, legacy: bool) -> set[str]:
    types = set(_words_of(keys, "type", "pass-fail"))
    for word in sorted(types.difference(_TYPES)):
        raise keys.wrong("type", word, f"one of {', '.join(_TYPES)}")
    for pair in _EXCLUDE:
        if types.issuperset(pair):
            raise keys.wrong("type", sorted(types), f"without {pair[0]} or without {pair[1]}")
    if legacy and (later := sorted(types - {"pass-fail", "scoring"})):
        keys.note(f"type {' '.join(later)} is of later versions, and followed")
    return types


def _validation(keys: Keys, legacy: bool, types: set[str]) -> bool | None:
    """Whether the output validator is the package's own; None where that is not said. Adds to `types`."""
    found = _validation_words(keys) or (["default"] if legacy else [])
    if not found:
        return None
    if not legacy:
        keys.note("validation is of version legacy, and followed")
    if found[0] not in ("default", "custom") or (found[0] == "default" and len(found) > 1):
        raise keys.wrong("validation", " ".join(found), "default, or custom with any of score, interactive, multi-pass")
    for word in found[1:]:
        if word not in ("score", "interactive", "multi-pass"):
            raise keys.wrong("validation", word, "one of score, interactive, multi-pass")
    if "score" in found and "scoring" not in types:
        keys.note("validation: score has no effect: the problem's type is not scoring")
    types |= {word for word in found[1:] if word != "score"}
    talks = not types.isdisjoint(("interactive", "multi-pass"))
    return found[0] == "custom" or talks


def _validation_words(keys: Keys) -> list[str]:
    """One text or, in an early draft, a map of words to whether they hold."""
    if not isinstance(keys.left.get("validation"), dict):
        return keys.text("validation").split()
    inner = keys.inner("validation")
    names = {"score": "scoring", "interactive": "interactive", "multi-pass": "multipass"}
    found = [word for word, name in names.items() if inner.flag(name, default=False)]
    inner.done()
    return ["custom", *found]


def _grading(keys: Keys, legacy: bool) -> tuple[bool, dict[str, object]]:
    """Whether the lowest score is the best, and the keys of test groups that the oldest packages have here."""
    if not legacy:
        keys.without_effect("grading", why="it is of version legacy")
        return False, {}
    grading = keys.inner("grading")
    minimise = grading.choice("objective", "max", ("max", "min")) == "min"
    grading.skip("show_test_data_groups")
    old = {name: grading.take(name) for name in ("on_reject", "accept_score", "reject_score", "range")}
    grading.done()
    return minimise, {name: value for name, value in old.items() if value is not None}


def _new_keys(keys: Keys, legacy: bool) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """Languages and constants."""
    if legacy:
        keys.without_effect("languages", "constants", "allow_file_writing", why="it is of later versions")
        return None, {}
    languages = _words_of(keys, "languages", "all")
    known = ("all", *_LANGUAGES, *(each.package_code for each in LANGUAGES.values()))
    for name in languages:
        if name not in known:
            keys.note(f"languages: {quoted_briefly(name)} is no language of the format, so no submission is in it")
    writing = keys.left.get("allow_file_writing")
    keys.skip("allow_file_writing")
    if writing not in (None, True, False):
        keys.note(f"allow_file_writing: {quoted_briefly(writing)} is neither true nor false, and has no effect")
    if not writing:
        keys.note("allow_file_writing is false, and not enforced: a program may write in its own work directory")
    return None if "all" in languages else languages, _constants(keys.inner("constants"))


def _constants(keys: Keys) -> dict[str, str]:
    """Values by NAME, and by NAME.VARIANT where a constant is written in several ways."""
    found: dict[str, str] = {}
    for name in list(keys.left):
        if not _CONSTANT.fullmatch(name):
            keys.skip(name)
            keys.note(f"{quoted_briefly(name)} is no name of letters, digits and _, and stands for nothing")
        elif isinstance(keys.left[name], dict):
            inner = keys.inner(name)
            found |= {name if each == "value" else f"{name}.{each}": inner.text(each) for each in list(inner.left)}
        else:
            found[name] = keys.text(name)
    return found


def _words_of(keys: Keys, name: str, default: str) -> tuple[str, ...]:
    """Words, or a list of some. One that is there twice counts once."""
    values = tuple(dict.fromkeys(word for text in keys.texts(name, (default,), single=True) for word in text.split()))
    if not values:
        raise keys.wrong(name, [], "one or more")
    return values


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


def _limits(package: Path, keys: Keys, legacy: bool, types: set[str]) -> tuple[Timing, SubmissionLimits]:
    """The keys of all versions, with the defaults of this one."""
    limits = keys.inner("limits")
    foreign = (
        ("time_limit", "time_resolution", "time_multipliers") if legacy else ("time_multiplier", "time_safety_margin")
    )
    for name in foreign:
        if limits.left.get(name) is not None:
            limits.note(f"{name} is of {'later versions' if legacy else 'version legacy'}, and followed")
    in_draft = isinstance(limits.left.get("time_multiplier"), dict)
    inner = limits.inner("time_multiplier" if in_draft else "time_multipliers")
    ac, tle = (
        inner.number(new, limits.number(old, value, low=1), low=1)
        for new, old, value in (
            ("ac_to_time_limit", "time_multiplier", 5.0 if legacy else 2.0),
            ("time_limit_to_tle", "time_safety_margin", 2.0 if legacy else 1.5),
        )
    )
    inner.done()
    fixed, resolution = limits.number("time_limit", None, low=0.001), limits.number("time_resolution", 1.0, low=0.001)
    by = "problem.yaml"
    if fixed is None:
        fixed, by = _fixed_beside(package)
    bounds = _bounds(limits, types)
    limits.done()
    return Timing(fixed, by, ac, tle, resolution), bounds


def _bounds(limits: Keys, types: set[str]) -> SubmissionLimits:
    """Defaults are those that the format calls typical, save that an interactor may say more than 8 MiB."""
    limits.without_effect("compilation_time", "compilation_memory", why="compilers have limits of their own here")
    if "multi-pass" not in types:
        limits.without_effect("validation_passes", why="it is for problems of type multi-pass")
    return SubmissionLimits(
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
