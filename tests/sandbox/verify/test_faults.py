"""Packages that are not as the format has them, and referees that fail: told by name, and nothing passed over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from package_files import ADD, LEGACY, NEW, cases, write_package

from sandbox.cli import main
from sandbox.errors import InvalidProblem
from sandbox.packages.package import read_package

RIGHT = {"submissions/accepted/right.py": ADD}
TIMED = NEW + "limits: {time_limit: 1}\n"
PICKY = """
import sys
said = sys.stdin.read().strip()
if said == "8": open(sys.argv[3] + "score.txt", "w").write("1")
sys.exit(42 if said == "7" else 43)
"""


def test_a_referee_that_fails_on_one_submission_leaves_the_others_their_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "problem.yaml": TIMED + "type: scoring\n",
        **cases("secret/1", "secret/2"),
        "output_validator/v.py": PICKY,
        **RIGHT,
        "submissions/wrong_answer/eight.py": "print(8)",
        "submissions/wrong_answer/nine.py": "print(9)",
    }
    package = write_package(tmp_path, files)
    assert main(["verify", str(package)]) == 2
    shown = capsys.readouterr()
    why = "secret/1: the validator wrote score.txt, but rejected the output"
    lines = [line.split(maxsplit=2) for line in shown.out.splitlines()]
    assert ["FAILED", "wrong_answer/eight.py", why] in lines
    assert [line[:2] for line in lines if line[0] == "ok"] == [
        ["ok", "accepted/right.py"],
        ["ok", "wrong_answer/nine.py"],
    ]
    assert shown.out.splitlines()[-1] == "2 submissions judged, 0 skipped, 1 failed, 0 surprises"
    assert shown.err == f"sandbox: error: submissions/wrong_answer/eight.py: {why}\n"
    assert main(["verify", "--json", str(package)]) == 2
    report = {each["name"]: each for each in json.loads(capsys.readouterr().out)["submissions"]}
    assert (report["wrong_answer/eight.py"]["verdict"], report["wrong_answer/eight.py"]["failed"]) == (None, why)


def test_a_referee_that_fails_is_named_with_the_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "problem.yaml": NEW,
        **cases("secret/a", "secret/b"),
        "output_validator/v.py": "import sys\nsys.exit(42 if 'a' in open(sys.argv[1]).read() else 5)",
        **RIGHT,
    }
    package = write_package(tmp_path, files)
    (package / "data/secret/a.in").write_text("3 4 a")
    (package / "submissions/accepted/right.py").write_text("print(7)")
    assert main(["verify", str(package)]) == 2
    error = capsys.readouterr().err
    assert "accepted/right.py: secret/b: the checker ended with exit code 5" in error


def test_a_submission_that_lies_in_no_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"problem.yaml": TIMED, **RIGHT, "submissions/loose.py": ADD, "submissions/accepted/empty/.keep": ""}
    assert main(["verify", str(write_package(tmp_path, files))]) == 0
    assert [line.split(maxsplit=2)[1:] for line in capsys.readouterr().out.splitlines() if "skipped  " in line] == [
        ["loose.py", "it lies in no folder that says what is expected of it"],
        ["accepted/empty", "it is an empty directory"],
    ]


def test_a_glob_that_matches_no_submission_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "acepted/*: {permitted: [AC]}\nrejected: {required: [WA]}"
    package = write_package(tmp_path, {"problem.yaml": TIMED, **RIGHT, "submissions/submissions.yaml": said})
    assert main(["verify", str(package)]) == 2
    assert "submissions.yaml: 'acepted/*' matches no submission" in capsys.readouterr().err
    (package / "problem.yaml").write_text(LEGACY)
    assert (
        "submissions/submissions.yaml is not of this version of the format, and not looked at"
        in read_package(package).notes
    )


def test_a_surprise_shows_the_case_that_it_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "problem.yaml": TIMED,
        **cases("secret/1", "secret/2"),
        "submissions/accepted/a.py": "raise ValueError('oh')",
    }
    assert main(["verify", str(write_package(tmp_path, files))]) == 1
    shown = [line for line in capsys.readouterr().out.splitlines() if " s cpu " in line]
    assert len(shown) == 1
    assert shown[0].split()[:2] == ["RTE", "secret/1"]
    assert "ValueError: oh" in shown[0]


def test_a_directory_that_the_format_does_not_have_is_noted(tmp_path: Path) -> None:
    package = read_package(
        write_package(tmp_path, {"problem.yaml": NEW, "output_validater/v.py": "", "graders/g.py": "1"})
    )
    assert [note.split("/")[0] for note in package.notes if note.endswith("not looked at")] == [
        "graders",
        "output_validater",
    ]
    assert package.grader is None


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../out", "link.py"])
def test_a_link_that_leads_out_of_a_package_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "out").write_text(ADD)
    package = write_package(tmp_path, {"problem.yaml": NEW, **RIGHT})
    os.symlink(target, package / "submissions/accepted/link.py")
    with pytest.raises(InvalidProblem, match=r"link\.py: is a symbolic link"):
        read_package(package)


def test_a_link_within_a_package_is_a_file_as_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = write_package(tmp_path, {"problem.yaml": TIMED, **RIGHT})
    os.symlink("right.py", package / "submissions/accepted/link.py")
    assert main(["verify", str(package)]) == 0
    assert "2 submissions judged" in capsys.readouterr().out


def test_a_submission_cannot_have_a_file_of_the_machine_brought_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = write_package(tmp_path, {"problem.yaml": TIMED, **RIGHT})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/main.py").write_text(ADD)
    (tmp_path / "secret").write_text("7")
    os.symlink(tmp_path / "secret", tmp_path / "mine/data")
    assert main(["judge", str(package), str(tmp_path / "mine")]) == 2
    assert "mine/data: is a symbolic link" in capsys.readouterr().err


def test_answers_that_are_missing_or_that_nobody_asked_for_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "problem.yaml": TIMED + "type: submit-answer\n",
        **cases("secret/1", "secret/2"),
        "submissions/wrong_answer/a/1.out": "7",
        "submissions/wrong_answer/a/3.out": "7",
    }
    assert main(["verify", str(write_package(tmp_path, files))]) == 0
    shown = capsys.readouterr().out
    assert "note: has no answer to secret/2" in shown
    assert "note: 3.out answers no test case" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", "sum.zip"], "sum.zip: archives are not supported; unpack it"),
        (["judge", "sum.KPP", "right.py"], "sum.KPP: archives are not supported; unpack it"),
        (["verify", "right.py"], "right.py: is no directory"),
        (["judge", "sum", "right.py", "--all"], "--all is for problem.json"),
        (["judge", "sum", "/dev/null"], "/dev/null: is neither a file nor a directory"),
        (["judge", "problem.json", "sum"], "sum: is a directory; give one file"),
    ],
)
def test_what_a_command_cannot_take_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    write_package(tmp_path, {"problem.yaml": TIMED, **RIGHT})
    problem = {"id": "p", "kind": "stdio", "cases": [{"input": "", "expected": "7"}]}
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    (tmp_path / "right.py").write_text(ADD)
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_time_limit_past_all_measure_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = NEW + "limits: {time_multipliers: {ac_to_time_limit: 1e+14}}\n"
    assert main(["verify", str(write_package(tmp_path, {"problem.yaml": text, **RIGHT}))]) == 2
    assert "1e+14 times that is no time limit; give --time-limit" in capsys.readouterr().err


def test_a_score_that_a_group_cannot_have_is_a_surprise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "problem.yaml": LEGACY + "type: scoring\n",
        ".timelimit": "1",
        **cases("secret/a/1", "secret/a/2"),
        "data/secret/a/testdata.yaml": "accept_score: 60\nrange: 0 100",
        **RIGHT,
    }
    assert main(["verify", str(write_package(tmp_path, files))]) == 1
    assert "! a score of 120 in data/secret/a is out of its range, 0 to 100" in capsys.readouterr().out
