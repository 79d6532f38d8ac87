"""Results of cases × tree of groups → one verdict and one score, by the rules of either kind of settings.

    TestCase ── Found(verdict, feedback) ──▶ Group ──▶ ... ──▶ Grade of the whole submission

Verdicts are the format's: AC WA TLE RTE. A case that was not run is None: with on_reject: break, or a require_pass that
was not met, nobody asks for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from sandbox.errors import CheckerError
from sandbox.packages.settings import Settings
from sandbox.packages.tree import CaseGroup, NewRules, OldRules, TestCase

_WORST_FIRST: Final = ("RTE", "TLE", "WA")
_GRADER_SAYS: Final = re.compile(r"(AC|WA|TLE|RTE|MLE|OLE)\s+([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")

RunGrader = Callable[[Sequence[str], str], str]
"""The package's grader: its arguments and its input → its output."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a case."""

    verdict: str
    feedback: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grade:
    verdict: str
    score: float = 0.0


@dataclass(slots=True)
class Grader:
    """Grades submissions of one package. `results` of its methods: by the cases' names."""

    settings: Settings
    tree: CaseGroup
    run_grader: RunGrader | None = None

    def grade(self, results: Mapping[str, Found]) -> dict[str, Grade]:
        """Return the grade of every group by name, "" for the whole.

        Raises CheckerError where validator or grader break a rule.
        """
        grades: dict[str, Grade] = {}
        if isinstance(self.tree.rules, OldRules):
            self._old_group(self.tree, results, grades)
        else:
            self._new_tree(results, grades)
        return grades

    def wanted(self, name: str, results: Mapping[str, Found]) -> bool:
        """Return whether the verdict or score still depends on this case, after those before it."""
        if not isinstance(self.tree.rules, OldRules):
            return self._passes_required(name, results)
        group = self.tree
        while True:
            before = list(takewhile(lambda part: not _holds(part, name), group.parts))
            assert isinstance(group.rules, OldRules)
            if group.rules.stop:
                done = [part for part in before if isinstance(part, CaseGroup) or part.name in results]
                if any(self._old_part(part, group.rules, results, {}).verdict != "AC" for part in done):
                    return False
            part = group.parts[len(before)]
            if isinstance(part, TestCase):
                return True
            group = part

    def score_range(self) -> tuple[float, float]:
        """Return the lowest and the highest score that a submission may reach."""
        if isinstance(self.tree.rules, OldRules):
            return self.tree.rules.low, self.tree.rules.high
        if not self.settings.scoring:  # there may be samples alone
            return 0.0, math.inf
        secret = self._secret().rules
        assert isinstance(secret, NewRules)
        return 0.0, math.inf if secret.max_score is None else secret.max_score

    def out_of_range(self, grades: Mapping[str, Grade]) -> Iterator[str]:
        """Yield a line for each score of a group that testdata.yaml excludes."""
        for group in self.tree.groups() if self.settings.scoring else ():
            rules, grade = group.rules, grades.get(group.name)
            if not isinstance(rules, OldRules) or grade is None or grade.verdict != "AC":
                continue
            if not rules.low - 1e-9 <= grade.score <= rules.high + 1e-9:
                where = f"data/{group.name}".rstrip("/")
                yield f"a score of {grade.score:g} in {where} is out of its range, {rules.low:g} to {rules.high:g}"

    # --- testdata.yaml ------------------------------------------------------------------------------------------------

    def _old_group(self, group: CaseGroup, results: Mapping[str, Found], grades: dict[str, Grade]) -> Grade:
        rules = group.rules
        assert isinstance(rules, OldRules)
        found: list[tuple[str, Grade]] = []
        for part in group.parts:
            if isinstance(part, TestCase) and part.name not in results:
                continue
            found.append((part.name, self._old_part(part, rules, results, grades)))
            if rules.stop and found[-1][1].verdict != "AC":
                break
        grades[group.name] = self._aggregate(group.name, rules, found)
        return grades[group.name]

    def _old_part(
        self, part: CaseGroup | TestCase, rules: OldRules, results: Mapping[str, Found], grades: dict[str, Grade]
    ) -> Grade:
        if isinstance(part, CaseGroup):
            return self._old_group(part, results, grades)
        found = results[part.name]
        accepted = found.verdict == "AC"
        score = rules.accept_score if accepted else rules.reject_score
        if accepted and self.settings.scoring and "score.txt" in found.feedback:
            score = read_score(part.name, "score.txt", found.feedback["score.txt"])
        return Grade(found.verdict, score)

    def _aggregate(self, name: str, rules: OldRules, found: list[tuple[str, Grade]]) -> Grade:
        if not found:
            return Grade("AC", 0.0)
        if rules.custom:
            return self._ask_grader(name, rules, found)
        if "ignore_sample" in rules.flags and name == "":
            found = [(part, grade) for part, grade in found if part != "sample"] or found
        verdicts = [grade.verdict for _, grade in found]
        scores = [grade.score for _, grade in found]
        kinds: dict[str, Callable[[list[float]], float]] = {
            "sum": math.fsum,
            "avg": lambda scores: math.fsum(scores) / len(scores),
            "min": min,
            "max": max,
        }
        score = next((kinds[flag] for flag in reversed(rules.flags) if flag in kinds), math.fsum)(scores)
        return Grade(_old_verdict(rules, verdicts), score)

    def _ask_grader(self, name: str, rules: OldRules, found: list[tuple[str, Grade]]) -> Grade:
        if self.run_grader is None:
            raise CheckerError(f"data/{name}: grading is custom, but there is no program in graders/")
        text = "".join(f"{grade.verdict} {grade.score:g}\n" for _, grade in found)
        said = self.run_grader(rules.flags, text)
        if not (read := _GRADER_SAYS.fullmatch(said)):
            raise CheckerError(f"the grader wrote {said[:100]!r}: it must write one verdict and one score, as in AC 50")
        verdict = "RTE" if read[1] in ("MLE", "OLE") else read[1]
        return Grade(verdict, float(read[2]))

    # --- test_group.yaml ----------------------------------------------------------------------------------------------

    def _passes_required(self, name: str, results: Mapping[str, Found]) -> bool:
        for group in self.tree.groups():
            assert isinstance(group.rules, NewRules)
            if group.rules.require_pass and name.startswith(f"{group.name}/"):
                required = tuple(f"{each}/" for each in group.rules.require_pass)
                needed = [case.name for case in self.tree.cases() if case.name.startswith(required)]
                if any(each not in results or results[each].verdict != "AC" for each in needed):
                    return False
        return True

    def _new_tree(self, results: Mapping[str, Found], grades: dict[str, Grade]) -> None:
        """Verdict: of the first case that was not accepted."""
        for group in self.tree.groups():
            verdicts = [results[case.name].verdict for case in group.cases() if case.name in results]
            whole = len(verdicts) == sum(1 for _ in group.cases())
            verdict = next((verdict for verdict in verdicts if verdict != "AC"), "AC" if whole else "WA")
            grades[group.name] = Grade(verdict)
        if not self.settings.scoring:
            return
        self._new_score(self._secret(), results, grades)
        grades[""] = Grade(grades[""].verdict, grades["secret"].score)

    def _secret(self) -> CaseGroup:
        return next(group for group in self.tree.groups() if group.name == "secret")

    def _new_score(self, group: CaseGroup, results: Mapping[str, Found], grades: dict[str, Grade]) -> float:
        rules = group.rules
        assert isinstance(rules, NewRules)
        inner = [part for part in group.parts if isinstance(part, CaseGroup)]
        cases = [part for part in group.parts if isinstance(part, TestCase)]
        scores = [self._new_score(part, results, grades) for part in inner]
        scores += [self._case_score(case, rules, len(cases), results) for case in cases]
        passed = all(case.name in results and results[case.name].verdict == "AC" for case in group.cases())
        if rules.aggregation == "pass-fail":
            score = (rules.max_score or 0.0) if passed else 0.0
        else:
            score = math.fsum(scores) if rules.aggregation == "sum" else min(scores)
        if rules.max_score is not None and score > rules.max_score * (1 + 1e-9):
            raise CheckerError(f"{group.name}: a score of {score:g} exceeds its max_score of {rules.max_score:g}")
        grades[group.name] = Grade(grades[group.name].verdict, score)
        return score

    def _case_score(self, case: TestCase, rules: NewRules, count: int, results: Mapping[str, Found]) -> float:
        if (found := results.get(case.name)) is None:
            return 0.0
        wrote = [name for name in ("score.txt", "score_multiplier.txt") if name in found.feedback]
        if found.verdict != "AC":
            if wrote and found.verdict == "WA":
                raise CheckerError(f"{case.name}: the validator wrote {wrote[0]}, but rejected the output")
            return 0.0
        if rules.aggregation == "pass-fail":
            if wrote:
                raise CheckerError(f"{case.name}: the validator wrote {wrote[0]}, but its group is pass-fail")
            return 0.0
        if len(wrote) == 2:
            raise CheckerError(f"{case.name}: the validator wrote score.txt and score_multiplier.txt")
        most = rules.max_score
        if most is not None and rules.aggregation == "sum":
            most /= count
        if not wrote:
            if most is None:
                raise CheckerError(f"{case.name}: the validator wrote no score.txt, and the group is unbounded")
            return most
        return _from_validator(case.name, wrote[0], read_score(case.name, wrote[0], found.feedback[wrote[0]]), most)


