"""Packages that are not as the format has them, and referees that fail: told by name, and nothing passed over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from package_files import ADD, LEGACY, NEW, RIGHT, TIMED, Command, Packages, cases

from sandbox.errors import InvalidProblem
from sandbox.packages.package import read_package

PICKY = """
import sys
said = sys.stdin.read().strip()
if said == "8": open(sys.argv[3] + "score.txt", "w").write("1")
sys.exit(42 if said == "7" else 43)
"""


def test_a_referee_that_fails_on_one_submission_leaves_the_others_their_verdicts(
    packages: Packages, command: Command
) -> None:
    files = {
        "problem.yaml": TIMED + "type: scoring\n",
        **cases("secret/1", "secret/2"),
        "output_validator/v.py": PICKY,
        **RIGHT,
        "submissions/wrong_answer/eight.py": "print(8)",
        "submissions/wrong_answer/nine.py": "print(9)",
    }
    shown = command(2, "verify", packages.write(files))
    why = "secret/1: the validator wrote score.txt, but rejected the output"
    lines = [line.split(maxsplit=2) for line in shown.out.splitlines()]
    assert ["FAILED", "wrong_answer/eight.py", why] in lines
    assert [line[1] for line in lines if line[0] == "ok"] == ["accepted/right.py", "wrong_answer/nine.py"]
    assert shown.out.splitlines()[-1] == "2 submissions judged, 0 skipped, 1 failed, 0 surprises"
    assert shown.err == f"sandbox: error: submissions/wrong_answer/eight.py: {why}\n"
    failed = packages.report(files, 2)["submissions"]["wrong_answer/eight.py"]
    assert (failed["verdict"], failed["failed"]) == (None, why)


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"problem.yaml": LEGACY + "validations: custom"}, "unknown key 'validations'; did you mean 'validation'?"),
        ({"problem.yaml": LEGACY + "validation: custom"}, "no output_validators/"),
        ({"problem.yaml": TIMED + "languages: [cpp]\n"}, "no submission could be judged"),
        ({"problem.yaml": LEGACY, "submissions/accepted/right.py": "def f(:"}, "accepted/right.py: does not compile"),
        (
            {
                "problem.yaml": NEW,
                **cases("secret/a", given="a\n"),
                **cases("secret/b", given="b\n"),
                "output_validator/v.py": "import sys\nsys.exit(42 if 'a' in open(sys.argv[1]).read() else 5)",
                "submissions/accepted/right.py": "print(7)",
            },
            "accepted/right.py: secret/b: the checker ended with exit code 5",
        ),
        (
            {"problem.yaml": NEW + "limits: {time_multipliers: {ac_to_time_limit: 1e+14}}\n"},
            "1e+14 times that is no time limit; give --time-limit",
        ),
    ],
)
def test_what_cannot_be_verified_is_one_line_and_exit_code_2(
    packages: Packages, files: dict[str, str], word: str
) -> None:
    assert word in packages.refused({**RIGHT, **files})


def test_a_submission_that_is_not_judged_is_named_with_the_reason(packages: Packages) -> None:
    files = {"problem.yaml": TIMED + "languages: [python3]\n", **RIGHT, "submissions/loose.py": ADD}
    files |= {"submissions/accepted/empty/.keep": "", "submissions/accepted/other.cpp": "int main() {}"}
    assert [line.split(maxsplit=2)[1:] for line in packages.lines(files) if "skipped  " in line] == [
        ["loose.py", "it lies in no folder that says what is expected of it"],
        ["accepted/empty", "it is an empty directory"],
        ["accepted/other.cpp", "the package allows python3, not cpp"],
    ]


def test_no_text_of_a_program_can_pose_as_a_line_of_ours(packages: Packages) -> None:
    forged = "ok        right.py  AC"
    files = {
        "problem.yaml": TIMED,
        "submissions/accepted/a.py": f"raise SystemExit('\\n{forged}')",
        "submissions/accepted/b\n" + forged: ADD,
        "submissions/accepted/c.py": f"def f(:\n{forged}",
    }
    assert not [line for line in packages.lines(files, 1, "-v") if line.startswith(forged)]


def test_a_surprise_shows_the_case_that_it_comes_from(packages: Packages) -> None:
    program = {"submissions/accepted/a.py": "raise ValueError('oh')"}
    lines = packages.lines({"problem.yaml": TIMED, **cases("secret/1", "secret/2"), **program}, 1)
    shown = [line for line in lines if " s cpu " in line]
    assert len(shown) == 1
    assert shown[0].split()[:2] == ["RTE", "secret/1"]
    assert "ValueError: oh" in shown[0]


def test_what_the_format_does_not_have_is_noted(packages: Packages) -> None:
    package = read_package(packages.write({"problem.yaml": NEW, "output_validater/v.py": "", "graders/g.py": "1"}))
    unused = [note.split("/")[0] for note in package.notes if note.endswith("not looked at")]
    assert unused == ["graders", "output_validater"]
    assert package.grader is None
    packages.write({"problem.yaml": LEGACY, "submissions/submissions.yaml": ""})
    notes = read_package(package.path).notes
    assert "submissions/submissions.yaml is not of this version of the format, and not looked at" in notes


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../out", "link"])
@pytest.mark.parametrize(
    "place",
    [
        *("problem.yaml", ".timelimit", "domjudge-problem.ini", "submissions/submissions.yaml", "submissions"),
        *("data", "data/secret", "data/secret/1.in", "data/secret/1.ans", "data/secret/1.yaml", "data/secret/1.files"),
        *("data/secret/1.files/x", "data/test_group.yaml", "data/sample/1.out", "include", "include/default/x"),
        *("output_validator", "output_validator/v.py", "output_validator/v/v.h"),
    ],
)
def test_a_link_out_of_a_package_where_judging_depends_on_it_is_refused(
    packages: Packages, tmp_path: Path, target: str, place: str
) -> None:
    (tmp_path / "out").write_text(ADD)
    package = packages.write({"problem.yaml": NEW, **RIGHT, **cases("sample/1", "secret/1", "secret/2")})
    path = package / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(tmp_path / "former")
    os.symlink(path.name if target == "link" else target, path)
    with pytest.raises(InvalidProblem, match=rf"{path}: is a symbolic link to .*, which is not in the package"):
        read_package(package)


def test_a_link_out_of_a_package_where_nothing_is_read_is_noted_and_left_out(
    packages: Packages, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("secret")
    (tmp_path / "outside/accepted").mkdir(parents=True)
    (tmp_path / "outside/accepted/secret.py").write_text("secret")
    files = {"problem.yaml": TIMED, **RIGHT, "input_validators/ok.py": "exit(42)", **cases("secret/1")}
    package = packages.write(files | {"data/invalid_input/1.in": "", "submissions/accepted/dir/main.py": ADD})
    links = {
        "problem.pdf": "../out",
        "statement": "/etc",
        "data/secret/1.png": "../../../out",
        "data/invalid_input/2.in": "../../../out",
        "attachments": "../outside",
        "submissions/accepted/z.py": "../../../out",
        "submissions/accepted/dir/other.py": "/etc/passwd",
        "submissions/accepted/loop.py": "loop.py",
        "submissions/mixed": "../../outside/accepted",
        "input_validators/link.py": "../../out",
    }
    for name, target in links.items():
        os.symlink(target, package / name)
    lines = packages.lines(files)
    notes = [line for line in lines if line.startswith("note: ")]
    for name in links:
        told = [line for line in lines if name.removeprefix("submissions/accepted/") in line]
        assert len(told) == (2 if name == "data/invalid_input/2.in" else 1), told
    assert "note: problem.pdf is a symbolic link out of the package ('../out'), and not followed" in notes
    assert any(line.startswith("note: input_validators/link.py is not run: ") for line in lines)
    assert [line.split()[1] for line in lines if line.startswith("skipped")] == [
        f"accepted/{name}" for name in ("dir", "loop.py", "z.py")
    ]
    assert not any("secret" in line.replace("data/secret", "") for line in lines)
    assert packages.report(files)["notes"] == [line.removeprefix("note: ") for line in notes]


@pytest.mark.parametrize("hidden", ["attachments", ".hidden"])
def test_a_link_out_of_a_package_is_not_reached_by_another_link(packages: Packages, hidden: str) -> None:
    package = packages.write({"problem.yaml": NEW, **RIGHT, **cases("secret/a/1"), f"{hidden}/2.ans": ""})
    os.symlink("/etc/passwd", package / f"{hidden}/2.in")
    assert len(read_package(package).cases) == 1
    os.symlink(f"../../{hidden}", package / "data/secret/b")
    with pytest.raises(InvalidProblem, match=r"2\.in: is a symbolic link .*; .*secret/b may lead there"):
        read_package(package)


def test_a_link_out_of_a_package_is_not_judged_by_its_name_either(packages: Packages, command: Command) -> None:
    package = packages.write({"problem.yaml": TIMED, **RIGHT})
    os.symlink("/etc/passwd", package / "submissions/accepted/link.py")
    assert "link.py: is a symbolic link" in command(2, "judge", package, package / "submissions/accepted/link.py").err


def test_notes_name_files_within_the_package_wherever_it_is_read_from(
    packages: Packages, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"problem.yaml": TIMED + "colour: red\n", **RIGHT, "data/secret/2.ans": "", **cases("secret/1")}
    package = packages.write(files)
    os.symlink("../../doc/a.pdf", package / "problem.pdf")
    monkeypatch.chdir(package)
    for path in (".", package, f"../{package.name}/"):
        shown = command(0, "verify", path).out.splitlines()
        assert "note: problem.yaml: unknown key 'colour', and not looked at" in shown
        assert "note: data/secret/2.ans has no input file 2.in beside it, and is not used" in shown
        assert "note: problem.pdf is a symbolic link out of the package ('../../doc/a.pdf'), and not followed" in shown
    judged = command(0, "judge", ".", "submissions/accepted/right.py").out.splitlines()
    assert "note: problem.yaml: unknown key 'colour', and not looked at" in judged
    found = json.loads(command(0, "judge", ".", "submissions/accepted/right.py", "--json").out)
    assert "problem.yaml: unknown key 'colour', and not looked at" in found["package_notes"]


def test_what_is_wrong_with_one_submission_is_said_of_it_alone(packages: Packages) -> None:
    files = {
        "problem.yaml": TIMED,
        **RIGHT,
        "submissions/accepted/prose.py": f"# as @EXPECTED_RESULTS@ says\n{ADD}",
        "submissions/mixed/manual.py": "# @EXPECTED_RESULTS@: CHECK-MANUALLY\n",
        "submissions/submissions.yaml": "accepted: {colour: red}\nacepted/*: {permitted: [AC]}\n",
    }
    package = packages.write(files)
    os.mkfifo(package / "submissions/accepted/pipe.py")
    shown = packages.lines(files)
    assert "          note: @EXPECTED_RESULTS@ in prose.py: 'says' names no verdict, and is passed over" in shown
    assert (
        "          note: @EXPECTED_RESULTS@ in manual.py: 'CHECK-MANUALLY' names no verdict, and is passed over"
        in shown
    )
    assert "skipped   accepted/pipe.py   is neither a file nor a directory" in shown
    for note in ("accepted: unknown key 'colour', and not looked at", "'acepted/*' matches no submission"):
        assert shown.count(f"note: submissions/submissions.yaml: {note}") == 1
    assert shown[-1] == "2 submissions judged, 2 skipped, 0 surprises"
    found = packages.report(files)["submissions"]
    assert [len(found[name]["notes"]) for name in ("accepted/prose.py", "mixed/manual.py")] == [1, 1]


@pytest.mark.parametrize("text", [LEGACY, TIMED])
def test_samples_alone_are_judged(packages: Packages, text: str) -> None:
    wrong = {"submissions/wrong_answer/w.py": "print(8)"}
    files = {"problem.yaml": text, ".timelimit": "1", **cases("sample/1"), **RIGHT, **wrong}
    assert packages.verdicts(files) == {"right.py": "AC", "w.py": "WA"}


def test_an_empty_submission_prints_nothing(packages: Packages) -> None:
    files = {"problem.yaml": TIMED, **RIGHT}
    for name, source in (("empty", ""), ("blank", " \n"), ("comment", "# pass"), ("coding", "# coding: latin-1\n")):
        files[f"submissions/wrong_answer/{name}.py"] = source
    files["submissions/wrong_answer/dir/main.py"] = files["submissions/wrong_answer/dir/other.py"] = ""
    assert packages.lines(files)[-1] == "6 submissions judged, 0 skipped, 0 surprises"


def test_a_link_within_a_package_is_a_file_as_any_other(packages: Packages) -> None:
    files = {"problem.yaml": TIMED, **RIGHT}
    os.symlink("right.py", packages.write(files) / "submissions/accepted/link.py")
    assert "2 submissions judged" in packages.lines(files)[-1]


def test_a_submission_cannot_have_a_file_of_the_machine_brought_along(
    packages: Packages, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/main.py").write_text(ADD)
    (tmp_path / "secret").write_text("7")
    os.symlink(tmp_path / "secret", tmp_path / "mine/data")
    package = packages.write({"problem.yaml": TIMED, **RIGHT})
    assert "mine/data: is a symbolic link" in command(2, "judge", package, tmp_path / "mine").err
