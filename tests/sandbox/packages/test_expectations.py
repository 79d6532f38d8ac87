"""What authors say of their submissions: folders, submissions.yaml, comments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from package_files import LEGACY, NEW, cases, write_package

from sandbox.errors import InvalidProblem
from sandbox.packages.cases import read_cases
from sandbox.packages.expectations import Author, SubmissionOutcome, glob_matches, surprises
from sandbox.packages.grading import Found, Grader
from sandbox.packages.programs import Sources
from sandbox.packages.settings import read_settings

DATA = cases("sample/1", "secret/a/1", "secret/a/2", "secret/b/1")
NAMES = ("sample/1", "secret/a/1", "secret/a/2", "secret/b/1")


class Case:
    def __init__(self, root: Path, text: str, submissions: str = "", **files: str) -> None:
        more = {"submissions/submissions.yaml": submissions} if submissions else {}
        self.package = write_package(root, {"problem.yaml": text, **DATA, **more, **files})
        self.settings = read_settings(self.package)
        self.tree = read_cases(self.package, self.settings).tree

    def expected(self, name: str, source: str = "") -> Any:
        author = Author(self.package, self.settings, self.tree)
        return author.expected(name, Sources(Path(name), {Path(name).name: source.encode()}))

    def surprises(self, name: str, verdicts: str, source: str = "", *, message: str = "") -> list[str]:
        """`verdicts`: of the four cases in order."""
        found = zip(NAMES, verdicts.split(), strict=False)
        results = {each: Found(verdict, {"judgemessage.txt": message}) for each, verdict in found}
        outcome = SubmissionOutcome(results, Grader(self.settings, self.tree).grade(results), (0, 100))
        return surprises(self.expected(name, source), outcome)


@pytest.mark.parametrize(
    ("glob", "name", "fits"),
    [
        ("accepted", "accepted/a.py", True),
        ("accepted/*", "accepted/a.py", True),
        ("accepted/", "accepted/a.py", True),
        ("*/a.py", "accepted/a.py", True),
        ("*", "accepted/a.py", True),
        ("acc*", "accepted/a.py", True),
        ("accepted/{a,b}.{py,cpp}", "accepted/b.cpp", True),
        ("accepted/{a,b}.py", "accepted/c.py", False),
        ("accepted/*.cpp", "accepted/a.py", False),
        ("*.py", "accepted/a.py", False),
        ("accepte", "accepted/a.py", False),
        ("accepted/[ab].py", "accepted/a.py", False),
        ("secret/*-easy", "secret/1-easy", True),
        ("secret/group1", "secret/group1/x/3", True),
        ("secret/group1", "secret/group10/3", False),
    ],
)
def test_globs_match_within_names_and_stand_for_what_is_below(glob: str, name: str, fits: bool) -> None:
    assert glob_matches(glob, name) is fits


@pytest.mark.parametrize(
    ("folder", "good", "bad"),
    [
        ("accepted", ["AC AC AC AC"], ["AC WA AC AC", "AC AC AC TLE"]),
        ("rejected", ["AC WA AC TLE", "RTE AC AC AC"], ["AC AC AC AC"]),
        ("wrong_answer", ["AC WA AC AC"], ["AC AC AC AC", "AC WA AC TLE"]),
        ("time_limit_exceeded", ["AC AC TLE AC"], ["AC WA TLE AC", "AC AC AC AC"]),
        ("run_time_error", ["RTE RTE AC AC"], ["WA RTE AC AC"]),
        ("brute_force", ["AC RTE AC TLE", "AC AC AC TLE"], ["AC WA AC TLE", "AC AC AC AC"]),
    ],
)
def test_a_folder_says_what_cases_may_and_must_be_in_the_new_versions(
    tmp_path: Path, folder: str, good: list[str], bad: list[str]
) -> None:
    case = Case(tmp_path, NEW)
    assert [case.surprises(f"{folder}/a.py", each) for each in good] == [[]] * len(good)
    assert all(case.surprises(f"{folder}/a.py", each) for each in bad)


@pytest.mark.parametrize(
    ("folder", "comment", "verdicts", "right"),
    [
        ("accepted", "", "AC AC AC AC", True),
        ("accepted", "", "AC AC AC WA", False),
        ("wrong_answer", "", "AC WA", True),
        ("wrong_answer", "", "AC TLE", False),
        ("time_limit_exceeded", "", "AC TLE", True),
        ("run_time_error", "", "RTE", True),
        ("run_time_error", "", "WA", False),
        ("slow_accepted", "", "AC AC AC TLE", True),
        ("rejected", "", "TLE", True),
        ("wrong_answer", "// @EXPECTED_RESULTS@: CORRECT", "AC AC AC AC", True),
        ("wrong_answer", "/* @EXPECTED_RESULTS@: WRONG-ANSWER, TIMELIMIT */", "AC TLE", True),
        ("wrong_answer", "# @EXPECTED_RESULTS@: ACCEPTED, TIME_LIMIT_EXCEEDED", "AC WA", False),
        ("wrong_answer", "#@EXPECTED_RESULT@: AC", "AC WA", False),
        ("wrong_answer", "# @EXPECTED_RESULTS@: RUN-ERROR", "AC RTE", True),
    ],
)
def test_a_folder_or_a_comment_in_its_place_says_the_final_verdict_in_the_legacy_versions(
    tmp_path: Path, folder: str, comment: str, verdicts: str, right: bool
) -> None:
    assert (Case(tmp_path, LEGACY).surprises(f"{folder}/a.py", verdicts, comment) == []) is right


def test_nothing_is_expected_of_a_folder_that_nobody_knows(tmp_path: Path) -> None:
    assert Case(tmp_path, LEGACY).expected("mixed/a.py").rules == ()
    assert Case(tmp_path, NEW).expected("mixed/a.py").rules == ()
    named = Case(tmp_path / "2", NEW, "mixed: {required: [WA]}")
    assert named.surprises("mixed/a.py", "AC WA TLE RTE") == []


def test_submissions_yaml_adds_to_the_folder_and_replaces_it_by_its_name(tmp_path: Path) -> None:
    adds = Case(tmp_path / "1", NEW, "'time_limit_exceeded/*': {required: [RTE]}")
    assert adds.surprises("time_limit_exceeded/a.py", "AC TLE AC AC") == [
        "no case is RTE (submissions.yaml: time_limit_exceeded/*)"
    ]
    replaces = Case(tmp_path / "2", NEW, "time_limit_exceeded: {permitted: [AC, WA, TLE]}")
    assert replaces.surprises("time_limit_exceeded/a.py", "AC TLE WA AC") == []
    assert replaces.surprises("time_limit_exceeded/a.py", "AC AC WA AC") == [
        "no case is TLE (submissions/time_limit_exceeded/)"
    ]


def test_a_group_or_a_case_may_have_rules_of_its_own(tmp_path: Path) -> None:
    text = "rejected/a.py:\n  sample: {permitted: [AC]}\n  secret/a: {permitted: [AC]}\n  secret/b: {required: [TLE]}"
    case = Case(tmp_path, NEW, text)
    assert case.surprises("rejected/a.py", "AC AC AC TLE") == []
    assert case.surprises("rejected/a.py", "AC AC WA TLE") == [
        "WA in secret/a/2, where only AC is permitted (submissions.yaml: rejected/a.py)"
    ]
    assert case.surprises("rejected/a.py", "AC AC AC WA") == [
        "no case is TLE in secret/b (submissions.yaml: rejected/a.py)"
    ]


def test_a_message_and_a_score_may_be_expected(tmp_path: Path) -> None:
    text = "'*/a.py': {message: too long}\n'*/b.py': {score: [10, 50], secret/a: {score: 0}}\n"
    files = {f"data/secret/{group}/test_group.yaml": "max_score: 50" for group in "ab"}
    case = Case(tmp_path, NEW + "type: scoring\n", text, **files)
    assert case.surprises("rejected/a.py", "AC WA AC AC", message="it is too long.") == []
    assert "too long" in case.surprises("rejected/a.py", "AC WA AC AC", message="short")[0]
    assert case.surprises("rejected/b.py", "AC WA AC AC") == []
    assert case.surprises("rejected/b.py", "AC AC AC WA") == [
        "expected a score of 0, found 50 in secret/a (submissions.yaml: */b.py)"
    ]


def test_language_entry_point_and_use_for_time_limit_are_read(tmp_path: Path) -> None:
    text = """
    accepted/a.py: {language: python3, entrypoint: b.py, authors: [Me], model_solution: true}
    accepted/b.py: {use_for_time_limit: false}
    accepted: {use_for_time_limit: false}
    wrong_answer/c.py: {use_for_time_limit: upper}
    """
    case = Case(tmp_path, NEW, text)
    found = case.expected("accepted/a.py")
    assert (found.language, found.entry, found.lower) == ("python3", "b.py", [])
    names = ("wrong_answer/d", "wrong_answer/c", "time_limit_exceeded/a", "brute_force/a", "rejected/a")
    bounds = [(len(said.lower), len(said.upper)) for said in (case.expected(f"{name}.py") for name in names)]
    assert bounds == [(1, 0), (1, 1), (0, 1), (0, 0), (0, 0)]


def test_a_bound_of_the_time_limit_says_what_the_verdicts_are(tmp_path: Path) -> None:
    text = "rejected/low.py: {use_for_time_limit: lower}\nrejected/high.py: {use_for_time_limit: upper}"
    case = Case(tmp_path, NEW, text + "\naccepted: {use_for_time_limit: lower}")
    assert case.surprises("rejected/low.py", "AC WA RTE AC") == []
    assert "TLE in secret/a/1" in case.surprises("rejected/low.py", "AC TLE AC WA")[0]
    assert case.surprises("rejected/high.py", "AC TLE AC WA") == []
    assert case.surprises("rejected/high.py", "AC WA AC AC") == ["no case is TLE (submissions.yaml: rejected/high.py)"]
    assert case.surprises("accepted/a.py", "AC WA AC AC") != []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("accepted/a.py: {use_for_time_limit: often}", "often"),
        ("accepted/a.py: {language: [cpp]}", "language"),
        ("accepted/a.py: {entrypoint: {a: 1}}", "entrypoint"),
        ("- accepted", "map of names"),
        ("accepted: [", "YAML"),
    ],
)
def test_what_judging_depends_on_in_submissions_yaml_is_refused_by_name(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(InvalidProblem, match=word):
        Case(tmp_path, NEW, text).expected("accepted/a.py")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("accepted: {permited: [AC]}", "'permited'; did you mean 'permitted'"),
        ("accepted: {colour: red}", "unknown key 'colour'"),
        ("accepted: {permitted: [OK]}", "'OK'"),
        ("accepted: {permitted: 5}", "permitted"),
        ("accepted: {secret/z: {permitted: [AC]}}", "'secret/z' is neither a key nor a group"),
        ("accepted: {secret/a: {permitted: [OK]}}", "secret/a: permitted: 'OK'"),
        ("accepted: {score: 5}", "score has no effect: the problem's type"),
        ("'accepted/*': {use_for_time_limit: lower, permitted: [AC, TLE]}", "TLE not permitted"),
        ("accepted: [AC]", "accepted"),
        ("accepted: {permitted: [AC]}\naccepted: {permitted: [WA]}", "'accepted' is there twice, with two values"),
        ("acepted/*: {permitted: [AC]}", "'acepted/*' matches no submission"),
        ("'accepted/{a,b.py': {permitted: [AC]}", "matches no submission"),
        ("accepted/}a{: {permitted: [AC]}", "matches no submission"),
    ],
)
def test_an_expectation_that_cannot_be_read_is_noted_and_left_out(tmp_path: Path, text: str, word: str) -> None:
    case = Case(tmp_path, NEW, text)
    author = Author(case.package, case.settings, case.tree, ["accepted/a.py"])
    assert len(author.notes) == 1, author.notes
    assert word in author.notes[0]
    assert case.surprises("accepted/a.py", "AC AC AC AC") == []
    assert case.surprises("accepted/a.py", "AC WA AC AC") != []  # its folder's


@pytest.mark.parametrize(
    ("comment", "word"),
    [
        ("# Without @EXPECTED_RESULTS@ in it", "'in it' names no verdict"),
        ("# @EXPECTED_RESULTS@", "'' names no verdict"),
        ("# @EXPECTED_RESULTS@: CHECK-MANUALLY", "'CHECK-MANUALLY' names no verdict"),
        ("# @EXPECTED_RESULTS@: NONE-SUBMIT-FAILS", "'NONE-SUBMIT-FAILS' names no verdict"),
        ("# @EXPECTED_RESULTS@: WRONG-ANSWER, SOMETHING", "names no verdict"),
        ("# @EXPECTED_GRADES@ A B", "@EXPECTED_GRADES@ in a.py: 'A B' names no verdict"),
        ("# @EXPECTED_SCORE@: many", "'many': must be a number"),
    ],
)
def test_a_comment_that_cannot_be_read_is_passed_over(tmp_path: Path, comment: str, word: str) -> None:
    case = Case(tmp_path, LEGACY)
    (note,) = case.expected("accepted/a.py", comment).notes
    assert (word in note, "passed over" in note) == (True, True)
    assert case.surprises("accepted/a.py", "AC AC AC AC", comment) == []
    assert case.surprises("accepted/a.py", "AC WA AC AC", comment) != []


def test_a_comment_that_says_another_thing_than_its_folder_is_noted(tmp_path: Path) -> None:
    case = Case(tmp_path, LEGACY)
    same, other = (
        case.expected("wrong_answer/a.py", f"# @EXPECTED_RESULTS@: {word}").notes
        for word in ("WRONG-ANSWER", "TIMELIMIT")
    )
    assert (same, other) == ((), ("@EXPECTED_RESULTS@ in a.py says TLE, which counts in place of its folder",))


def test_a_glob_with_very_many_choices_is_matched_at_once() -> None:
    assert glob_matches("accepted/" + "{a,b}" * 40, "accepted/" + "ab" * 20)
    assert not glob_matches("accepted/" + "{a,b}" * 40, "accepted/" + "ab" * 19 + "ac")


def test_a_comment_may_tell_the_grades_of_groups_and_the_score(tmp_path: Path) -> None:
    files = {"data/testdata.yaml": "on_reject: continue\nrange: 0 100", "data/sample/testdata.yaml": "accept_score: 0"}
    case = Case(tmp_path, LEGACY + "type: scoring\n", **files)
    graded = "// @EXPECTED_GRADES@ AC WA\n"
    assert case.surprises("rejected/a.py", "AC AC AC WA", graded) == []
    assert "expected AC WA of the groups" in case.surprises("rejected/a.py", "AC WA AC WA", graded)[0]
    assert case.surprises("rejected/a.py", "AC AC AC WA", "@EXPECTED_SCORE@: 2") == []
    assert "found 2" in case.surprises("rejected/a.py", "AC AC AC WA", "@EXPECTED_SCORE@: 3")[0]


def test_a_program_that_does_not_compile_is_a_surprise_unless_that_was_said(tmp_path: Path) -> None:
    case = Case(tmp_path, LEGACY)
    broken = SubmissionOutcome({}, {}, (0, 1), compiled=False)
    assert surprises(case.expected("accepted/a.py"), broken) == ["does not compile (submissions/accepted/)"]
    assert surprises(case.expected("accepted/a.py", "@EXPECTED_RESULTS@: COMPILER-ERROR"), broken) == []


def test_the_best_score_is_for_accepted_submissions_alone(tmp_path: Path) -> None:
    files = {
        "data/testdata.yaml": "on_reject: continue\ngrader_flags: ignore_sample\nrange: 0 100",
        "data/secret/testdata.yaml": "grader_flags: accept_if_any_accepted",
        "data/secret/a/testdata.yaml": "grader_flags: min\naccept_score: 60",
        "data/secret/b/testdata.yaml": "grader_flags: min\naccept_score: 40",
    }
    case = Case(tmp_path, LEGACY + "type: scoring\n", **files)
    best, partial = "AC AC AC AC", "AC AC AC WA"
    for folder, right, wrong in (("accepted", best, partial), ("partially_accepted", partial, best)):
        assert case.surprises(f"{folder}/a.py", right) == []
        assert case.surprises(f"{folder}/a.py", wrong) != []
