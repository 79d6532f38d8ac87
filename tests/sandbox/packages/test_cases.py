"""The tree of groups and cases, with settings of both kinds."""

from __future__ import annotations

import os
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


def test_a_file_in_another_encoding_is_noted_by_name(tmp_path: Path) -> None:
    package = write_package(tmp_path, {"problem.yaml": NEW, **cases("secret/1", "secret/2", "secret/3")})
    (package / "data/secret/1.ans").write_bytes(b"\xef\xbb\xbf2\n")
    (package / "data/secret/2.in").write_bytes("2\n".encode("utf-16-le"))
    found = [note for note in read_cases(package, read_settings(package)).notes if "no program" in note]
    assert [note.partition(":")[0] for note in found] == [
        "data/secret/1.ans begins with a byte order mark (BOM)", "data/secret/2.in is UTF-16, read as UTF-8",
    ]  # fmt: skip


def test_data_for_validators_and_names_that_other_judges_pass_over_are_noted(tmp_path: Path) -> None:
    files = cases("secret/1", "secret/1 (copy)", "invalid_answers/1")
    package = write_package(tmp_path, {"problem.yaml": NEW, **files})
    found = read_cases(package, read_settings(package))
    assert [case.name for case in found.tree.cases()] == ["secret/1 (copy)", "secret/1"]
    assert [note.partition(" (")[0] for note in found.notes if "copy" in note] == ["data/secret/1"]
    assert any("data/invalid_answers" in note for note in found.notes)


A = cases("secret/a/1")
DRAFT = NEW.replace("2025-09", "2023-07-draft")
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
        (NEW, {"data/secret/1.in": ""}, r"1\.ans"),
        (NEW, {**A, "data/secret/a/test_group.yaml": "args: {a: 5}"}, "args"),
        (
            NEW,
            {**A, "data/secret/a/test_group.yaml": "output_validator_flags: a"},
            "did you mean 'output_validator_args'",
        ),
        (
            DRAFT,
            {**A, "data/testdata.yaml": "", "data/secret/test_group.yaml": "args: [a]"},
            "keep one of the two kinds",
        ),
        (NEW, {**A, "data/secret/test_group.yaml": "static_validation_score: 5"}, "static_validation_score"),
        (SCORING, A, "max_score is missing"),
        (SCORING, cases("sample/1"), "secret: holds no test case"),
        (SCORING, {**cases("secret/1"), "data/secret/b/x": ""}, "beside the group 'b'"),
        (SCORING, {**SUM_A, "data/secret/b/test_group.yaml": "max_score: 5"}, "secret/b: holds no test case"),
        (SCORING, {**SUM_A, "data/test_group.yaml": "max_score: 5"}, "max_score is not supported: this directory"),
        (SCORING, {**SUM_A, **cases("secret/a/b/1"), "data/secret/a/b/test_group.yaml": "max_score: 5"}, "no score"),
        (SCORING, {**SUM_A, "data/secret/test_group.yaml": "scoring: {score: 5}"}, "early draft"),
        (LEGACY + "type: scoring\n", {**A, "data/testdata.yaml": "scoring: {score: 5}"}, "early draft"),
        (LEGACY, {**A, "data/testdata.yaml": "on_rejekt: continue"}, "did you mean 'on_reject'"),
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


@pytest.mark.parametrize(
    ("text", "files", "word"),
    [
        (LEGACY, {"testdata.yaml": "max_score: 5"}, "testdata.yaml: unknown key 'max_score'"),
        (LEGACY, {"secret/a/2.ans": ""}, "data/secret/a/2.ans has no input file 2.in beside it, and is not used"),
        (LEGACY, {"secret/a/test_group.yaml": "args: [b]"}, "data/secret/a/test_group.yaml is of later versions"),
        (NEW, {"secret/a/2.ans": ""}, "data/secret/a/2.ans has no input file"),
        (NEW, {"secret/a/in/2.yaml": ""}, "data/secret/a/in/2.yaml has no input file"),
        (NEW, {"secret/2.files/x": ""}, "data/secret/2.files has no input file"),
        (NEW, {"secret/1.in": "3 4", "secret/1.ans": "7"}, "data/secret holds test cases beside the group 'a'"),
        (NEW, {"secret/b/x": ""}, "data/secret/b holds no test case, and is not used"),
        (NEW, {"secert/1.in": "", "secert/1.ans": ""}, "data/secert is neither in sample/ nor in secret/"),
        (NEW, {"1.in": "", "1.ans": ""}, "data/1.in is neither in sample/ nor in secret/"),
        (NEW, {"secret/a/test_group.yaml": "max_score: 5"}, "max_score has no effect: the problem's type"),
        (NEW, {"secret/a/test_group.yaml": "accept_score: 5"}, "unknown key 'accept_score'"),
        (NEW, {"secret/a/testdata.yaml": "accept_score: 5"}, "data/secret/a/testdata.yaml is of another version"),
        (NEW, {"secret/a/1.yaml": "max_score: 5"}, "1.yaml: unknown key 'max_score'"),
        (NEW, {"secret/test_group.yaml": "scoring: {score: 5}"}, "scoring has no effect: the problem's type"),
        (NEW, {"valid_output/1.in": "", "valid_output/1.ans": ""}, "data/valid_output/1.in has no output file 1.out"),
        (NEW, {"invalid_output/1.in": ""}, "1.in: has no answer file 1.ans beside it; what is in"),
        (
            NEW,
            {"invalid_input/1.in": "", "invalid_input/1.yaml": "- a"},
            "must be a map of names to values; what is in",
        ),
        (
            SCORING,
            {"sample/1.in": "", "sample/1.ans": "", "sample/test_group.yaml": "max_score: 5"}
            | {"secret/a/test_group.yaml": "max_score: 5"},
            "max_score has no effect: there is no score here",
        ),
    ],
)
def test_data_that_nobody_judges_by_is_noted_and_left_out(
    tmp_path: Path, text: str, files: dict[str, str], word: str
) -> None:
    written = {**A, **{f"data/{name}": content for name, content in files.items()}}
    package = write_package(tmp_path, {"problem.yaml": text, **written})
    found = read_cases(package, read_settings(package))
    assert len([note for note in found.notes if word in note]) == 1, found.notes
    assert "secret/a/1" in [case.name for case in found.tree.cases()]


