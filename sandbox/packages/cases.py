"""The test data of a package: a tree of groups, and cases as its leaves, in the order in which they are used.

    data/ ──▶ CaseGroup("") ── sample, secret ──▶ CaseGroup ... ──▶ TestCase(name, input, answer, arguments)

Two kinds of settings: testdata.yaml (legacy; 2023-07-draft where there is one) nests to any depth and is inherited key
by key; test_group.yaml (2025-09) is for sample, secret and the groups of secret, and only arguments are inherited.
What nobody judges by is noted and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandbox.core.plain import strange_encoding
from sandbox.errors import InvalidProblem
from sandbox.packages.documents import Keys, load_yaml
from sandbox.packages.links import check_followed
from sandbox.packages.settings import Settings, words
from sandbox.packages.tree import CaseGroup, NewRules, OldRules, OutputTest, TestCase, TestData

_INVALID_INPUT: Final = ("invalid_input", "invalid_inputs")
_OUTPUTS: Final = {"valid_output": True, "valid_outputs": True, "invalid_output": False, "invalid_outputs": False}
_NOT_JUDGED: Final = ("invalid_answers", "bad")
_SCORED: Final = ("max_score", "score_aggregation", "require_pass")
_NAME: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,254}")
_FLAGS: Final = (
    *("worst_error", "first_error", "always_accept", "sum", "avg", "min", "max"),
    *("ignore_sample", "accept_if_any_accepted"),
)
_DRAFT: Final = "it is of an early draft; use max_score and score_aggregation"
_READ: Final = (".in", ".ans", ".out", ".yaml", ".files")
_LINKS_MAX: Final = 1000


def read_cases(package: Path, settings: Settings, leaving: frozenset[Path] = frozenset()) -> TestData:
    """Read data/. Raises InvalidProblem.

    leaving: links that lead out of the package, and are not followed.
    """
    data = package / "data"
    if data in leaving:
        check_followed(data, leaving)
    if not data.is_dir():
        raise InvalidProblem(f"{package}: has no directory data/")
    old = settings.legacy or (settings.version == "2023-07-draft" and any(data.rglob("testdata.yaml")))
    if old and not settings.legacy and any(data.rglob("test_group.yaml")):
        raise InvalidProblem(f"{data}: holds testdata.yaml and test_group.yaml; keep one of the two kinds")
    reader = _OldReader(data, settings, leaving) if old else _NewReader(data, settings, leaving)
    tree = reader.tree()
    if not any(tree.cases()):
        raise InvalidProblem(f"{data}: has no test case: a file X.in with X.ans beside it")
    reader.notes += [
        f"data/{file.relative_to(data)} {strange}: no program prints that, or reads it without more"
        for case in tree.cases()
        for file in (case.input, case.answer)
        if (strange := _encoding(file))
    ]
    reader.notes += [
        f"data/{case.name}.in: other judges pass over a name of anything but letters, digits, _ . and -"
        for case in tree.cases()
        if not all(map(_NAME.fullmatch, case.name.split("/")))
    ]
    if isinstance(reader, _OldReader):
        return TestData(tree, (), (), tuple(reader.notes))
    return TestData(tree, tuple(reader.invalid()), tuple(reader.outputs(tree)), tuple(reader.notes))


def _encoding(file: Path) -> str:
    """What is strange about the encoding of a file; "" for nothing."""
    with file.open("rb") as content:
        return strange_encoding(content.read(4).decode("utf-8", "surrogateescape"))


@dataclass(slots=True)
class _Reader:
    data: Path
    settings: Settings
    leaving: frozenset[Path]
    notes: list[str] = field(default_factory=list)
    linked: int = 0

    def entries(self, directory: Path) -> list[Path]:
        """What is in a directory, by name. Raises InvalidProblem where links make it endless."""
        if directory.is_symlink():
            self.linked += 1
            if self.linked > _LINKS_MAX:
                raise InvalidProblem(f"{self.data}: symbolic links lead to more than {_LINKS_MAX} directories")
            if any(directory.samefile(parent) for parent in directory.parents if parent.is_relative_to(self.data)):
                raise InvalidProblem(f"{directory}: is a symbolic link to a directory that it lies in")
        found = sorted(path for path in directory.iterdir() if path.name[0] not in ".-")
        for path in found:
            if path.suffix == ".files" or (path in self.leaving and self._is_read(path)):
                check_followed(path, self.leaving)
        return found

    def _is_read(self, path: Path) -> bool:
        """Whether a link is read or entered here, or was to be: what it shows is not known."""
        maybe_folder = path.is_dir() or not (path.suffix or path.is_file())
        return path.suffix in _READ or path.name in ("sample", "secret") or maybe_folder

    def load(self, path: Path) -> Keys:
        if path in self.leaving:
            check_followed(path, self.leaving)
        return load_yaml(path, self.notes) if path.is_file() else Keys(str(path), {}, self.notes)

    def case(self, path: Path, *, answers: bool = True, **how: Any) -> TestCase:
        answer = path.with_suffix(".ans")
        if not path.is_file():
            raise InvalidProblem(f"{path}: is no file")
        if answers and not answer.is_file():
            raise InvalidProblem(f"{path}: has no answer file {answer.name} beside it")
        return TestCase(str(path.relative_to(self.data).with_suffix("")), path, answer, **how)

    def note(self, path: Path, text: str) -> None:
        self.notes.append(f"data/{path.relative_to(self.data)} {text}")

    def note_strays(self, entries: list[Path], *endings: str) -> None:
        """Note what belongs to a test case that is not there."""
        for path in entries:
            if path.suffix in endings and path.name != "test_group.yaml" and not path.with_suffix(".in").is_file():
                self.note(path, f"has no input file {path.with_suffix('.in').name} beside it, and is not used")


@dataclass(slots=True)
class _OldReader(_Reader):
    def tree(self) -> CaseGroup:
        return self._group(self.data, {})

    def _group(self, directory: Path, inherited: dict[str, Any]) -> CaseGroup:
        keys = self.load(directory / "testdata.yaml")
        merged = {**inherited, **keys.left, **self.settings.old_group_keys}
        keys.left = {name: value for name, value in merged.items() if value is not None}
        keys.skip("input_visualizer_args", "output_visualizer_args")
        how: dict[str, Any] = {"input_arguments": _old_flags(keys, "input")}
        rules, how["validator_arguments"] = self._rules(keys)
        below = {name: value for name, value in merged.items() if name in _OLD_KEYS}
        entries = self.entries(directory)
        self.note_strays(entries, ".ans")
        parts: list[CaseGroup | TestCase] = []
        for entry in entries:
            if entry.is_dir() and entry.suffix != ".files":
                if directory == self.data and entry.name in (*_NOT_JUDGED, *_INVALID_INPUT, *_OUTPUTS):
                    self.note(entry, "is for validators, and not used")
                else:
                    parts.append(self._group(entry, below))
            elif entry.suffix == ".in":
                parts.append(self.case(entry, **how))
            elif entry.name == "test_group.yaml":
                self.note(entry, "is of later versions, and not looked at")
        name = "" if directory == self.data else str(directory.relative_to(self.data))
        return CaseGroup(name, rules, tuple(part for part in parts if isinstance(part, TestCase) or any(part.cases())))

    def _rules(self, keys: Keys) -> tuple[OldRules, tuple[str, ...]]:
        """Return the rules, and the arguments of the output validator."""
        if self.settings.scoring:
            keys.refuse("scoring", why=_DRAFT)
        stop = keys.choice("on_reject", "break", ("break", "continue", "first_error", "worst_error", "grade"))
        custom = keys.choice("grading", "default", ("default", "custom")) == "custom"
        text = keys.text("grader_flags")
        flags = tuple((text if custom else text.replace(",", " ")).split())
        for flag in flags:
            if not custom and flag not in _FLAGS:
                raise keys.wrong("grader_flags", flag, f"one of {', '.join(_FLAGS)}")
        named = _old_flags(keys, "output")  # by name, but there is one output validator, so no choice
        own = tuple(flag for flags in named.values() for flag in flags)
        accept, reject = keys.number("accept_score", 1.0), keys.number("reject_score", 0.0)
        low, high = _range(keys)
        keys.done()
        breaks = stop in ("break", "first_error")
        rules = OldRules(breaks, custom, flags, accept, reject, low, high)
        return rules, (*self.settings.validator_flags, *own)


_OLD_KEYS: Final = (
    *("on_reject", "grading", "grader_flags", "input_validator_flags", "output_validator_flags"),
    *("input_validator_args", "output_validator_args", "accept_score", "reject_score", "range"),
)


def _old_flags(keys: Keys, role: str) -> dict[str, tuple[str, ...]]:
    """Flags of each validator, under "", or of the one that is named; ..._args is their name in a draft."""
    name = f"{role}_validator_args" if keys.has(f"{role}_validator_args") else f"{role}_validator_flags"
    if isinstance(keys.left.get(name), dict):
        inner = keys.inner(name)
        found = {inner.text("name"): words(inner.text("flags"))}
        inner.done()
        return found
    return {"": _arguments(keys, name)}


def _arguments(keys: Keys, name: str) -> tuple[str, ...]:
    """A list of texts, or one text of several words."""
    return keys.texts(name) if isinstance(keys.left.get(name), list) else words(keys.text(name))


def _range(keys: Keys) -> tuple[float, float]:
    value = keys.text("range", "-inf +inf").split()
    if len(value) != 2:
        raise keys.wrong("range", " ".join(value), "two numbers")
    low, high = (keys.as_number("range", part) for part in value)
    if low > high:
        raise keys.wrong("range", " ".join(value), "two numbers, the lower one first")
    return low, high


@dataclass(slots=True)
class _NewReader(_Reader):
    def tree(self) -> CaseGroup:
        flags = self.settings.validator_flags
        how = self._unscored(self.data, {"output_validator_args": flags} if flags else {})
        parts = []
        for entry in self.entries(self.data):
            if entry.name in ("sample", "secret") and entry.is_dir():
                parts.append(self._sample(entry, how) if entry.name == "sample" else self._secret(entry, how))
            elif entry.name in (*_NOT_JUDGED, *(_OUTPUTS if self.settings.talks else ())):
                self.note(entry, "is for validators, and not used")
            elif entry.suffix == ".in" or (entry.is_dir() and entry.name not in (*_INVALID_INPUT, *_OUTPUTS)):
                self.note(entry, "is neither in sample/ nor in secret/, and not used")
        full = [part for part in parts if any(part.cases())]
        if not any(part.name == "secret" for part in full):
            if self.settings.scoring:
                raise InvalidProblem(f"{self.data / 'secret'}: holds no test case, and the score is that of secret")
            self.note(self.data / "secret", "holds no test case, so the samples alone decide")
        tree = CaseGroup("", NewRules("pass-fail", None), tuple(full))
        _check_required(self.data, tree)
        return tree

    def invalid(self) -> Iterator[TestCase]:
        for name in _INVALID_INPUT:
            yield from self._of_validators(self.data / name, answers=False)

    def outputs(self, tree: CaseGroup) -> Iterator[OutputTest]:
        """Return the output tests of the author and those that the samples define."""
        if self.settings.talks:
            return
        for name, valid in _OUTPUTS.items():
            for case in self._of_validators(self.data / name, answers=True):
                if (output := case.input.with_suffix(".out")).is_file():
                    yield OutputTest(case, output, valid)
                else:
                    self.note(case.input, f"has no output file {output.name} beside it, and is not used")
        for case in tree.cases():
            shown = case.input.with_suffix(".out")
            if case.name.startswith("sample/") and not case.input.with_suffix(".ans.statement").exists():
                yield OutputTest(case, shown if shown.is_file() else case.answer, True)

    def _of_validators(self, folder: Path, *, answers: bool) -> Iterator[TestCase]:
        """Cases that no submission is judged by: what is wrong with one is noted."""
        for directory in sorted({path.parent for path in folder.rglob("*.in")}):
            try:
                yield from self._cases(directory, self._unscored(directory, {}), answers=answers, below=False)
            except InvalidProblem as error:
                self.notes.append(f"{error}; what is in {directory.relative_to(self.data.parent)} is not used")

    def _sample(self, directory: Path, inherited: dict[str, Any]) -> CaseGroup:
        cases = self._cases(directory, self._unscored(directory, inherited))
        return CaseGroup("sample", NewRules("pass-fail", None), tuple(cases))

    def _unscored(self, directory: Path, inherited: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of cases in a directory that has no score of its own."""
        keys, how = self._keys(directory, inherited)
        name = directory.relative_to(self.data)
        if self.settings.scoring and name.parts[:1] != ("sample",):
            keys.refuse(*_SCORED, why="this directory has no score; put it into secret or a group of secret")
        keys.without_effect(*_SCORED, why="there is no score here")
        keys.done()
        return how

    def _secret(self, directory: Path, inherited: dict[str, Any]) -> CaseGroup:
        keys, how = self._keys(directory, inherited)
        rules = self._rules(keys, 100.0, "sum")
        entries = self.entries(directory)
        groups = [entry for entry in entries if entry.is_dir() and entry.suffix != ".files"]
        here = self._cases(directory, how, below=False)
        if here and groups and self.settings.scoring:
            raise InvalidProblem(
                f"{directory}: holds test cases beside the group {groups[0].name!r}; use one or the other"
            )
        if here and groups:
            self.note(directory, f"holds test cases beside the group {groups[0].name!r}; both are used")
        parts: list[CaseGroup | TestCase] = [*here, *(self._group(entry, how, rules) for entry in groups)]
        full = [part for part in parts if isinstance(part, TestCase) or part.parts]
        return CaseGroup("secret", rules, tuple(sorted(full, key=_file)))

    def _group(self, directory: Path, inherited: dict[str, Any], above: NewRules) -> CaseGroup:
        keys, how = self._keys(directory, inherited)
        rules = self._rules(keys, None, "pass-fail")
        if self.settings.scoring:
            if rules.max_score is None and above.max_score is not None:
                raise InvalidProblem(f"{keys.where}: max_score is missing: secret has one of {above.max_score:g}")
            if above.aggregation == "pass-fail" and rules.aggregation != "pass-fail":
                raise InvalidProblem(f"{keys.where}: score_aggregation must be pass-fail, as that of secret")
        cases = self._cases(directory, how)
        if not cases and self.settings.scoring:
            raise InvalidProblem(
                f"{directory}: holds no test case, so every program would pass it; add X.in with X.ans"
            )
        if not cases:
            self.note(directory, "holds no test case, and is not used")
        return CaseGroup(str(directory.relative_to(self.data)), rules, tuple(cases))

    def _keys(self, directory: Path, inherited: dict[str, Any]) -> tuple[Keys, dict[str, Any]]:
        """The settings of a directory, and the arguments of its cases."""
        keys = self.load(directory / "test_group.yaml")
        if (directory / "testdata.yaml").is_file():
            self.note(directory / "testdata.yaml", "is of another version, and not looked at")
        return keys, self._how(keys, inherited)

    def _how(self, keys: Keys, inherited: dict[str, Any]) -> dict[str, Any]:
        keys.skip("input_visualizer_args", "output_visualizer_args", "full_feedback", "hint", "description")
        keys.refuse("static_validation_score", "static_validator_args", why="there are no static validators here")
        if keys.left.get("static_validation") is not False:
            keys.refuse("static_validation", why="there are no static validators here")
        keys.skip("static_validation")
        if self.settings.scoring:
            keys.refuse("scoring", why=_DRAFT)
        keys.without_effect("scoring", why="the problem's type is not scoring")
        found = dict(inherited)
        for name in ("args", "output_validator_args"):
            if keys.has(name):
                found[name] = tuple(map(self.settings.fill_in, _arguments(keys, name)))
        if isinstance(keys.left.get("input_validator_args"), dict):
            named = keys.inner("input_validator_args")
            found["input_validator_args"] = {name: named.texts(name) for name in list(named.left)}
        elif keys.has("input_validator_args"):
            found["input_validator_args"] = {"": _arguments(keys, "input_validator_args")}
        return found

    def _rules(self, keys: Keys, max_score: float | None, aggregation: str) -> NewRules:
        if not self.settings.scoring:
            keys.without_effect(*_SCORED, why="the problem's type is not scoring")
            keys.done()
            return NewRules("pass-fail", None)
        if keys.left.get("max_score") == "unbounded":
            keys.skip("max_score")
            max_score = None
        max_score = keys.whole("max_score", max_score, low=0)
        aggregation = keys.choice("score_aggregation", aggregation, ("pass-fail", "sum", "min"))
        if aggregation == "pass-fail" and max_score is None:
            raise InvalidProblem(f"{keys.where}: max_score is missing: a group that is pass-fail has one")
        require = keys.texts("require_pass", single=True)
        keys.done()
        return NewRules(aggregation, max_score, require)

    def _cases(
        self, directory: Path, how: dict[str, Any], *, answers: bool = True, below: bool = True
    ) -> list[TestCase]:
        """The cases of a directory and, with `below`, of those in it."""
        entries = self.entries(directory)
        self.note_strays([path for path in entries if path.name != "testdata.yaml"], ".ans", ".yaml", ".files")
        found = []
        for path in entries:
            if path.suffix == ".in" and not path.is_dir():
                found.append(self._new_case(path, how, answers=answers))
            elif below and path.is_dir() and path.suffix != ".files":
                found += self._cases(path, self._unscored(path, how), answers=answers)
        return found

    def _new_case(self, path: Path, how: dict[str, Any], *, answers: bool) -> TestCase:
        keys, files = self.load(path.with_suffix(".yaml")), path.with_suffix(".files")
        mine = self._how(keys, how)
        keys.done()
        return self.case(
            path,
            answers=answers,
            arguments=mine.get("args", ()),
            validator_arguments=mine.get("output_validator_args", ()),
            input_arguments=mine.get("input_validator_args", {}),
            files=files if files.is_dir() else None,
        )


def _file(part: CaseGroup | TestCase) -> str:
    return f"{part.name}.in" if isinstance(part, TestCase) else part.name


def _check_required(data: Path, tree: CaseGroup) -> None:
    """Check that each required group exists, comes before, and can be passed."""
    before: dict[str, CaseGroup] = {}
    for group in tree.groups():
        assert isinstance(group.rules, NewRules)
        for name in group.rules.require_pass:
            where = f"{data / group.name / 'test_group.yaml'}: require_pass: {name!r}"
            if group.name == "secret" and name != "sample":
                raise InvalidProblem(f"{where}: secret may require sample alone")
            if name not in before or name == "secret":
                raise InvalidProblem(f"{where}: must be sample, or a group of secret that comes before it")
            rules = before[name].rules
            if isinstance(rules, NewRules) and rules.aggregation != "pass-fail":
                raise InvalidProblem(f"{where}: its score_aggregation must be pass-fail, not {rules.aggregation}")
        before[group.name] = group
