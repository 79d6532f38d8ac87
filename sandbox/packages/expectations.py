"""What a submission's author expects: by its folder, by submissions.yaml, by a comment in the source.

    Rule(scope, permitted, required, final, score, grades, message) × SubmissionOutcome ──▶ surprises, in words

In the legacy versions a folder names the final verdict; in the new ones the verdicts that cases may have, and one that
must occur. A comment (@EXPECTED_RESULTS@, like DOMjudge's) replaces the folder's final verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sandbox.errors import InvalidProblem
from sandbox.packages.documents import Keys, load_yaml
from sandbox.packages.grading import Found, Grade
from sandbox.packages.programs import Sources
from sandbox.packages.settings import Settings
from sandbox.packages.tree import CaseGroup, OldRules

VERDICTS: Final = ("AC", "WA", "TLE", "RTE")
_FOLDERS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "accepted": {"permitted": ("AC",)},
    "rejected": {"required": ("RTE", "TLE", "WA")},
    "wrong_answer": {"permitted": ("AC", "WA"), "required": ("WA",)},
    "time_limit_exceeded": {"permitted": ("AC", "TLE"), "required": ("TLE",)},
    "run_time_error": {"permitted": ("AC", "RTE"), "required": ("RTE",)},
    "brute_force": {"permitted": ("AC", "RTE", "TLE"), "required": ("RTE", "TLE")},
}
_LEGACY_FOLDERS: Final = {
    "accepted": ("AC",),
    "partially_accepted": ("AC",),
    "slow_accepted": ("AC", "TLE"),
    "rejected": ("WA", "TLE", "RTE", "CE"),
    "wrong_answer": ("WA",),
    "time_limit_exceeded": ("TLE",),
    "run_time_error": ("RTE",),
}
_WORDS: Final = {
    **dict.fromkeys(("CORRECT", "ACCEPTED", "AC"), "AC"),
    **dict.fromkeys(("WRONG-ANSWER", "WRONG_ANSWER", "WA", "NO-OUTPUT", "NO_OUTPUT"), "WA"),
    **dict.fromkeys(("TIMELIMIT", "TIME_LIMIT_EXCEEDED", "TLE"), "TLE"),
    **dict.fromkeys(("RUN-ERROR", "RUN_TIME_ERROR", "RUNTIME_ERROR", "RTE", "MEMORY-LIMIT", "OUTPUT-LIMIT"), "RTE"),
    **dict.fromkeys(("COMPILER-ERROR", "COMPILER_ERROR", "CE"), "CE"),
}
_COMMENT: Final = re.compile(r"@EXPECTED_(RESULTS?|SCORE|GRADES)@:?[ \t]*([^\r\n]*)")
_COMMENT_END: Final = re.compile(r"(\*/|-->|\"\"\"|'''|\*\)|#\|).*")


@dataclass(frozen=True, slots=True)
class Rule:
    origin: str
    scope: str = ""
    """A glob of cases and groups, relative to data/; "" is all."""
    permitted: tuple[str, ...] | None = None
    required: tuple[str, ...] | None = None
    final: tuple[str, ...] | None = None
    score: tuple[float, float] | None = None
    partial: bool | None = None
    """The score is below the best (True), or the best (False)."""
    grades: tuple[str, ...] | None = None
    """The verdict of each group of secret data, in order."""
    message: str = ""
    use_for_time_limit: bool | str | None = None

    def covers(self, name: str) -> bool:
        """Whether the rule is about a case."""
        return not self.scope or glob_matches(self.scope, name)

    def says(self) -> str:
        """In short, for a line of the report."""
        said = (
            "/".join(self.final or ()),
            f"only {'/'.join(self.permitted)}" if self.permitted else "",
            f"some {'/'.join(self.required)}" if self.required else "",
            "a partial score" if self.partial else "",
            f"a score of {_span(self.score)}" if self.score else "",
            " ".join(self.grades or ()),
            f"the message {self.message!r}" if self.message else "",
        )
        where = f" in {self.scope}" if self.scope and any(said) else ""
        return ", ".join(filter(None, said)) + where


@dataclass(frozen=True, slots=True)
class Expected:
    """All expectations of one submission."""

    rules: tuple[Rule, ...]
    language: str = ""
    """A code of the format, where submissions.yaml names one."""
    entry: str = ""

    @property
    def lower(self) -> list[Rule]:
        """Rules under which its time bounds the limit from below."""
        return [
            rule
            for rule in self.rules
            if rule.use_for_time_limit == "lower"
            or (rule.use_for_time_limit is None and rule.permitted is not None and "TLE" not in rule.permitted)
        ]

    @property
    def upper(self) -> list[Rule]:
        return [
            rule
            for rule in self.rules
            if rule.use_for_time_limit == "upper" or (rule.use_for_time_limit is None and rule.required == ("TLE",))
        ]

    def says(self) -> str:
        return "; ".join(filter(None, (rule.says() for rule in self.rules))) or "anything"


def glob_matches(glob: str, name: str) -> bool:
    """The format's globs: * within a name, {a,b}; a directory stands for all that is in it."""
    parts = {"*": "[^/]*", "?": "[^/]"}
    patterns = ("".join(parts.get(part, re.escape(part)) for part in each.rstrip("/")) for each in _braces(glob))
    return any(re.fullmatch(f"{pattern}(/.*)?", name) for pattern in patterns)


