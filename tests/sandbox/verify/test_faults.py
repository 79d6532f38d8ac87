"""Packages that are not as the format has them, and referees that fail: told by name, and nothing passed over."""

from __future__ import annotations

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
        ({"problem.yaml": LEGACY + "color: red"}, "unknown key 'color'"),
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
        (
            {
                "problem.yaml": TIMED,
                "submissions/submissions.yaml": "acepted/*: {permitted: [AC]}\nrejected: {required: [WA]}",
            },
            "submissions.yaml: 'acepted/*' matches no submission",
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


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../out", "link.py"])
def test_a_link_that_leads_out_of_a_package_is_refused(packages: Packages, tmp_path: Path, target: str) -> None:
    (tmp_path / "out").write_text(ADD)
    package = packages.write({"problem.yaml": NEW, **RIGHT})
    os.symlink(target, package / "submissions/accepted/link.py")
    with pytest.raises(InvalidProblem, match=r"link\.py: is a symbolic link"):
        read_package(package)


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
