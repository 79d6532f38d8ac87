"""Cases to groups to one verdict and score: the default grader's flags, and the rules of the new versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from package_files import LEGACY, NEW, cases, write_package

from sandbox.errors import CheckerError
from sandbox.packages.cases import read_cases
from sandbox.packages.grading import Found, Grade, Grader
from sandbox.packages.settings import read_settings

OLD_SCORING = LEGACY + "type: scoring\nvalidation: custom score\n"
NEW_SCORING = NEW + "type: scoring\n"


def grader(root: Path, text: str, files: dict[str, str]) -> Grader:
    package = write_package(root, {"problem.yaml": text, **files})
    settings = read_settings(package)
    return Grader(settings, read_cases(package, settings).tree)


def found(text: str) -> dict[str, Found]:
    """'secret/1 AC, secret/2 AC score.txt=5': what cases came to."""
    results = {}
    for line in text.split(","):
        name, verdict, *notes = line.split()
        results[name] = Found(verdict, dict(note.split("=") for note in notes))
    return results


THREE = cases("secret/1", "secret/2", "secret/3")


@pytest.mark.parametrize(
    ("flags", "verdict", "score"),
    [
        ("", "RTE", 9),
        ("worst_error", "RTE", 9),
        ("first_error", "WA", 9),
        ("always_accept", "AC", 9),
        ("accept_if_any_accepted", "AC", 9),
        ("sum", "RTE", 9),
        ("avg", "RTE", 2.25),
        ("min", "RTE", 0),
        ("max", "RTE", 7),
        ("sum min first_error", "WA", 0),
    ],
)
def test_modes_of_the_default_grader(tmp_path: Path, flags: str, verdict: str, score: float) -> None:
    settings = f"on_reject: continue\naccept_score: 2\nreject_score: 0\ngrader_flags: {flags}"
    files = {**cases(*(f"secret/{number}" for number in range(1, 5))), "data/testdata.yaml": settings}
    results = found("secret/1 AC, secret/2 WA, secret/3 AC score.txt=7.0, secret/4 RTE")
    assert grader(tmp_path, OLD_SCORING, files).grade(results)["secret"] == Grade(verdict, score)


def test_samples_can_be_ignored_and_groups_nest(tmp_path: Path) -> None:
    files = {
        **cases("sample/1", "secret/a/1", "secret/a/2", "secret/b/x/1", "secret/b/y/1"),
        "data/testdata.yaml": "on_reject: continue\ngrader_flags: ignore_sample",
        "data/secret/testdata.yaml": "grader_flags: first_error accept_if_any_accepted",
        "data/secret/a/testdata.yaml": "grader_flags: min\naccept_score: 30",
        "data/secret/b/testdata.yaml": "grader_flags: always_accept\naccept_score: 35",
    }
    results = found("sample/1 WA, secret/a/1 AC, secret/a/2 AC, secret/b/x/1 AC, secret/b/y/1 WA")
    grades = grader(tmp_path, OLD_SCORING, files).grade(results)
    assert grades["sample"].verdict == "WA"
    assert grades["secret/a"] == Grade("AC", 30)
    assert grades["secret/b"] == Grade("AC", 35)
    assert grades[""] == Grade("AC", 65)


def wanted(grader: Grader, verdicts: dict[str, str]) -> list[str]:
    """The cases that are run when they come to these verdicts; AC where nothing is said."""
    results: dict[str, Found] = {}
    for case in grader.tree.cases():
        if grader.wanted(case.name, results):
            results[case.name] = Found(verdicts.get(case.name, "AC"))
    return [*results]


def test_on_reject_break_asks_for_no_more_of_the_group_and_of_those_around_it(tmp_path: Path) -> None:
    files = cases("secret/a/1", "secret/a/2", "secret/b/1", "secret/c/1")
    breaks = grader(tmp_path / "1", LEGACY, files)
    assert wanted(breaks, {"secret/a/1": "WA"}) == ["secret/a/1"]
    within = {**files, "data/testdata.yaml": "on_reject: continue", "data/secret/a/testdata.yaml": "on_reject: break"}
    assert wanted(grader(tmp_path / "2", LEGACY, within), {"secret/a/1": "WA"}) == [
        "secret/a/1", "secret/b/1", "secret/c/1",
    ]  # fmt: skip
    lenient = {**files, "data/secret/a/testdata.yaml": "on_reject: break\ngrader_flags: always_accept"}
    assert wanted(grader(tmp_path / "3", LEGACY, lenient), {"secret/a/1": "WA", "secret/b/1": "TLE"}) == [
        "secret/a/1", "secret/b/1",
    ]  # fmt: skip


def test_what_comes_after_a_break_has_no_say(tmp_path: Path) -> None:
    results = found("secret/1 WA, secret/2 RTE, secret/3 AC")
    assert grader(tmp_path, LEGACY, THREE).grade(results)[""].verdict == "WA"


def test_a_custom_grader_is_given_results_and_flags_and_its_word_counts(tmp_path: Path) -> None:
    files = {**THREE, "data/secret/testdata.yaml": "grading: custom\ngrader_flags: half max"}
    made = grader(tmp_path, OLD_SCORING + "", {**files, "data/testdata.yaml": "on_reject: continue"})
    asked: list[tuple[list[str], str]] = []

    def run(flags: Sequence[str], text: str) -> str:
        asked.append(([*flags], text))
        return "AC 12.5\n"

    made.run_grader = run
    assert made.grade(found("secret/1 AC score.txt=2, secret/2 WA, secret/3 TLE"))[""] == Grade("AC", 12.5)
    assert asked == [(["half", "max"], "AC 2\nWA 0\nTLE 0\n")]
    for wrong in ("", "AC", "12", "OK 5", "AC 5\nAC 5"):
        made.run_grader = lambda flags, text, wrong=wrong: wrong  # type: ignore[misc]
        with pytest.raises(CheckerError, match="the grader wrote"):
            made.grade(found("secret/1 AC, secret/2 AC, secret/3 AC"))


# --- test_group.yaml --------------------------------------------------------------------------------------------------

GROUPS = {
    **cases("sample/1", "secret/a/1", "secret/a/2", "secret/b/1", "secret/b/2", "secret/c/1", "secret/c/2"),
    "data/secret/a/test_group.yaml": "max_score: 20",
    "data/secret/b/test_group.yaml": "max_score: 30\nscore_aggregation: sum",
    "data/secret/c/test_group.yaml": "max_score: 50\nscore_aggregation: min",
}
ALL = found(", ".join(f"{name[5:-3]} AC" for name in GROUPS if name.endswith(".in")))


@pytest.mark.parametrize(
    ("change", "verdict", "score"),
    [
        ("", "AC", 100),
        ("secret/a/2 WA", "WA", 80),
        ("secret/b/2 TLE", "TLE", 85),
        ("secret/c/2 RTE", "RTE", 50),
        ("secret/b/1 AC score_multiplier.txt=0.5", "AC", 92.5),
        ("secret/b/1 AC score.txt=3", "AC", 88),
        ("secret/c/1 AC score_multiplier.txt=0.1", "AC", 55),
        ("sample/1 AC score.txt=9", "AC", 100),
    ],
)
def test_pass_fail_sum_and_min_with_scores_of_the_validator(
    tmp_path: Path, change: str, verdict: str, score: float
) -> None:
    results = ALL | (found(change) if change else {})
    assert grader(tmp_path, NEW_SCORING, GROUPS).grade(results)[""] == Grade(verdict, score)


@pytest.mark.parametrize(
    ("text", "change", "word"),
    [
        (OLD_SCORING, "secret/a/1 AC score.txt=much", "'much'"),
        (OLD_SCORING, "secret/a/1 AC score.txt=nan", "one number"),
        (OLD_SCORING, "secret/a/1 AC score.txt=1_0", "one number"),
        (NEW_SCORING, "secret/a/1 AC score.txt=1", "pass-fail"),
        (NEW_SCORING, "secret/b/1 AC score.txt=16", "from 0 to 15"),
        (NEW_SCORING, "secret/b/1 AC score.txt=-1", "from 0 to 15"),
        (NEW_SCORING, "secret/b/1 AC score_multiplier.txt=1.5", "from 0 to 1"),
        (NEW_SCORING, "secret/b/1 AC score_multiplier.txt=1 score.txt=1", "score.txt and"),
        (NEW_SCORING, "secret/b/1 WA score_multiplier.txt=1", "rejected"),
    ],
)
def test_a_score_that_breaks_a_rule_is_the_validators_fault(tmp_path: Path, text: str, change: str, word: str) -> None:
    with pytest.raises(CheckerError, match=word):
        grader(tmp_path, text, GROUPS).grade(ALL | found(change))


@pytest.mark.parametrize(
    ("text", "change", "score"),
    [
        (LEGACY + "type: scoring\n", "secret/1 AC score.txt=5", 7),
        (OLD_SCORING, "secret/1 WA score.txt=5", 2),
        (LEGACY, "secret/1 AC score.txt=5", 3),
        (LEGACY, "secret/1 AC score.txt=much", 3),
    ],
)
def test_the_validators_score_counts_in_scoring_packages_for_what_it_accepts(
    tmp_path: Path, text: str, change: str, score: float
) -> None:
    made = grader(tmp_path, text, {**THREE, "data/testdata.yaml": "on_reject: continue"})
    results = found("secret/1 AC, secret/2 AC, secret/3 AC") | found(change)
    assert made.grade(results)["secret"].score == score


def test_an_unbounded_score_is_the_validators_alone(tmp_path: Path) -> None:
    files = {**THREE, "data/secret/test_group.yaml": "max_score: unbounded"}
    made = grader(tmp_path, NEW_SCORING, files)
    results = found("secret/1 AC score.txt=1000, secret/2 WA, secret/3 AC score.txt=0.5")
    assert made.grade(results)[""] == Grade("WA", 1000.5)
    for wrong, word in (("secret/2 AC", "no score.txt"), ("secret/2 AC score_multiplier.txt=1", "unbounded")):
        with pytest.raises(CheckerError, match=word):
            made.grade(results | found(wrong))


def test_a_group_that_requires_another_is_not_asked_for_when_that_fails(tmp_path: Path) -> None:
    files = {**GROUPS, "data/secret/c/test_group.yaml": "max_score: 50\nrequire_pass: [sample, secret/a]"}
    made = grader(tmp_path, NEW_SCORING, files)
    ran = wanted(made, {"secret/a/2": "WA"})
    assert ran == ["sample/1", "secret/a/1", "secret/a/2", "secret/b/1", "secret/b/2"]
    grades = made.grade({name: ALL[name] for name in ran} | found("secret/a/2 WA"))
    assert (grades[""], grades["secret/c"]) == (Grade("WA", 30), Grade("WA", 0))


def test_a_pass_fail_package_has_the_verdict_of_its_first_failure(tmp_path: Path) -> None:
    made = grader(tmp_path, NEW, THREE)
    assert made.grade(found("secret/1 AC, secret/2 TLE, secret/3 WA"))[""] == Grade("TLE")
    assert wanted(made, {"secret/1": "WA"}) == ["secret/1", "secret/2", "secret/3"]