def _braces(glob: str) -> Iterator[str]:
    if not (found := re.search(r"\{([^{}]*)\}", glob)):
        yield glob
        return
    for choice in found[1].split(","):
        yield from _braces(glob[: found.start()] + choice + glob[found.end() :])


class Author:
    """The package's expectations of its submissions. Raises InvalidProblem for what cannot be read."""

    def __init__(self, package: Path, settings: Settings, tree: CaseGroup) -> None:
        self.settings = settings
        self.tree = tree
        self.file = package / "submissions" / "submissions.yaml"
        keys = load_yaml(self.file) if self.file.is_file() and not settings.legacy else Keys(str(self.file), {})
        self.by_glob = {glob: self._read(glob, keys.inner(glob)) for glob in list(keys.left)}

    def expected(self, name: str, sources: Sources) -> Expected | None:
        """Return the expectations of submissions/NAME; None when there are none."""
        folder = name.partition("/")[0]
        comments = list(_comments(name, sources))
        rules = [*comments]
        if not any(rule.final for rule in comments):
            rules += self._by_folder(folder)
        language = entry = ""
        for glob, (more, its_language, its_entry) in self.by_glob.items():
            if glob_matches(glob, name):
                rules += more if glob != folder else [rule for rule in more if rule.scope]
                language, entry = its_language or language, its_entry or entry
        return Expected(tuple(rules), language, entry) if rules else None

    def check_globs(self, names: Iterable[str]) -> None:
        """Raises InvalidProblem for a glob that matches no submission: its rules would apply to none."""
        names = list(names)
        for glob in self.by_glob:
            if glob.rstrip("/") not in _FOLDERS and not any(glob_matches(glob, name) for name in names):
                raise InvalidProblem(f"{self.file}: {glob!r} matches no submission")

    def _by_folder(self, folder: str) -> list[Rule]:
        if self.settings.legacy or (isinstance(self.tree.rules, OldRules) and folder == "partially_accepted"):
            return self._legacy(folder)
        base = _FOLDERS.get(folder, {})
        own = next((rule for rule in self.by_glob.get(folder, ([],))[0] if not rule.scope), None)
        if not base and own is None:
            return []
        rule = Rule(f"submissions/{folder}/", **base)  # type: ignore[arg-type]
        if own is not None:  # an entry of the file for a folder replaces the folder's default, key by key
            said = {name: value for name in ("permitted", "required", "score", "use_for_time_limit")
                    if (value := getattr(own, name)) is not None}  # fmt: skip
            rule = replace(rule, **said, message=own.message)
        if folder == "brute_force" and rule.use_for_time_limit is None:
            rule = replace(rule, use_for_time_limit=False)
        return [rule]

    def _legacy(self, folder: str) -> list[Rule]:
        if folder not in _LEGACY_FOLDERS:
            return []
        rule = Rule(f"submissions/{folder}/", final=_LEGACY_FOLDERS[folder], use_for_time_limit=False)
        if folder in ("accepted", "partially_accepted") and self.settings.scoring:
            rule = replace(rule, partial=folder == "partially_accepted")
        if folder in ("accepted", "time_limit_exceeded"):
            rule = replace(rule, use_for_time_limit="lower" if folder == "accepted" else "upper")
        return [rule]

    def _read(self, glob: str, keys: Keys) -> tuple[list[Rule], str, str]:
        """Rules, language and entry point of one glob."""
        language, entry = keys.text("language"), keys.text("entrypoint")
        keys.skip("authors")
        keys.flag("model_solution", default=False)
        rules = [self._rule(glob, "", keys)]
        for scope in [name for name, value in keys.left.items() if isinstance(value, dict)]:
            inner = keys.inner(scope)
            rules.append(self._rule(glob, scope, inner))
            inner.done()
            names = [group.name for group in self.tree.groups()] + [case.name for case in self.tree.cases()]
            if not any(glob_matches(scope, name) for name in names):
                raise InvalidProblem(f"{keys.where}: {scope!r} is neither a key nor a group or test case of data/")
        keys.done()
        return [rule for rule in rules if rule != Rule(rule.origin, rule.scope)], language, entry

    def _rule(self, glob: str, scope: str, keys: Keys) -> Rule:
        sets: dict[str, Any] = {}
        for name in ("permitted", "required"):
            if keys.has(name):
                sets[name] = keys.texts(name)
                if wrong := [verdict for verdict in sets[name] if verdict not in VERDICTS]:
                    raise keys.wrong(name, wrong[0], f"one of {', '.join(VERDICTS)}")
        use = keys.take("use_for_time_limit")
        if use not in (None, True, False, "lower", "upper"):
            raise keys.wrong("use_for_time_limit", use, "true, false, lower or upper")
        score = keys.take("score")
        if score is not None:
            if not self.settings.scoring:
                raise InvalidProblem(f"{keys.where}: score is for problems of type scoring")
            ends = score if isinstance(score, list) and len(score) == 2 else [score, score]
            sets["score"] = tuple(keys.as_number("score", end) for end in ends)
        message = keys.text("message")
        use = None if use is True else use
        if scope or glob.rstrip("/") not in _FOLDERS:  # the default of a folder stays
            sets = _bound(keys, use, sets)
        return Rule(f"submissions.yaml: {glob}", scope, message=message, use_for_time_limit=use, **sets)


