"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from sandbox import Case, Problem
from sandbox.cli import main
from sandbox.doctor.doctor import Line, Report

SUM = Problem("sum", "stdio", (Case("3 4\n", "7"), Case("5 6\n", "11")))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "problem.json").write_text(json.dumps(SUM.to_json()))
    (tmp_path / "right.py").write_text("print(sum(map(int, input().split())))")
    (tmp_path / "wrong.py").write_text("print(7)")
    (tmp_path / "broken.cpp").write_text("int main() { return x; }")
    return tmp_path


def test_judge_accepts_with_0_and_rejects_with_1(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", str(files / "problem.json"), str(files / "right.py")]) == 0
    assert "AC  2 of 2 cases" in capsys.readouterr().out
    assert main(["judge", str(files / "problem.json"), str(files / "wrong.py")]) == 1
    assert "WA  1 of 2 cases" in capsys.readouterr().out
    assert main(["judge", str(files / "problem.json"), str(files / "broken.cpp")]) == 1
    assert "not declared" in capsys.readouterr().out


def test_judge_speaks_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "--json", "--all", str(files / "problem.json"), str(files / "wrong.py")]) == 1
    done = json.loads(capsys.readouterr().out)
    assert done["verdict"] == "WA"
    assert [case["verdict"] for case in done["cases"]] == ["AC", "WA"]


@pytest.mark.parametrize(
    ("problem", "program", "word"),
    [
        ("absent.json", "right.py", "absent.json"),
        ("right.py", "right.py", "right.py: Expecting value"),
        ("problem.json", "absent.py", "absent.py"),
        ("problem.json", "problem.json", "--language"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    files: Path, capsys: pytest.CaptureFixture[str], problem: str, program: str, word: str
) -> None:
    assert main(["judge", str(files / problem), str(files / program)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sandbox: error: ")
    assert word in error
    assert error.count("\n") == 1


def test_run_shows_output_and_usage(
    files: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"20 22\n")))
    assert main(["run", str(files / "right.py")]) == 0
    shown = capsysbinary.readouterr()
    assert shown.out == b"42\n"
    assert b"s cpu" in shown.err
    assert b"tier" in shown.err


def test_a_package_is_named_when_it_is_not_installed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", str(files / "problem.json"), str(files / "right.py"), "--packages", "no_such_package"]) == 2
    assert "packages='no_such_package' is not a package of" in capsys.readouterr().err


def test_run_tells_the_cause_of_a_bad_end(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "loop.py").write_text("while True: pass")
    (files / "in").write_text("")
    arguments = ["run", "--json", "--cpu-s", "0.2", "--input", str(files / "in")]
    assert main([*arguments, str(files / "loop.py")]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "TLE"
    assert main([*arguments, str(files / "broken.cpp")]) == 1
    assert "not declared" in json.loads(capsys.readouterr().out)["stderr"]


def test_doctor_lists_mechanisms_and_the_tier_and_leaves_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == (0 if report["tier"] else 2)
    names = [line["name"] for line in report["lines"]]
    assert {"pid namespace", "seccomp filter", "landlock", "language python", "tier A", "tier B"} <= set(names)
    assert all(line["passed"] or line["repair"] for line in report["lines"])
    assert list(tmp_path.iterdir()) == []


def test_doctor_prints_the_repair_of_what_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Report((Line("landlock", False, "ENOSYS", "boot a newer kernel"), Line("seccomp", True, "")), None)
    monkeypatch.setattr("sandbox.doctor.examine", lambda: report)
    assert main(["doctor"]) == 2
    shown = capsys.readouterr().out
    assert "FAIL  landlock" in shown
    assert "repair: boot a newer kernel" in shown
    assert "PASS  seccomp" in shown


@pytest.mark.parametrize(("asked", "code"), [("auto", 0), ("B", 0), ("A", 2), ("C", 0)])
def test_doctor_refuses_a_tier_that_is_weaker_than_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, asked: str, code: int
) -> None:
    report = Report((Line("tier A", False, "no namespaces", "see above"), Line("tier B", True, "landlock")), "B")
    monkeypatch.setattr("sandbox.doctor.examine", lambda: report)
    assert main(["doctor", "--isolation", asked]) == code
    assert ("is not available here" in capsys.readouterr().out) == (code == 2)
