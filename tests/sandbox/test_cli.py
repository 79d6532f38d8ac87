"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from package_files import Command

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


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [("right.py", 0, "AC  2 of 2 cases"), ("wrong.py", 1, "WA  1 of 2 cases"), ("broken.cpp", 1, "not declared")],
)
def test_judge_accepts_with_0_and_rejects_with_1(
    files: Path, command: Command, program: str, code: int, said: str
) -> None:
    assert said in command(code, "judge", files / "problem.json", files / program).out


@pytest.mark.parametrize(
    ("words", "score", "said"),
    [
        ((), None, "WA  0 of 2 cases (1 judged; --all judges the others), tier"),
        (("--all",), 0.5, "WA  1 of 2 cases, t"),
    ],
)
def test_a_judgement_that_stopped_at_a_failure_says_what_it_did_not_judge(
    files: Path, command: Command, words: tuple[str, ...], score: float | None, said: str
) -> None:
    (files / "second.py").write_text("print(11)")
    asked = "judge", *words, files / "problem.json", files / "second.py"
    assert said in command(1, *asked).out
    assert json.loads(command(1, *asked, "--json").out)["score"] == score


def test_run_shows_output_and_usage(
    files: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"20 22\n")))
    assert main(["run", str(files / "right.py")]) == 0
    shown = capsysbinary.readouterr()
    assert shown.out == b"42\n"
    assert b"s cpu" in shown.err
    assert b"tier" in shown.err


def test_run_tells_the_cause_of_a_bad_end(files: Path, command: Command) -> None:
    (files / "loop.py").write_text("while True: pass")
    words = ("run", "--json", "--cpu-s", "0.2", "--input", "/dev/null")
    assert json.loads(command(1, *words, files / "loop.py").out)["verdict"] == "TLE"
    assert "not declared" in json.loads(command(1, *words, files / "broken.cpp").out)["stderr"]


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


def test_doctor_prints_the_repair_of_what_fails(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report((Line("landlock", False, "ENOSYS", "boot a newer kernel"), Line("seccomp", True, "")), None)
    monkeypatch.setattr("sandbox.doctor.doctor.examine", lambda: report)
    shown = command(2, "doctor").out
    assert "FAIL  landlock" in shown
    assert "repair: boot a newer kernel" in shown
    assert "PASS  seccomp" in shown


@pytest.mark.promise("tiers")
@pytest.mark.parametrize(("asked", "code"), [("auto", 0), ("B", 0), ("A", 2), ("C", 0)])
def test_doctor_refuses_a_tier_that_is_weaker_than_asked(
    command: Command, monkeypatch: pytest.MonkeyPatch, asked: str, code: int
) -> None:
    report = Report((Line("tier A", False, "no namespaces", "see above"), Line("tier B", True, "landlock")), "B")
    monkeypatch.setattr("sandbox.doctor.doctor.examine", lambda: report)
    shown = command(code, "doctor", "--isolation", asked).out
    assert ("is not available here" in shown) == (code == 2)