def _bound(keys: Keys, use: bool | str | None, sets: dict[str, Any]) -> dict[str, Any]:
    """Return the rules that a bound of the time limit implies: no TLE below it, at least one above it."""
    if use == "lower":
        if "TLE" in sets.get("permitted", ()):
            raise keys.wrong("use_for_time_limit", use, "another, or TLE not permitted")
        return {"permitted": ("AC", "WA", "RTE"), **sets}
    return {"required": ("TLE",), **sets} if use == "upper" else sets


def _comments(name: str, sources: Sources) -> Iterator[Rule]:
    """Return the expectations in comments of its files."""
    for file, content in sources.files.items():
        for found in _COMMENT.finditer(content.decode("latin-1")):
            kind, text = found[1], _COMMENT_END.sub("", found[2]).strip()
            origin = f"@EXPECTED_{kind}@ in {file}"
            words = [word for word in re.split(r"[\s,]+", text) if word]
            if kind == "SCORE":
                number = Keys(f"submissions/{name}", {}).as_number(origin, text)
                yield Rule(origin, score=(number, number), use_for_time_limit=False)
                continue
            verdicts = tuple(_WORDS.get(word.upper(), "") for word in words)
            if not words or "" in verdicts:
                known = ", ".join(sorted(_WORDS))
                raise InvalidProblem(f"submissions/{name}: {origin}: {text!r} must be verdicts: {known}")
            if kind == "GRADES":
                yield Rule(origin, grades=verdicts, use_for_time_limit=False)
            else:
                yield Rule(origin, final=verdicts, use_for_time_limit="lower" if verdicts == ("AC",) else False)