def test_cases_of_pass_fail_packages_lie_anywhere_below_secret(tmp_path: Path) -> None:
    names = ["secret/1", "secret/a/1", "secret/a/in/2", "secret/b"]
    assert [case.name for case in tree(tmp_path, NEW, cases(*reversed(names))).cases()] == names


def test_samples_alone_decide_where_there_is_nothing_else(tmp_path: Path) -> None:
    package = write_package(tmp_path, {"problem.yaml": NEW, **cases("sample/1"), "data/secret/.keep": ""})
    found = read_cases(package, read_settings(package))
    assert [case.name for case in found.tree.cases()] == ["sample/1"]
    assert "data/secret holds no test case, so the samples alone decide" in found.notes


def test_arguments_are_inherited_from_data_down_to_any_directory(tmp_path: Path) -> None:
    files = {
        **cases("sample/1", "secret/1", "secret/a/in/2"),
        "data/test_group.yaml": "output_validator_args: [d]",
        "data/secret/a/in/test_group.yaml": "args: [x]",
    }
    flags = NEW + "validator_flags: e f\n"
    for root, text in ((tmp_path / "1", NEW), (tmp_path / "2", flags)):
        found = [(case.arguments, case.validator_arguments) for case in tree(root, text, files).cases()]
        assert found == [((), ("d",)), ((), ("d",)), (("x",), ("d",))]
    del files["data/test_group.yaml"]
    assert {case.validator_arguments for case in tree(tmp_path / "3", flags, files).cases()} == {("e", "f")}


def test_old_flags_may_be_a_map_and_have_commas_and_quotes(tmp_path: Path) -> None:
    files = {
        **cases("secret/a/1", "secret/b/1", "secret/c/1"),
        "data/secret/c/testdata.yaml": "output_validator_args: [a b]\noutput_visualizer_args: --draw",
        "data/testdata.yaml": "grader_flags: sum, ignore_sample",
        "data/secret/a/testdata.yaml": "output_validator_flags: {name: v, flags: a 'b c'}",
        "data/secret/b/testdata.yaml": "output_validator_flags: it's",
    }
    found = tree(tmp_path, LEGACY, files)
    assert [case.validator_arguments for case in found.cases()] == [("a", "b c"), ("it's",), ("a b",)]
    assert isinstance(found.rules, OldRules)
    assert found.rules.flags == ("sum", "ignore_sample")


@pytest.mark.parametrize("text", [LEGACY, NEW])
def test_links_within_data_are_followed_unless_they_have_no_end(tmp_path: Path, text: str) -> None:
    package = write_package(tmp_path, {"problem.yaml": text, **cases("secret/a/1", "secret/b/1")})
    (package / "data/secret/c").symlink_to("a")
    found = read_cases(package, read_settings(package)).tree
    assert [case.name for case in found.cases()] == ["secret/a/1", "secret/b/1", "secret/c/1"]
    (package / "data/secret/a/x").symlink_to("../b")
    (package / "data/secret/b/y").symlink_to("../a")
    with pytest.raises(InvalidProblem, match="is a symbolic link to a directory that it lies in"):
        read_cases(package, read_settings(package))


def test_links_that_make_a_few_directories_into_very_many_are_refused(tmp_path: Path) -> None:
    package = write_package(tmp_path, {"problem.yaml": LEGACY, **cases("secret/z/1")})
    for number in range(20):
        folder = package / f"data/secret/{number:02}"
        folder.mkdir()
        for name in "ab":
            (folder / name).symlink_to(f"../{number + 1:02}" if number < 19 else "../z")
    with pytest.raises(InvalidProblem, match="lead to more than 1000 directories"):
        read_cases(package, read_settings(package))


def test_a_pipe_is_no_validator(tmp_path: Path) -> None:
    package = write_package(tmp_path, {"problem.yaml": NEW, "output_validator/README": ""})
    os.mkfifo(package / "output_validator/v.py")
    with pytest.raises(InvalidProblem, match="output validator cannot be run"):
        read_package(package)


def test_a_pipe_is_no_test_case(tmp_path: Path) -> None:
    package = write_package(tmp_path, {"problem.yaml": LEGACY, **cases("secret/1"), "data/secret/2.ans": ""})
    os.mkfifo(package / "data/secret/2.in")
    with pytest.raises(InvalidProblem, match=r"2\.in: is no file"):
        read_cases(package, read_settings(package))


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
        (LEGACY + "validator_flags: tolerance 5", {}, "'tolerance'"),
        (NEW, {"data/secret/test_group.yaml": "output_validator_args: [float_tolerance]", **A}, "float_tolerance"),
    ],
)
def test_a_validator_that_cannot_be_run_is_refused_by_name(
    tmp_path: Path, text: str, files: dict[str, str], word: str
) -> None:
    with pytest.raises(InvalidProblem, match=word):
        read_package(write_package(tmp_path, {"problem.yaml": text, **files}))
