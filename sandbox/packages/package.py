"""A package as read from disk: settings, test data, the program that decides, the submissions.

directory ──▶ Package ── problem() ──▶ sandbox.Problem, which a Judge judges programs by
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandbox.core.nouns import Case, Limits, Program
from sandbox.core.problem import Problem
from sandbox.errors import InvalidProblem
from sandbox.packages.cases import read_cases
from sandbox.packages.expectations import Author
from sandbox.packages.inputs import InputValidator, read_validators
from sandbox.packages.links import INPUT_VALIDATORS, check_followed, leaving_links
from sandbox.packages.programs import (
    Sources,
    Unsupported,
    case_files,
    language_of,
    make_program,
    read_include,
    read_sources,
    submission_name,
    submission_paths,
)
from sandbox.packages.settings import Settings, read_settings
from sandbox.packages.tree import CaseGroup, OldRules, OutputTest, TestCase, TestData


@dataclass(frozen=True, slots=True)
class Package:
    path: Path
    settings: Settings
    data: TestData
    validator: Program | None
    """The checker or interactor; None: the default output validator."""
    input_validators: tuple[InputValidator, ...]
    grader: Program | None
    author: Author
    leaving: frozenset[Path]
    """Links that lead out of the package, and are not followed."""
    notes: tuple[str, ...]
    """What has no effect here, or another than its author may think."""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def tree(self) -> CaseGroup:
        return self.data.tree

    @property
    def cases(self) -> tuple[TestCase, ...]:
        return tuple(self.tree.cases())

    @property
    def outputs(self) -> tuple[OutputTest, ...]:
        """Those of which its author knows the verdict, and that are not the answer itself before a comparison."""
        compared = self.validator is None
        return tuple(each for each in self.data.outputs if not compared or each.output != each.case.answer)

    def problem(self, cpu_s: float, answers: dict[str, str] | None = None) -> Problem:
        """Return the problem that submissions are judged by, its cases in the order of `cases`.

        Raises InvalidProblem. answers: of a submit-answer problem, by the cases' names; the program then finds its
        answer in a file.
        """
        return self._problem(cpu_s, tuple(self._case(case, (answers or {}).get(case.name)) for case in self.cases))

    def output_problem(self) -> Problem:
        """For a program that says what it finds in ANSWER_FILE: all of `outputs`. Raises InvalidProblem."""
        return self._problem(1.0, tuple(self._case(each.case, _text(each.output)) for each in self.outputs))

    def _problem(self, cpu_s: float, cases: tuple[Case, ...]) -> Problem:
        bounds = self.settings.bounds
        fields: dict[str, Any] = {"kind": "stdio", "compare": "kattis"}
        if self.validator is not None:
            fields |= {"convention": "kattis", "passes": bounds.passes, "referee_limits": bounds.validation}
            interactive = {"kind": "interactive", "compare": "tokens", "interactor": self.validator}
            fields |= interactive if self.settings.interactive else {"compare": "checker", "checker": self.validator}
        limits = Limits(cpu_s=cpu_s, memory_bytes=bounds.memory_bytes, output_bytes=bounds.output_bytes)
        return Problem(self.name, cases=cases, limits=limits, **fields)

    def _case(self, case: TestCase, answer: str | None) -> Case:
        files = case_files(case.files).items()
        texts = [(name, content.decode("utf-8", "surrogateescape")) for name, content in files]
        how: dict[str, Any] = {"arguments": case.arguments, "files": tuple(texts)}
        if answer is not None:
            how["files"] = ((ANSWER_FILE, answer),)
        if self.validator is not None:
            how["referee_arguments"] = case.validator_arguments
        elif case.validator_arguments:
            joined = isinstance(self.tree.rules, OldRules)
            arguments = _last_wins(case.validator_arguments) if joined else case.validator_arguments
            how["compare"] = f"kattis({' '.join(arguments)})"
        return Case(_text(case.input), _text(case.answer), **how)

    def submissions(self) -> Iterator[tuple[str, Path]]:
        """Yield names, relative to submissions/, and paths."""
        return ((submission_name(path), path) for path in submission_paths(self.path, self.leaving))

    def submission(self, sources: Sources, *, code: str = "", entry: str = "") -> Program:
        """Raises Unsupported, InvalidProgram."""
        language = language_of(sources, code)
        include = read_include(self.path, language)
        return make_program(sources, language, self.settings, include=include, entry=entry)


ANSWER_FILE: Final = "answer.out"
_ALONE: Final = ("problem.yaml", ".timelimit", "domjudge-problem.ini", "submissions/submissions.yaml")
_FOLDERS: Final = (
    *INPUT_VALIDATORS,
    *("attachments", "data", "generators", "include", "static_validator"),
    *("input_visualizer", "input_visualizers", "output_validator", "output_validators", "output_visualizer"),
    *("output_visualizers", "problem_statement", "solution", "solutions", "statement", "submissions"),
)


def read_package(path: Path) -> Package:
    """Raises InvalidProblem for what is wrong or not supported and judging depends on, ToolchainMissing without
    PyYAML, OSError.
    """
    notes: list[str] = []
    leaving = leaving_links(path, notes)
    for name in (*_ALONE, "include", "submissions"):
        check_followed(path / name, [link for link in leaving if name != "submissions" or link == path / name])
    settings = read_settings(path)
    data = read_cases(path, settings, leaving)
    validator, more = _validator(path, settings, leaving)
    input_validators, unused = read_validators(path, settings, data, leaving)
    if (path / "static_validator").exists():
        more.append("static_validator/ is not used: no test group asks for it")
    if settings.talks and validator is None:
        raise InvalidProblem(f"{path}: is interactive or multi-pass, but has no output validator")
    old = isinstance(data.tree.rules, OldRules)
    grader = _only_program(path / "graders", settings, "grader", leaving) if old else None
    author = Author(path, settings, data.tree, [submission_name(each) for each in submission_paths(path, leaving)])
    notes += (*settings.notes, *data.notes, *more, *unused, *_strangers(path, settings, data), *author.notes)
    said = tuple(dict.fromkeys(note.removeprefix(f"{path}/") for note in notes))
    package = Package(path, settings, data, validator, input_validators, grader, author, leaving, said)
    package.problem(1.0)  # so that arguments and answers are checked before anything is run
    return package


def _strangers(path: Path, settings: Settings, data: TestData) -> Iterator[str]:
    """Note directories with unknown names: one may be misspelled."""
    known = (*_FOLDERS, "graders") if isinstance(data.tree.rules, OldRules) else _FOLDERS
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and folder.name[0] not in "._-" and folder.name not in known and not folder.is_symlink():
            yield f"{folder.name}/ is no directory of this version of the format, and not looked at"
    if settings.legacy and (path / "submissions" / "submissions.yaml").exists():
        yield "submissions/submissions.yaml is not of this version of the format, and not looked at"


def _validator(path: Path, settings: Settings, leaving: frozenset[Path]) -> tuple[Program | None, list[str]]:
    """The program in output_validators/ (legacy) or output_validator/, where it is to be used."""
    names = ("output_validators", "output_validator") if settings.legacy else ("output_validator", "output_validators")
    folders = [path / name for name in names if (path / name).is_dir()]
    if settings.custom_validator is False:
        return None, [f"{folder.name}/ is not used: validation is default" for folder in folders]
    check_followed(path / names[0], leaving)
    if not folders:
        if settings.custom_validator:
            raise InvalidProblem(f"{path}: validation is custom, but there is no {names[0]}/")
        return None, []
    program = _only_program(folders[0], settings, "output validator", leaving)
    if program is None:
        raise InvalidProblem(f"{folders[0]}: holds no program")
    return program, [
        f"{folder.name}/ is not used: this version of the format has {names[0]}/" for folder in folders[1:]
    ]


def _only_program(folder: Path, settings: Settings, role: str, leaving: frozenset[Path]) -> Program | None:
    """The one program in a directory: a file, a directory, or the directory itself."""
    check_followed(folder, leaving)
    if not folder.is_dir():
        return None
    entries = [
        path for path in sorted(folder.iterdir()) if path.name[0] not in ".-" and not path.name.startswith("README")
    ]
    if not entries:
        return None
    programs = [path for path in entries if path.is_dir() or _is_program(path)]
    whole = not settings.legacy and len(entries) > 1
    if len(programs) > 1 and not whole:
        names = ", ".join(path.name for path in programs)
        raise InvalidProblem(f"{folder}: {names}: more than one {role} is not supported")
    alone = whole or not programs or (len(entries) > 1 and programs[0].is_file())
    sources = read_sources(folder if alone else programs[0])
    for script in ("build", "run"):
        if script in sources.files:
            raise InvalidProblem(
                f"{sources.path}: {role}s with a script {script!r} are not supported: give the sources alone"
            )
    try:
        return make_program(sources, language_of(sources), settings)
    except Unsupported as error:
        raise InvalidProblem(f"{sources.path}: the {role} cannot be run: {error}") from error


def _is_program(path: Path) -> bool:
    if not path.is_file():
        return False  # a pipe, for one, which nobody may write to
    try:
        language_of(Sources(path, {path.name: path.read_bytes()[:100]}))
    except Unsupported:
        return False
    return True


def _last_wins(arguments: tuple[str, ...]) -> list[str]:
    """Legacy flags of problem and group one after the other, as the default validator reads them."""
    found: dict[str, list[str]] = {}
    left = list(arguments)
    while left:
        name = left.pop(0)
        if name == "float_tolerance":
            found.pop("float_absolute_tolerance", None)
            found.pop("float_relative_tolerance", None)
        values = [left.pop(0)] if name.endswith("_tolerance") and left else []
        if name in ("float_absolute_tolerance", "float_relative_tolerance") and "float_tolerance" in found:
            both = found.pop("float_tolerance")
            other = {"float_absolute_tolerance", "float_relative_tolerance"} - {name}
            found[other.pop()] = both
        found[name] = values
    return [part for name, values in found.items() for part in (name, *values)]


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")
