"""Packages as read from disk: what is read, what is refused by name, what is noted by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from package_files import ADD, LEGACY, NEW, RIGHT, TIMED, Command, Packages, cases, write_package

from sandbox.core.nouns import MIB
from sandbox.errors import InvalidProblem, InvalidProgram, ToolchainMissing
from sandbox.packages.package import Package, read_package

DRAFT = NEW.replace("2025-09", "2023-07-draft")
SCORES = "type scoring: scores are not computed; a program is accepted if it passes every test"
UNUSED = "data/secret/2.ans has no input file beside it, and is not used"
CUSTOM = LEGACY + "validation: custom\n"


def read(root: Path, text: str, files: dict[str, str] | None = None) -> Package:
    return read_package(write_package(root, {"problem.yaml": text, **(files or {})}))


def refusal(root: Path, text: str, files: dict[str, str] | None = None) -> str:
    with pytest.raises((InvalidProblem, InvalidProgram)) as caught:
        read(root, text, files)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "factor"), [(LEGACY, 5), ("problem_format_version: legacy-icpc\n", 5), (DRAFT, 2), (NEW, 2)]
)
def test_a_package_without_a_word_has_the_formats_defaults(tmp_path: Path, text: str, factor: int) -> None:
    found = read(tmp_path, text)
    limits = found.problem.limits
    assert (found.types, found.time_limit, found.ac_to_limit, found.resolution_s) == ({"pass-fail"}, None, factor, 1)
    assert (limits.memory_bytes, limits.output_bytes) == (2048 * MIB, 8 * MIB)
    assert (found.problem.compare, found.problem.passes) == ("kattis", 1)


def test_limits_are_read(tmp_path: Path) -> None:
    limits = "limits: {time_multiplier: 3, memory: 512, output: 1, validation_time: 7, validation_output: 2}\n"
    found = read(tmp_path / "old", CUSTOM + limits, {"output_validators/v.py": "1"})
    assert (found.ac_to_limit, found.problem.limits.memory_bytes) == (3, 512 * MIB)
    referee = found.problem.referee_limits
    assert referee is not None
    assert (referee.cpu_s, referee.output_bytes) == (7, 2 * MIB)
    limits = "limits: {time_limit: 2.5, time_multipliers: {ac_to_time_limit: 4}, validation_passes: 5}\n"
    new = read(tmp_path / "new", NEW + "type: multi-pass\n" + limits, {"output_validator/v.py": "1"})
    assert (new.time_limit, new.ac_to_limit) == ((2.5, "problem.yaml"), 4)
    assert new.problem.passes == 5


@pytest.mark.parametrize(
    ("name", "text", "seconds"),
    [
        (".timelimit", "3\n", 3.0),
        ("domjudge-problem.ini", "probid='A'\ntimelimit='1.5'\n", 1.5),
        ("domjudge-problem.ini", "probid=A\n", None),
    ],
)
def test_a_time_limit_beside_problem_yaml_is_read(tmp_path: Path, name: str, text: str, seconds: float | None) -> None:
    assert read(tmp_path, LEGACY, {name: text}).time_limit == (seconds and (seconds, name))


@pytest.mark.promise("packages")
@pytest.mark.parametrize(
    ("text", "files", "word"),
    [
        ("problem_format_version: 2099\n", {}, "problem_format_version: '2099': must be one of legacy"),
        (NEW + "type: pvp\n", {}, "type: 'pvp': must be one of pass-fail"),
        (NEW + "type: submit-answer\n", {}, "'submit-answer'"),
        (NEW + "constants: {a: 1}\n", {}, "constants is not supported"),
        (LEGACY + "validation: magic\n", {}, "validation: 'magic'"),
        (LEGACY + "validations: custom\n", {}, "unknown key 'validations'; did you mean 'validation'?"),
        (LEGACY + "limts: {memory: 5}\n", {}, "did you mean 'limits'?"),
        (LEGACY + "limits: {memory: 5, memory: 6}\n", {}, "key 'memory' is there twice"),
        (LEGACY + "limits: 5\n", {}, "limits: '5': must be a map"),
        (LEGACY + "limits: {memory: much}\n", {}, "limits: memory: 'much': must be a number"),
        (LEGACY + "limits: {memory: nan}\n", {}, "must be a number from 1 to"),
        (LEGACY + "limits: {memory: -1}\n", {}, "must be a number from 1 to"),
        (LEGACY + "validator_flags: it's\n", {}, "words with closed quotes"),
        (LEGACY + "validator_flags: [[a]]\n", {}, "a text or a list of texts"),
        ("- a\n", {}, "must be a map"),
        ("a: [\n", {}, "is not YAML"),
        (LEGACY, {".timelimit": "two"}, "time limit: 'two': must be a number"),
        (LEGACY, {"domjudge-problem.ini": "timelimit = -1"}, "time limit: '-1'"),
        (CUSTOM, {}, "no output_validators/"),
        (NEW + "type: interactive\n", {}, "no output_validator/"),
        (CUSTOM, {"output_validators/a.py": "1", "output_validators/b.py": "1"}, "more than one output validator"),
        (CUSTOM, {"output_validators/v/build": "", "output_validators/v/v.c": ""}, "a script 'build'"),
        (NEW, {"output_validator/run": "", "output_validator/v.c": ""}, "a script 'run'"),
        (CUSTOM, {"output_validators/v.hs": "1"}, "no language for '.hs'"),
        (LEGACY, {"data/secret/1.in": "1\n"}, "1.in: has no answer file 1.ans"),
        (LEGACY, {"data/readme": ""}, "has no test case"),
        (LEGACY, cases("secret/1", answer=""), "blank"),
        (NEW, {**cases("secret/1"), "data/secret/1.files/words.txt": "a"}, "files beside a program"),
        (NEW, {**cases("secret/1"), "data/secret/1.yaml": "args: [a]"}, "args is not supported"),
        (NEW, {**cases("secret/1"), "data/test_group.yaml": "static_validation: true"}, "static_validation is not"),
        (NEW, {**cases("secret/1"), "data/secret/1.yaml": "output_validator_args: [brave]"}, "brave"),
        (LEGACY, {"include/python/util.py": ""}, "files beside every submission are not supported"),
    ],
)
def test_a_part_that_verdicts_depend_on_is_refused_by_name(
    tmp_path: Path, text: str, files: dict[str, str], word: str
) -> None:
    assert word in refusal(tmp_path, text, files)


@pytest.mark.parametrize(
    ("text", "files", "note"),
    [
        (LEGACY, {}, "problem.yaml: not read: name"),
        (LEGACY + "grading: {objective: min}\n", {}, "problem.yaml: not read: grading, name"),
        (LEGACY + "limits: {code: 9, languages: 3}\n", {}, "problem.yaml: limits: not read: code, languages"),
        (LEGACY + "type: scoring\n", {}, SCORES),
        (LEGACY, {**cases("secret/1"), "data/testdata.yaml": "range: 0 1"}, "testdata.yaml: not read: range"),
        (LEGACY, {"input_validators/v.py": "", "graders/g.py": ""}, "folders not read: graders, input_validators"),
        (NEW, cases("secret/1", "valid_output/1"), "folders not read: data/valid_output"),
        (LEGACY, {"output_validators/v.py": "1"}, "output_validators/ is not used: validation is default"),
        (LEGACY, {**cases("secret/1"), "data/secret/2.ans": ""}, UNUSED),
    ],
)
def test_a_part_that_is_not_followed_is_noted_by_name(
    tmp_path: Path, text: str, files: dict[str, str], note: str
) -> None:
    assert note in read(tmp_path, text, files).notes


def test_samples_come_first_and_cases_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = ("secret/10", "secret/2/b", "secret/2/a", "secret/1", "sample/2", "other/1")
    assert read(tmp_path, LEGACY, cases(*names)).names == (
        *("sample/2", "secret/1", "secret/10"),
        *("secret/2/a", "secret/2/b"),
    )


def test_arguments_of_the_output_validator_come_from_problem_group_and_case(tmp_path: Path) -> None:
    old = read(
        tmp_path / "old",
        CUSTOM + "validator_flags: -a 'b c'\n",
        {
            "output_validators/v.py": "1",
            **cases("secret/1", "secret/g/1"),
            "data/secret/g/testdata.yaml": 'output_validator_flags: 007 --say "of two"',
        },
    )
    assert [case.referee_arguments for case in old.problem.cases] == [
        ("-a", "b c"),
        ("-a", "b c", "007", "--say", "of two"),
    ]
    new = read(
        tmp_path / "new",
        NEW,
        {
            **cases("sample/1", "secret/1", "secret/2"),
            "data/test_group.yaml": "output_validator_args: [float_tolerance, 1e-6]\nhint: none",
            "data/secret/test_group.yaml": "output_validator_args: [case_sensitive]",
            "data/secret/2.yaml": "output_validator_args: []",
        },
    )
    compare = [case.compare for case in new.problem.cases]
    assert compare == ["kattis(float_tolerance 1e-6)", "kattis(case_sensitive)", "kattis(case_sensitive)"]


@pytest.mark.parametrize(
    ("text", "files", "names"),
    [
        (CUSTOM, ["output_validators/v.py"], []),
        (CUSTOM, ["output_validators/v/a.cc", "output_validators/v/a.h"], ["a.cc", "a.h"]),
        (CUSTOM, ["output_validators/a.cc", "output_validators/a.h"], ["a.cc", "a.h"]),
        (CUSTOM, ["output_validator/v.py"], []),
        (NEW, ["output_validator/README.md", "output_validator/v.py"], []),
        (NEW, ["output_validator/__init__.py", "output_validator/__main__.py"], ["__init__.py", "__main__.py"]),
    ],
)
def test_a_validator_is_a_file_or_a_directory(tmp_path: Path, text: str, files: list[str], names: list[str]) -> None:
    checker = read(tmp_path, text, dict.fromkeys(files, "1")).problem.checker
    assert checker is not None
    assert [name for name, _ in checker.files] == names


def test_a_few_lines_that_stand_for_billions_of_values_are_refused_in_one_short_line(tmp_path: Path) -> None:
    lines = [f"  c{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 15)]
    assert "type: " in refusal(tmp_path, "\n".join([NEW + "credits:", "  c0: &a0 [x]", *lines, "type: *a14"]))


@pytest.mark.parametrize(
    "place", ["problem.yaml", ".timelimit", "data/secret/1.in", "data/secret/1.ans", "output_validator/v.py"]
)
def test_a_link_out_of_a_package_is_refused(tmp_path: Path, place: str) -> None:
    package = write_package(tmp_path, {"problem.yaml": NEW, place: "1", **cases("secret/1")})
    (package / place).unlink()
    (package / place).symlink_to("/etc/passwd")
    with pytest.raises(InvalidProblem, match="is a symbolic link out of the package"):
        read_package(package)


def test_links_within_data_are_followed_to_files_and_refused_to_directories(tmp_path: Path) -> None:
    package = write_package(tmp_path, {"problem.yaml": TIMED, **cases("secret/1")})
    for end in ("in", "ans"):
        (package / f"data/secret/2.{end}").symlink_to(f"1.{end}")
    assert read_package(package).names == ("secret/1", "secret/2")
    (package / "data/secret/loop").symlink_to(".")
    with pytest.raises(InvalidProblem, match="loop: is a symbolic link to a directory"):
        read_package(package)


@pytest.mark.parametrize("place", ["data/secret/2.in", "output_validator/v.py"])
def test_a_pipe_is_no_file_of_a_package(tmp_path: Path, place: str) -> None:
    package = write_package(tmp_path, {"problem.yaml": TIMED, **cases("secret/1", "secret/2"), place: ""})
    (package / place).unlink()
    os.mkfifo(package / place)
    with pytest.raises(InvalidProblem, match="is no file"):
        read_package(package)


def test_a_submission_with_a_link_out_of_the_package_is_skipped(packages: Packages, command: Command) -> None:
    files = {"problem.yaml": TIMED, **RIGHT}
    package = packages.write({**files, "submissions/accepted/dir/main.py": ADD})
    for name, target in {"z.py": "/etc/passwd", "dir/other.py": "/etc/passwd", "loop.py": "loop.py"}.items():
        (package / "submissions/accepted" / name).symlink_to(target)
    skipped = [line.split(maxsplit=2)[1:] for line in packages.lines(files) if line.startswith("skipped")]
    assert [name for name, _ in skipped] == ["accepted/dir", "accepted/loop.py", "accepted/z.py"]
    assert "root:" not in str(skipped)
    assert "symbolic link out" in command(2, "judge", package, package / "submissions/accepted/z.py").err


def test_a_directory_that_is_no_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblem, match=r"no problem\.yaml"):
        read_package(tmp_path)


def test_without_pyyaml_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ToolchainMissing, match="pip install pyyaml"):
        read(tmp_path, LEGACY)
