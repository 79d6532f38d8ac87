"""A package as read from disk: problem.yaml of the legacy and the 2023-07 format (2025-09 has the same keys), test
cases and output validator.

directory ──▶ Package ── problem ──▶ a Judge judges programs by it
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandbox.core.nouns import MIB, Case, Limits, Program
from sandbox.core.problem import Problem
from sandbox.errors import InvalidProblem
from sandbox.languages.table import by_suffix
from sandbox.packages.documents import Keys, load_yaml, read_within
from sandbox.packages.programs import read_program

_VERSIONS: Final = ("legacy", "legacy-icpc", "2023-07", "2023-07-draft", "2025-09")
_TYPES: Final = ("pass-fail", "scoring", "multi-pass", "interactive")
_READ: Final = ("data", "data/sample", "data/secret", "output_validator", "output_validators", "submissions")
_ARGUMENTS: Final = ("output_validator_flags", "output_validator_args")
_TIMELIMIT_INI: Final = re.compile(r"""^\s*timelimit\s*=[\s'"]*([^\s'"]+)""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Package:
    path: Path
    version: str
    types: frozenset[str]
    names: tuple[str, ...]
    """Names of the test cases, relative to data/ and without a suffix, in the order of the problem's cases."""
    problem: Problem
    """`limits.cpu_s` is not yet the time limit."""
    time_limit: tuple[float, str] | None
    """CPU seconds, and where they are from; None: made of the slowest accepted submission."""
    ac_to_limit: float
    """Factor from the slowest accepted submission to the time limit."""
    resolution_s: float
    notes: tuple[str, ...]
    """Parts of the package that are not followed."""

    @property
    def legacy(self) -> bool:
        return self.version.startswith("legacy")


def read_package(path: Path) -> Package:
    """Raises InvalidProblem for a part that is wrong or not supported and that verdicts depend on, InvalidProgram for
    an output validator that cannot be run, ToolchainMissing without PyYAML, OSError.
    """
    notes: list[str] = []
    if not (path / "problem.yaml").exists():
        raise InvalidProblem(f"{path}: has no problem.yaml; give the directory of a problem package")
    keys = load_yaml(path / "problem.yaml", path, notes)
    version = " ".join(keys.words("problem_format_version")) or "legacy"
    if version not in _VERSIONS:
        raise keys.wrong("problem_format_version", version, f"one of {', '.join(_VERSIONS)}")
    legacy = version.startswith("legacy")
    types, custom = _types(keys, legacy)
    arguments, limits = keys.words("validator_flags"), keys.inner("limits")
    fixed = limits.number("time_limit", 0, 0)
    time_limit = (fixed, "problem.yaml") if fixed else _limit_beside(path)
    factors = limits.inner("time_multipliers")
    factor = factors.number("ac_to_time_limit", limits.number("time_multiplier", 5 if legacy else 2))
    resolution_s = limits.number("time_resolution", 1, 0.001)
    validator = _validator(path, legacy, custom, notes)
    fields = _referee(validator, types, limits)
    own = _limits(limits, 1, "memory", "output", 8)
    factors.done()
    limits.done()
    keys.done("constants")
    if "scoring" in types:
        notes.append("type scoring: scores are not computed; a program is accepted if it passes every test")
    cases = dict(_CaseReader(path, arguments if legacy else (), notes, custom=validator is not None).all(arguments))
    problem = Problem(path.resolve().name, cases=tuple(cases.values()), limits=own, **fields)
    unique = tuple(dict.fromkeys(notes))
    return Package(path, version, types, tuple(cases), problem, time_limit, factor, resolution_s, unique)


def _referee(validator: Program | None, types: frozenset[str], limits: Keys) -> dict[str, Any]:
    """Fields of the problem that choose the referee."""
    passes = int(limits.number("validation_passes", 2, 2)) if "multi-pass" in types else 1
    own = _limits(limits, limits.number("validation_time", 60), "validation_memory", "validation_output", 64)
    if validator is None:
        return {"kind": "stdio", "compare": "kattis"}
    fields = {"convention": "kattis", "passes": passes, "referee_limits": own}
    if "interactive" in types:
        return fields | {"kind": "interactive", "interactor": validator}
    return fields | {"kind": "stdio", "compare": "checker", "checker": validator}


def _types(keys: Keys, legacy: bool) -> tuple[frozenset[str], bool | None]:
    """Types of the problem, and whether the output validator is the package's own; None if that is not said."""
    types = set(keys.words("type")) or {"pass-fail"}
    for word in sorted(types.difference(_TYPES)):
        raise keys.wrong("type", word, f"one of {', '.join(_TYPES)}")
    kind, *more = keys.words("validation") or ("default" if legacy else "unsaid",)
    if kind not in ("unsaid", "default", "custom") or not {"score", "interactive", "multi-pass"}.issuperset(more):
        raise keys.wrong(
            "validation", " ".join((kind, *more)), "default, or custom with any of score, interactive, multi-pass"
        )
    types |= {word for word in more if word != "score"}
    if kind == "custom" or not types.isdisjoint(("interactive", "multi-pass")):
        return frozenset(types), True
    return frozenset(types), None if kind == "unsaid" else False


def _limits(keys: Keys, cpu_s: float, memory: str, output: str, output_mib: float) -> Limits:
    memory_bytes, output_bytes = (int(keys.number(*each) * MIB) for each in ((memory, 2048), (output, output_mib)))
    return Limits(cpu_s=cpu_s, memory_bytes=memory_bytes, output_bytes=output_bytes)


def _limit_beside(package: Path) -> tuple[float, str] | None:
    """A time limit in a file that judging systems leave beside problem.yaml."""
    for name in (".timelimit", "domjudge-problem.ini"):
        if (path := package / name).exists():
            text = read_within(path, package).decode("utf-8", "replace").strip()
            found = [text] if name == ".timelimit" else _TIMELIMIT_INI.findall(text)
            if found:
                return Keys(str(path), {"time limit": found[0]}, []).number("time limit", 0, 0.001), name
    return None


@dataclass(frozen=True, slots=True)
class _CaseReader:
    package: Path
    first: tuple[str, ...]
    """Arguments of the output validator before those of a group (legacy)."""
    notes: list[str]
    custom: bool

    def all(self, arguments: tuple[str, ...]) -> Iterator[tuple[str, Case]]:
        """Yield names and cases in the order of their names. Raises InvalidProblem, OSError."""
        include, data = self.package / "include", self.package / "data"
        if include.is_dir() and any(include.iterdir()):
            raise InvalidProblem(f"{include}: files beside every submission are not supported; put them into each")
        if not any((data / "sample").rglob("*.in")) and not any((data / "secret").rglob("*.in")):
            raise InvalidProblem(f"{data}: has no test case: a file X.in with X.ans beside it, in sample/ or secret/")
        there = [each for folder in (self.package, data) for each in folder.iterdir() if each.is_dir()]
        unread = {str(each.relative_to(self.package)) for each in there if each.name[0] not in "._-"}.difference(_READ)
        if unread:
            self.notes.append(f"folders not read: {', '.join(sorted(unread))}")
        arguments = self._of_folder(data, arguments)
        yield from self._cases(data / "sample", arguments)
        yield from self._cases(data / "secret", arguments)

    def _cases(self, folder: Path, above: tuple[str, ...]) -> Iterator[tuple[str, Case]]:
        if folder.is_symlink():
            raise InvalidProblem(f"{folder}: is a symbolic link to a directory; put the directory itself there")
        arguments = self._of_folder(folder, above)
        for path in sorted(folder.glob("[!.-]*")):
            if path.suffix == ".files" and path.is_dir():
                raise InvalidProblem(f"{path}: files beside a program are not supported")
            if path.suffix == ".in":
                yield str(path.relative_to(self.package / "data").with_suffix("")), self._case(path, arguments)
            elif path.is_dir():
                yield from self._cases(path, arguments)
            elif path.suffix == ".ans" and not path.with_suffix(".in").exists():
                self.notes.append(f"{path.relative_to(self.package)} has no input file beside it, and is not used")

    def _case(self, path: Path, arguments: tuple[str, ...]) -> Case:
        if not (answer := path.with_suffix(".ans")).exists():
            raise InvalidProblem(f"{path}: has no answer file {answer.name} beside it")
        given, expected = (
            read_within(each, self.package).decode("utf-8", "surrogateescape") for each in (path, answer)
        )
        arguments = self._of_file(path.with_suffix(".yaml"), arguments)
        if self.custom:
            return Case(given, expected, referee_arguments=arguments)
        return Case(given, expected, compare=f"kattis({' '.join(arguments)})" if arguments else None)

    def _of_folder(self, folder: Path, above: tuple[str, ...]) -> tuple[str, ...]:
        """Arguments of the output validator; a folder that names none takes those of the one above."""
        return self._of_file(folder / "test_group.yaml", self._of_file(folder / "testdata.yaml", above))

    def _of_file(self, path: Path, above: tuple[str, ...]) -> tuple[str, ...]:
        if not path.exists():
            return above
        keys = load_yaml(path, self.package, self.notes)
        given = any(name in keys.left for name in _ARGUMENTS)
        found = tuple(word for name in _ARGUMENTS for word in keys.words(name))
        keys.done("args", "static_validation", "static_validation_score", "static_validator_args")
        return (*self.first, *found) if given else above


def _validator(package: Path, legacy: bool, custom: bool | None, notes: list[str]) -> Program | None:
    """The program in output_validators/ (legacy) or output_validator/, if it is to be used."""
    names = ["output_validators", "output_validator"][:: 1 if legacy else -1]
    found = [package / name for name in names if (package / name).is_dir()]
    if custom is False or not found:
        if custom:
            raise InvalidProblem(f"{package}: validation is custom or the type needs it, but there is no {names[0]}/")
        notes.extend(f"{folder.name}/ is not used: validation is default" for folder in found)
        return None
    folder = found[0]
    entries = [each for each in sorted(folder.iterdir()) if each.name[0] not in ".-" and each.stem != "README"]
    if legacy and sum(each.is_dir() or by_suffix(each.suffix) is not None for each in entries) > 1:
        raise InvalidProblem(f"{folder}: more than one output validator is not supported")
    path = entries[0] if len(entries) == 1 else folder
    for script in ("build", "run"):
        if (path / script).exists():
            raise InvalidProblem(f"{path}: an output validator with a script {script!r} is not supported")
    return read_program(path, package)