def _holds(part: CaseGroup | TestCase, name: str) -> bool:
    return name.startswith(f"{part.name}/") if isinstance(part, CaseGroup) else part.name == name


def _old_verdict(rules: OldRules, verdicts: list[str]) -> str:
    if "always_accept" in rules.flags or all(verdict == "AC" for verdict in verdicts):
        return "AC"
    if "accept_if_any_accepted" in rules.flags and "AC" in verdicts:
        return "AC"
    modes = [flag for flag in rules.flags if flag in ("worst_error", "first_error")]
    if modes[-1:] == ["first_error"]:
        return next(verdict for verdict in verdicts if verdict != "AC")
    return next(verdict for verdict in _WORST_FIRST if verdict in verdicts)


def _from_validator(name: str, file: str, score: float, most: float | None) -> float:
    if file == "score.txt":
        if score < 0 or (most is not None and score > most * (1 + 1e-9)):
            limit = "from 0 up" if most is None else f"from 0 to {most:g}"
            raise CheckerError(f"{name}: the validator wrote a score of {score:g}: it must be {limit}")
        return score
    if most is None:
        raise CheckerError(f"{name}: the validator wrote score_multiplier.txt, but the group is unbounded")
    if not 0 <= score <= 1:
        raise CheckerError(f"{name}: the validator wrote a multiplier of {score:g}: it must be from 0 to 1")
    return score * most


def read_score(name: str, file: str, text: str) -> float:
    """Raises CheckerError."""
    try:
        found = float(text.strip())
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or "_" in text:
        raise CheckerError(f"{name}: the validator wrote {text[:40]!r} into {file}: it must be one number")
    return found
