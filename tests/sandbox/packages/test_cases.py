"""The tree of groups and cases, with settings of both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from package_files import LEGACY, NEW, cases, write_package

from sandbox.errors import InvalidProblem
from sandbox.packages.cases import read_cases
from sandbox.packages.package import read_package
from sandbox.packages.settings import read_settings
from sandbox.packages.tree import CaseGroup, NewRules, OldRules

SCORING = NEW + "type: scoring\n"


def tree(root: Path, text: str, files: dict[str, str]) -> CaseGroup:
    package = write_package(root, {"problem.yaml": text, **files})
    return read_cases(package, read_settings(package)).tree


def rules(found: CaseGroup) -> dict[str, OldRules | NewRules]:
    return {group.name: group.rules for group in found.groups()}


def test_cases_and_groups_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    files = cases("secret/b/2", "secret/b/10", "secret/a", "sample/1", "secret/c/d/1", ".hidden/1")
    found = tree(tmp_path, LEGACY, files)
    assert [case.name for case in found.cases()] == [
        "sample/1",
        "secret/a",
        "secret/b/10",
        "secret/b/2",
        "secret/c/d/1",
    ]


def test_old_settings_are_inherited_key_by_key(tmp_path: Path) -> None:
    files = {
        **cases("secret/a/1", "secret/b/c/1"),
        "data/testdata.yaml": "on_reject: continue\ngrader_flags: ignore_sample\nrange: 0 100",
        "data/secret/testdata.yaml": "grader_flags: first_error",
        "data/secret/b/testdata.yaml": "accept_score: 5\noutput_validator_flags: case_sensitive",
    }
    found = rules(tree(tmp_path, LEGACY + "validator_flags: float_tolerance 1e-6", files))
    assert found[""] == OldRules(stop=False, flags=("ignore_sample",), low=0, high=100)
    assert found["secret/a"] == OldRules(stop=False, flags=("first_error",), low=0, high=100)
    assert found["secret/b/c"] == OldRules(stop=False, flags=("first_error",), accept_score=5, low=0, high=100)


def test_validator_arguments_of_problem_and_group_are_joined(tmp_path: Path) -> None:
    files = {**cases("secret/a/1", "secret/b"), "data/secret/a/testdata.yaml": "output_validator_flags: x 'y z'"}
    found = {
        case.name: case.validator_arguments for case in tree(tmp_path, LEGACY + "validator_flags: f", files).cases()
    }
    assert found == {"secret/a/1": ("f", "x", "y z"), "secret/b": ("f",)}


def test_new_settings_reach_cases_by_group_and_by_case(tmp_path: Path) -> None:
    files = {
        **cases("sample/1", "secret/a/1", "secret/a/in/2", "secret/b/1"),
        "data/secret/test_group.yaml": "output_validator_args: [s]",
        "data/secret/a/test_group.yaml": "args: ['{{most}}', b]\nmax_score: 60",
        "data/secret/a/in/2.yaml": "args: []\noutput_validator_args: [c]\nhint: none",
        "data/secret/a/1.files/words.txt": "a",
        "data/secret/b/test_group.yaml": "max_score: 40\nrequire_pass: [sample, secret/a]\nscore_aggregation: min",
    }
    found = tree(tmp_path, SCORING + "constants: {most: 10}\n", files)
    by_name = {case.name: case for case in found.cases()}
    assert [*by_name] == ["sample/1", "secret/a/1", "secret/a/in/2", "secret/b/1"]
    assert [case.arguments for case in by_name.values()] == [(), ("10", "b"), (), ()]
    assert [case.validator_arguments for case in by_name.values()] == [(), ("s",), ("c",), ("s",)]
    assert [case.files is not None for case in by_name.values()] == [False, True, False, False]
    assert rules(found)["secret"] == NewRules("sum", 100)
    assert rules(found)["secret/a"] == NewRules("pass-fail", 60)
    assert rules(found)["secret/b"] == NewRules("min", 40, ("sample", "secret/a"))


def test_the_draft_may_have_settings_of_the_old_kind(tmp_path: Path) -> None:
    files = {**cases("secret/1"), "data/testdata.yaml": "grader_flags: min"}
    assert isinstance(tree(tmp_path, NEW.replace("2025-09", "2023-07-draft"), files).rules, OldRules)


def test_data_for_validators_and_names_that_other_judges_pass_over_are_noted(tmp_path: Path) -> None:
    files = cases("secret/1", "secret/1 (copy)", "invalid_answers/1")
    package = write_package(tmp_path, {"problem.yaml": NEW, **files})
    found = read_cases(package, read_settings(package))
    assert [case.name for case in found.tree.cases()] == ["secret/1 (copy)", "secret/1"]
    assert [note.partition(" (")[0] for note in found.notes if "copy" in note] == ["data/secret/1"]
    assert any("data/invalid_answers" in note for note in found.notes)


A = cases("secret/a/1")
SUM_A = {**A, "data/secret/a/test_group.yaml": "max_score: 5\nscore_aggregation: sum"}
B_NEEDS_A = {"data/secret/b/test_group.yaml": "max_score: 5\nrequire_pass: secret/a"}


@pytest.mark.parametrize(
    ("text", "files", "word"),
    [
        (LEGACY, {"data/secret/1.in": ""}, r"1\.ans"),
        (LEGACY, {"data/secret/x.txt": ""}, "no test case"),
        (LEGACY, {**A, "data/testdata.yaml": "on_reject: stop"}, "'stop'"),
        (LEGACY, {**A, "data/testdata.yaml": "grader_flags: median"}, "'median'"),
        (LEGACY, {**A, "data/testdata.yaml": "range: 5"}, "two numbers"),
        (LEGACY, {**A, "data/testdata.yaml": "range: 5 1"}, "the lower one first"),
        (LEGACY, {**A, "data/testdata.yaml": "max_score: 5"}, "'max_score'"),
        (LEGACY, {**A, "data/testdata.yaml": "output_validator_flags: {name: a, flags: b}"}, "output_validator_flags"),
        (NEW, cases("sample/1"), "secret"),
        (NEW, {"data/secret/1.in": ""}, r"1\.ans"),
        (NEW, {**A, **cases("secret/1")}, "beside the group"),
        (LEGACY, {**A, "data/secret/a/2.ans": ""}, r"2\.ans: has no input"),
        (NEW, {**A, "data/secret/a/2.ans": ""}, r"2\.ans: has no input"),
        (NEW, {**A, "data/secret/a/in/2.yaml": ""}, r"2\.yaml: has no input"),
        (NEW, {**A, "data/secret/2.files/x": ""}, r"2\.files: has no input"),
        (NEW, {**A, **cases("valid_output/1")}, r"1\.in: has no output file 1\.out"),
        (NEW, {**A, "data/invalid_output/1.in": ""}, r"1\.in: has no answer file"),
        (NEW, {**A, "data/secret/b/x": ""}, "secret/b: holds no test case"),
        (NEW, {**cases("sample/1"), "data/secret/.keep": ""}, "secret: holds no test case"),
        (NEW, {**A, **cases("secert/1")}, "secert"),
        (NEW, {**A, **cases("1")}, r"1\.in: is not supported here"),
        (NEW, {**A, "data/secret/a/test_group.yaml": "max_score: 5"}, "type scoring"),
        (NEW, {**A, "data/secret/a/test_group.yaml": "accept_score: 5"}, "'accept_score'"),
        (NEW, {**A, "data/secret/a/1.yaml": "max_score: 5"}, "'max_score'"),
        (NEW, {**A, "data/test_group.yaml": "args: []"}, "not supported here"),
        (NEW, {**A, "data/secret/a/b/test_group.yaml": "args: []"}, "not nested"),
        (NEW, {**A, "data/secret/a/test_group.yaml": "args: 5"}, "args"),
        (NEW, {**A, "data/secret/test_group.yaml": "static_validation_score: 5"}, "static_validation_score"),
        (NEW, {**A, "data/secret/test_group.yaml": "scoring: {score: 5}"}, "early draft"),
        (SCORING, A, "max_score is missing"),
        (SCORING, {**A, **cases("sample/1"), "data/sample/test_group.yaml": "max_score: 5"}, "sample has no score"),
        (SCORING, {**A, "data/secret/test_group.yaml": "max_score: many"}, "'many'"),
        (SCORING, {**A, "data/secret/test_group.yaml": "max_score: 2.5"}, "whole number"),
        (SCORING, {**A, "data/secret/a/test_group.yaml": "max_score: 5\nrequire_pass: b"}, "'b': must be sample"),
        (SCORING, {**A, "data/secret/a/test_group.yaml": "max_score: 5\nrequire_pass: sample"}, "must be sample"),
        (SCORING, {**A, "data/secret/a/test_group.yaml": "max_score: 5\nrequire_pass: secret"}, "'secret'"),
        (SCORING, {**cases("secret/1"), "data/secret/test_group.yaml": "require_pass: secret/a"}, "sample alone"),
        (SCORING, {**SUM_A, **cases("secret/b/1"), **B_NEEDS_A}, "must be pass-fail, not sum"),
        (SCORING, {**SUM_A, "data/secret/test_group.yaml": "score_aggregation: pass-fail"}, "must be pass-fail"),
    ],
)
def test_what_cannot_be_graded_is_refused_by_name(tmp_path: Path, text: str, files: dict[str, str], word: str) -> None:
    with pytest.raises(InvalidProblem, match=word):
        tree(tmp_path, text, files)


def test_the_default_validator_takes_the_arguments_of_each_case(tmp_path: Path) -> None:
    files = {
        **cases("secret/a/1", "secret/b"),
        "data/secret/a/testdata.yaml": "output_validator_flags: float_tolerance 1e-3",
    }
    text = LEGACY + "validator_flags: float_absolute_tolerance 1e-6 case_sensitive"
    found = read_package(write_package(tmp_path, {"problem.yaml": text, **files})).problem(1)
    assert [case.compare for case in found.cases] == [
        "kattis(case_sensitive float_tolerance 1e-3)",
        "kattis(float_absolute_tolerance 1e-6 case_sensitive)",
    ]


@pytest.mark.parametrize(
    ("text", "files", "word"),
    [
        (LEGACY + "validation: custom", {}, "no output_validators"),
        (LEGACY + "validation: custom interactive", {}, "no output_validators"),
        (NEW + "type: interactive", {}, "no output validator"),
        (NEW + "type: multi-pass", {}, "no output validator"),
        (LEGACY + "validation: custom", {"output_validators/a.py": "1", "output_validators/b.py": "1"}, "a.py, b.py"),
        (LEGACY + "validation: custom", {"output_validators/a/build": "x"}, "'build'"),
        (LEGACY + "validation: custom", {"output_validators/a.hs": "x"}, r"'\.hs'"),
        (NEW, {"output_validator/run": "x"}, "'run'"),
        (NEW, {"static_validator/a.py": "1"}, "static"),
        (LEGACY + "validator_flags: tolerance 5", {}, "'tolerance'"),
        (NEW, {"data/secret/test_group.yaml": "output_validator_args: [float_tolerance]", **A}, "float_tolerance"),
    ],
)
def test_a_validator_that_cannot_be_run_is_refused_by_name(
    tmp_path: Path, text: str, files: dict[str, str], word: str
) -> None:
    with pytest.raises(InvalidProblem, match=word):
        read_package(write_package(tmp_path, {"problem.yaml": text, **files}))
