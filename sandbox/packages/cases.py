"""The test data of a package: a tree of groups, and cases as its leaves, in the order in which they are used.

    data/ ──▶ CaseGroup("") ── sample, secret ──▶ CaseGroup ... ──▶ TestCase(name, input, answer, arguments)

Two kinds of settings: testdata.yaml (legacy; 2023-07-draft where there is one) nests to any depth and is inherited key
by key; test_group.yaml (2025-09) is for sample, secret and the groups of secret, and only arguments are inherited.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandbox.errors import InvalidProblem
from sandbox.packages.documents import Keys, load_yaml
from sandbox.packages.settings import Settings
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


def read_cases(package: Path, settings: Settings) -> TestData:
    """Raises InvalidProblem."""
    data = package / "data"
    if not data.is_dir():
        raise InvalidProblem(f"{package}: has no directory data/")
    notes: list[str] = []
    old = settings.legacy or (settings.version == "2023-07-draft" and any(data.rglob("testdata.yaml")))
    reader = _OldReader(data, settings, notes) if old else _NewReader(data, settings, notes)
    tree = reader.tree()
    if not any(tree.cases()):
        raise InvalidProblem(f"{data}: has no test case: a file X.in with X.ans beside it")
    notes += [
        f"data/{case.name}.in: other judges pass over a name of anything but letters, digits, _ . and -"
        for case in tree.cases()
        if not all(map(_NAME.fullmatch, case.name.split("/")))
    ]
    if isinstance(reader, _OldReader):
        return TestData(tree, (), (), tuple(notes))
    return TestData(tree, tuple(reader.invalid()), tuple(reader.outputs(tree)), tuple(notes))


def _case(data: Path, path: Path, *, answers: bool = True, **how: Any) -> TestCase:
    answer = path.with_suffix(".ans")
    if answers and not answer.is_file():
        raise InvalidProblem(f"{path}: has no answer file {answer.name} beside it")
    return TestCase(str(path.relative_to(data).with_suffix("")), path, answer, **how)


def _visible(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name[0] not in ".-")


def _check_strays(directory: Path, *endings: str) -> None:
    """Raises InvalidProblem for what belongs to a test case that is not there."""
    for path in _visible(directory):
        if path.suffix in endings and path.name != "test_group.yaml" and not path.with_suffix(".in").is_file():
            raise InvalidProblem(f"{path}: has no input file {path.with_suffix('.in').name} beside it")


@dataclass(slots=True)
class _OldReader:
    data: Path
    settings: Settings
    notes: list[str]

    def tree(self) -> CaseGroup:
        return self._group(self.data, {})

    def _group(self, directory: Path, inherited: dict[str, Any]) -> CaseGroup:
        path = directory / "testdata.yaml"
        keys = load_yaml(path) if path.is_file() else Keys(str(path), {})
        merged = {**inherited, **keys.left, **self.settings.old_group_keys}
        keys.left = {name: value for name, value in merged.items() if value is not None}
        how: dict[str, Any] = {"input_arguments": _old_input_arguments(keys)}
        rules, how["validator_arguments"] = self._rules(keys)
        _check_strays(directory, ".ans")
        parts: list[CaseGroup | TestCase] = []
        for entry in _visible(directory):
            if entry.is_dir() and entry.suffix != ".files":
                if directory == self.data and entry.name in (*_NOT_JUDGED, *_INVALID_INPUT, *_OUTPUTS):
                    self.notes.append(f"data/{entry.name} is for validators, and not used")
                else:
                    parts.append(self._group(entry, merged))
            elif entry.suffix == ".in":
                parts.append(_case(self.data, entry, **how))
        name = "" if directory == self.data else str(directory.relative_to(self.data))
        return CaseGroup(name, rules, tuple(part for part in parts if isinstance(part, TestCase) or any(part.cases())))

    def _rules(self, keys: Keys) -> tuple[OldRules, tuple[str, ...]]:
        """Return the case's arguments and those of the output validator."""
        stop = keys.choice("on_reject", "break", ("break", "continue", "first_error", "worst_error", "grade"))
        custom = keys.choice("grading", "default", ("default", "custom")) == "custom"
        flags = tuple(keys.text("grader_flags").split())
        for flag in flags:
            if not custom and flag not in _FLAGS:
                raise keys.wrong("grader_flags", flag, f"one of {', '.join(_FLAGS)}")
        own = keys.take("output_validator_flags", "")
        if not isinstance(own, str):
            raise InvalidProblem(
                f"{keys.where}: output_validator_flags is not supported as a map with name and flags; give the flags"
            )
        accept, reject = keys.number("accept_score", 1.0), keys.number("reject_score", 0.0)
        low, high = _range(keys)
        keys.done()
        breaks = stop in ("break", "first_error")
        rules = OldRules(breaks, custom, flags, accept, reject, low, high)
        return rules, (*self.settings.validator_flags, *shlex.split(own))


