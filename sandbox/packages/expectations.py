"""What a submission's author expects: by its folder, by submissions.yaml, by a comment in the source.

    Rule(scope, permitted, required, final, score, grades, message) × SubmissionOutcome ──▶ surprises, in words

In the legacy versions a folder names the final verdict; in the new ones the verdicts that cases may have, and one that
must occur. A comment (@EXPECTED_RESULTS@, like DOMjudge's) replaces the folder's final verdict. What cannot be read is
noted and left out: judging does not depend on it, save for language, entry point and the bounds of the time limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sandbox.errors import InvalidProblem
from sandbox.packages.documents import Keys, load_yaml, quoted_briefly
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
    **dict.fromkeys(("WRONG-ANSWER", "WRONG_ANSWER", "WA", "NO-OUTPUT", "NO_OUTPUT", "PRESENTATION-ERROR"), "WA"),
    **dict.fromkeys(("TIMELIMIT", "TIME_LIMIT_EXCEEDED", "TLE"), "TLE"),
    **dict.fromkeys(("RUN-ERROR", "RUN_TIME_ERROR", "RUNTIME_ERROR", "RTE"), "RTE"),
    **dict.fromkeys(("MEMORY-LIMIT", "MEMORY_LIMIT", "OUTPUT-LIMIT", "OUTPUT_LIMIT", "MLE", "OLE"), "RTE"),
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
    notes: tuple[str, ...] = ()
    """What its comments say that cannot be read, or that its folder does not say."""

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
    pattern, depth = "", 0
    braces = glob.count("{") == glob.count("}")
    parts = {"*": "[^/]*", "?": "[^/]"} | ({"{": "(?:", "}": ")"} if braces else {})
    for part in glob.rstrip("/"):
        depth += braces * ((part == "{") - (part == "}"))
        pattern += "|" if part == "," and depth > 0 else parts.get(part, re.escape(part))
    try:
        return re.fullmatch(f"{pattern}(/.*)?", name) is not None
    except (re.error, RecursionError, OverflowError):  # braces out of order
        return False


class Author:
    """The package's expectations of its submissions. Raises InvalidProblem for what judging depends on."""

    def __init__(self, package: Path, settings: Settings, tree: CaseGroup, submissions: Sequence[str] = ()) -> None:
        self.settings = settings
        self.tree = tree
        self.notes: list[str] = []
        self.file = package / "submissions" / "submissions.yaml"
        there = self.file.is_file() and not settings.legacy
        keys = load_yaml(self.file, self.notes) if there else Keys(str(self.file), {}, self.notes)
        self.by_glob = {glob: self._read(glob, keys) for glob in list(keys.left)}
        for glob in self.by_glob:
            if glob.rstrip("/") not in _FOLDERS and not any(glob_matches(glob, name) for name in submissions):
                keys.note(f"{quoted_briefly(glob)} matches no submission")

    def expected(self, name: str, sources: Sources) -> Expected:
        """Return the expectations of submissions/NAME; without a rule where nobody says what is expected."""
        folder = name.partition("/")[0]
        notes: list[str] = []
        rules = list(_comments(sources, notes))
        finals = [rule for rule in rules if rule.final]
        if not finals:
            rules += self._by_folder(folder)
        elif folder in _LEGACY_FOLDERS and any(
            set(rule.final or ()) != set(_LEGACY_FOLDERS[folder]) for rule in finals
        ):
            notes.append(f"{finals[0].origin} says {finals[0].says()}, which counts in place of its folder")
        language = entry = ""
        for glob, (more, its_language, its_entry) in self.by_glob.items():
            if glob_matches(glob, name):
                rules += more if glob != folder else [rule for rule in more if rule.scope]
                language, entry = its_language or language, its_entry or entry
        return Expected(tuple(rules), language, entry, tuple(notes))

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

    def _read(self, glob: str, above: Keys) -> tuple[list[Rule], str, str]:
        """Rules, language and entry point of one glob."""
        try:
            keys = above.inner(glob)
        except InvalidProblem as error:
            return self._left_out(error), "", ""
        language, entry = keys.text("language"), keys.text("entrypoint")
        keys.skip("authors", "model_solution")
        scopes = {name: value for name, value in keys.left.items() if isinstance(value, dict)}
        keys.left = {name: value for name, value in keys.left.items() if name not in scopes}
        rules = self._rule(glob, "", keys)
        for scope, value in scopes.items():
            names = [group.name for group in self.tree.groups()] + [case.name for case in self.tree.cases()]
            if any(glob_matches(scope, name) for name in names):
                rules += self._rule(glob, scope, Keys(f"{keys.where}: {scope}", value, self.notes))
            else:
                keys.note(f"{quoted_briefly(scope)} is neither a key nor a group or test case of data/, and left out")
        return [rule for rule in rules if rule != Rule(rule.origin, rule.scope)], language, entry

    def _rule(self, glob: str, scope: str, keys: Keys) -> list[Rule]:
        """The rule of a glob in a scope; none where it cannot be read."""
        use = keys.take("use_for_time_limit")
        if use not in (None, True, False, "lower", "upper"):
            raise keys.wrong("use_for_time_limit", use, "true, false, lower or upper")
        use = None if use is True else use
        try:
            sets = self._said(keys)
            if scope or glob.rstrip("/") not in _FOLDERS:  # the default of a folder stays
                sets = _bound(keys, use, sets)
        except InvalidProblem as error:
            return self._left_out(error)
        return [Rule(f"submissions.yaml: {glob}", scope, use_for_time_limit=use, **sets)]

    def _said(self, keys: Keys) -> dict[str, Any]:
        sets: dict[str, Any] = {"message": keys.text("message")}
        for name in ("permitted", "required"):
            if keys.has(name):
                sets[name] = keys.texts(name, single=True)
                if wrong := [verdict for verdict in sets[name] if verdict not in VERDICTS]:
                    raise keys.wrong(name, wrong[0], f"one of {', '.join(VERDICTS)}")
        if not self.settings.scoring:
            keys.without_effect("score", why="the problem's type is not scoring")
        score = keys.take("score")
        if score is not None:
            ends = score if isinstance(score, list) and len(score) == 2 else [score, score]
            sets["score"] = tuple(keys.as_number("score", end) for end in ends)
        keys.done()
        return sets

    def _left_out(self, error: InvalidProblem) -> list[Rule]:
        self.notes.append(f"{error}; what is expected there is left out")
        return []