@dataclass(frozen=True, slots=True)
class SubmissionOutcome:
    """The result of a submission at the time limit."""

    results: Mapping[str, Found]
    """By case; those that ran."""
    grades: Mapping[str, Grade]
    """By group; "" is the whole."""
    best: tuple[float, float]
    """Lowest and highest possible score."""
    minimise: bool = False
    compiled: bool = True


def surprises(expected: Expected, outcome: SubmissionOutcome) -> list[str]:
    """Return one line for each difference from the expectations."""
    return [f"{text} ({rule.origin})" for rule in expected.rules for text in _check(rule, outcome)]


def _check(rule: Rule, outcome: SubmissionOutcome) -> Iterator[str]:
    if outcome.compiled:
        yield from _check_cases(rule, outcome)
        yield from _check_groups(rule, outcome)
    elif rule.final is None or "CE" not in rule.final:
        yield "does not compile"


def _check_cases(rule: Rule, outcome: SubmissionOutcome) -> Iterator[str]:
    found = {name: each for name, each in outcome.results.items() if rule.covers(name)}
    for verdict in VERDICTS if rule.permitted is not None else ():
        names = [name for name, each in found.items() if each.verdict == verdict]
        if names and verdict not in (rule.permitted or ()):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield f"{verdict} in {names[0]}{more}, where only {' or '.join(rule.permitted or ())} is permitted"
    if rule.required is not None and not any(each.verdict in rule.required for each in found.values()):
        yield f"no case is {' or '.join(rule.required)}" + (f" in {rule.scope}" if rule.scope else "")
    if rule.message and not any(rule.message in each.feedback.get("judgemessage.txt", "") for each in found.values()):
        yield f"no judgemessage.txt holds {rule.message!r}"


def _check_groups(rule: Rule, outcome: SubmissionOutcome) -> Iterator[str]:
    grade = outcome.grades[""]
    if rule.final is not None and grade.verdict not in rule.final:
        yield f"expected {' or '.join(rule.final)}, found {grade.verdict}"
    if rule.score is not None:
        scope = rule.scope.rstrip("/")
        for name, each in outcome.grades.items():
            if not (glob_matches(scope, name) if scope else name == ""):
                continue
            if not rule.score[0] - 1e-9 <= each.score <= rule.score[1] + 1e-9:
                yield f"expected a score of {_span(rule.score)}, found {each.score:g}" + (f" in {name}" if name else "")
    if rule.partial is not None and grade.verdict == "AC":
        yield from _check_partial(rule.partial, grade.score, outcome)
    if rule.grades is not None:
        groups = tuple(each.verdict for name, each in outcome.grades.items() if _is_graded(name, outcome))
        if groups != rule.grades:
            yield f"expected {' '.join(rule.grades)} of the groups, found {' '.join(groups)}"


def _check_partial(partial: bool, score: float, outcome: SubmissionOutcome) -> Iterator[str]:
    low, high = outcome.best
    best = low if outcome.minimise else high
    if abs(best) == float("inf"):
        return
    if partial and score == best:
        yield f"expected a partial score, found {score:g}, which is the best"
    if not partial and score != best:
        yield f"expected the best score, {best:g}, found {score:g}"


def _is_graded(name: str, outcome: SubmissionOutcome) -> bool:
    """A group of secret data without groups below it."""
    inner = any(other.startswith(f"{name}/") for other in outcome.grades)
    return name not in ("", "sample") and not name.startswith("sample/") and not inner


def _span(score: tuple[float, float]) -> str:
    return f"{score[0]:g}" if score[0] == score[1] else f"{score[0]:g} to {score[1]:g}"