def _old_input_arguments(keys: Keys) -> dict[str, tuple[str, ...]]:
    """Flags of each input validator, or of the one that is named."""
    if isinstance(keys.left.get("input_validator_flags"), dict):
        named = keys.inner("input_validator_flags")
        found = {named.text("name"): tuple(named.text("flags").split())}
        named.done()
        return found
    return {"": tuple(keys.text("input_validator_flags").split())}


def _range(keys: Keys) -> tuple[float, float]:
    value = keys.text("range", "-inf +inf").split()
    if len(value) != 2:
        raise keys.wrong("range", " ".join(value), "two numbers")
    low, high = (keys.as_number("range", part) for part in value)
    if low > high:
        raise keys.wrong("range", " ".join(value), "two numbers, the lower one first")
    return low, high


@dataclass(slots=True)
class _NewReader:
    data: Path
    settings: Settings
    notes: list[str]

    def tree(self) -> CaseGroup:
        if (stray := self.data / "test_group.yaml").exists():
            raise InvalidProblem(f"{stray}: is not supported here; put it into sample, secret or a group of secret")
        sample, secret = self.data / "sample", self.data / "secret"
        if not secret.is_dir():
            raise InvalidProblem(f"{self.data}: has no directory secret/")
        parts = [self._sample(sample)] if sample.is_dir() else []
        parts.append(self._secret(secret))
        for entry in _visible(self.data):
            if entry.name in (*_NOT_JUDGED, *(_OUTPUTS if self.settings.talks else ())):
                self.notes.append(f"data/{entry.name} is for validators, and not used")
            elif entry.suffix == ".in" or (
                entry.is_dir() and entry.name not in ("sample", "secret", *_INVALID_INPUT, *_OUTPUTS)
            ):
                raise InvalidProblem(f"{entry}: is not supported here; put it into sample or secret")
        full = [part for part in parts if any(part.cases())]
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
                if not (output := case.input.with_suffix(".out")).is_file():
                    raise InvalidProblem(f"{case.input}: has no output file {output.name} beside it")
                yield OutputTest(case, output, valid)
        for case in tree.cases():
            shown = case.input.with_suffix(".out")
            if case.name.startswith("sample/") and not case.input.with_suffix(".ans.statement").exists():
                yield OutputTest(case, shown if shown.is_file() else case.answer, True)

    def _of_validators(self, folder: Path, *, answers: bool) -> Iterator[TestCase]:
        for directory in sorted({path.parent for path in folder.rglob("*.in")}):
            keys, how = self._keys(directory, {})
            keys.done()
            yield from self._cases(directory, how, answers=answers, below=False)

    def _sample(self, directory: Path) -> CaseGroup:
        keys, how = self._keys(directory, {})
        keys.refuse(*_SCORED, why="sample has no score")
        keys.done()
        return CaseGroup("sample", NewRules("pass-fail", None), tuple(self._cases(directory, how)))

    def _secret(self, directory: Path) -> CaseGroup:
        keys, how = self._keys(directory, {})
        rules = self._rules(keys, 100.0, "sum")
        groups = [entry for entry in _visible(directory) if entry.is_dir() and entry.suffix != ".files"]
        here = any(entry.suffix == ".in" for entry in _visible(directory))
        if here and groups:
            raise InvalidProblem(
                f"{directory}: holds test cases beside the group {groups[0].name!r}; use one or the other"
            )
        _check_strays(directory, ".ans", ".yaml", ".files")
        parts = self._cases(directory, how) if here else [self._group(entry, how, rules) for entry in groups]
        if not parts:
            raise InvalidProblem(f"{directory}: holds no test case and no group; add X.in with X.ans")
        return CaseGroup("secret", rules, tuple(parts))

    def _group(self, directory: Path, inherited: dict[str, Any], above: NewRules) -> CaseGroup:
        keys, how = self._keys(directory, inherited)
        rules = self._rules(keys, None, "pass-fail")
        if self.settings.scoring:
            if rules.max_score is None and above.max_score is not None:
                raise InvalidProblem(f"{keys.where}: max_score is missing: secret has one of {above.max_score:g}")
            if above.aggregation == "pass-fail" and rules.aggregation != "pass-fail":
                raise InvalidProblem(f"{keys.where}: score_aggregation must be pass-fail, as that of secret")
        for inner in sorted(directory.rglob("test_group.yaml")):
            if inner.parent != directory:
                raise InvalidProblem(f"{inner}: groups are not nested in this version of the format")
        cases = self._cases(directory, how)
        if not cases:
            raise InvalidProblem(
                f"{directory}: holds no test case, so every program would pass it; add X.in with X.ans"
            )
        return CaseGroup(str(directory.relative_to(self.data)), rules, tuple(cases))

    def _keys(self, directory: Path, inherited: dict[str, Any]) -> tuple[Keys, dict[str, Any]]:
        """The settings of a directory, and the arguments of its cases."""
        path = directory / "test_group.yaml"
        keys = load_yaml(path) if path.is_file() else Keys(str(path), {})
        return keys, self._arguments(keys, inherited)

    def _arguments(self, keys: Keys, inherited: dict[str, Any]) -> dict[str, Any]:
        keys.skip("input_visualizer_args", "output_visualizer_args", "full_feedback")
        keys.refuse("static_validation_score", "static_validator_args", why="there are no static validators here")
        keys.refuse("scoring", "static_validation", why="it is of an early draft; use max_score and score_aggregation")
        found = dict(inherited)
        for name in ("args", "output_validator_args"):
            if keys.has(name):
                found[name] = tuple(map(self.settings.fill_in, keys.texts(name)))
        if isinstance(keys.left.get("input_validator_args"), dict):
            named = keys.inner("input_validator_args")
            found["input_validator_args"] = {name: named.texts(name) for name in list(named.left)}
        elif keys.has("input_validator_args"):
            found["input_validator_args"] = {"": keys.texts("input_validator_args")}
        return found

    def _rules(self, keys: Keys, max_score: float | None, aggregation: str) -> NewRules:
        if not self.settings.scoring:
            keys.refuse(*_SCORED, why="it is for problems of type scoring")
        if keys.left.get("max_score") == "unbounded":
            keys.skip("max_score")
            max_score = None
        max_score = keys.whole("max_score", max_score, low=0)
        aggregation = keys.choice("score_aggregation", aggregation, ("pass-fail", "sum", "min"))
        if aggregation == "pass-fail" and max_score is None and self.settings.scoring:
            raise InvalidProblem(f"{keys.where}: max_score is missing: a group that is pass-fail has one")
        require = keys.texts("require_pass", single=True)
        keys.done()
        return NewRules(aggregation, max_score, require)

    def _cases(
        self, directory: Path, how: dict[str, Any], *, answers: bool = True, below: bool = True
    ) -> list[TestCase]:
        found = []
        for path in sorted((directory, *(directory.rglob("*") if below else directory.glob("*.in")))):
            inside = path.relative_to(self.data).parts
            if any(part[0] in ".-" or part.endswith(".files") for part in inside):
                continue
            if path.is_dir():
                _check_strays(path, ".ans", ".yaml", ".files")
            if path.suffix != ".in" or not path.is_file():
                continue
            own, files = path.with_suffix(".yaml"), path.with_suffix(".files")
            keys = load_yaml(own) if own.is_file() else Keys(str(own), {})
            keys.skip("hint", "description")
            mine = self._arguments(keys, how)
            keys.done()
            given = {
                "arguments": mine.get("args", ()),
                "validator_arguments": mine.get("output_validator_args", ()),
                "input_arguments": mine.get("input_validator_args", {}),
            }
            found.append(_case(self.data, path, answers=answers, **given, files=files if files.is_dir() else None))
        return found


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