def _bound(keys: Keys, use: bool | str | None, sets: dict[str, Any]) -> dict[str, Any]:
    """Return the rules that a bound of the time limit implies: no TLE below it, at least one above it."""
    if use == "lower":
        if "TLE" in sets.get("permitted", ()):
            raise keys.wrong("use_for_time_limit", use, "another, or TLE not permitted")
        return {"permitted": ("AC", "WA", "RTE"), **sets}
    return {"required": ("TLE",), **sets} if use == "upper" else sets


def _comments(sources: Sources, notes: list[str]) -> Iterator[Rule]:
    """Return the expectations in comments of its files; what cannot be read is noted."""
    for file, content in sources.files.items():
        for found in _COMMENT.finditer(content.decode("latin-1")):
            kind, text = found[1], _COMMENT_END.sub("", found[2]).strip()
            origin = f"@EXPECTED_{kind}@ in {file}"
            if kind == "SCORE":
                try:
                    number = Keys(origin, {}).as_number("score", text)
                except InvalidProblem as error:
                    notes.append(f"{error}; passed over")
                else:
                    yield Rule(origin, score=(number, number), use_for_time_limit=False)
                continue
            verdicts = tuple(_WORDS.get(word.upper(), "") for word in re.split(r"[\s,]+", text) if word)
            if not verdicts or "" in verdicts:
                notes.append(f"{origin}: {quoted_briefly(text)} names no verdict, and is passed over")
            elif kind == "GRADES":
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
