"""Input validators: every input by each of them, with the arguments that its author gave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from package_files import ADD, LEGACY, NEW, cases, write_package
from toolchains import need

from sandbox.cli import main
from sandbox.errors import InvalidProblem
from sandbox.packages.package import read_package

RIGHT = {"submissions/accepted/right.py": ADD}
TIMED = NEW + "limits: {time_limit: 1, validation_time: 1}\n"
TWO = "import sys\nwords = sys.stdin.read().split()\nif len(words) != 2: sys.exit(f'{len(words)} words')\nsys.exit(42)"
THREE = cases("secret/2", "secret/3", given="1 2 3\n", answer="6\n")


def inputs(capsys: pytest.CaptureFixture[str], package: Path, code: int) -> dict[str, Any]:
    """What --json says of them."""
    found = main(["verify", "--json", str(package)])
    shown = capsys.readouterr()
    assert found == code, shown
    report: dict[str, Any] = json.loads(shown.out)["inputs"]
    return report


def test_inputs_that_every_validator_accepts_are_as_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("cpp")
    files = {
        "problem.yaml": TIMED,
        **cases("sample/1", "secret/1"),
        **RIGHT,
        "input_validators/two.py": TWO,
        "input_validators/v/v.cc": '#include "v.h"\nint main() { int a, b; return std::cin >> a >> b ? 42 : 43; }',
        "input_validators/v/v.h": "#include <iostream>",
        "input_validators/README.md": "",
        "input_validators/v.ctd": "INT EOF",
    }
    package = write_package(tmp_path, files)
    assert main(["verify", str(package)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "ok        inputs: 2 accepted by two.py, v" in shown
    assert "note: input_validators/v.ctd is not run: no supported language has the suffix '.ctd'" in shown


def test_an_input_that_is_refused_is_a_surprise_with_the_validators_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"problem.yaml": TIMED, **cases("secret/1"), **THREE, **RIGHT, "input_validators/two.py": TWO}
    package = write_package(tmp_path, files)
    assert main(["verify", str(package)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert "SURPRISE  inputs: 1 accepted by two.py" in shown
    assert "          ! two.py refuses data/secret/2.in: exit code 1: 3 words (and 1 more)" in shown
    assert shown[-1] == "1 submissions judged, 0 skipped, 2 surprises"
    found = inputs(capsys, package, 1)
    assert [each["case"] for each in found["refusals"]] == ["secret/2", "secret/3"]


@pytest.mark.parametrize(
    ("validator", "word"),
    [
        ("raise ValueError('no')", "exit code 1: Traceback"),
        ("while True: pass", "was stopped: cpu"),
        ("exit(0)", "exit code 0"),
        ("import os, signal\nos.kill(os.getpid(), 9)", "signal 9"),
        ("def f(:", "does not compile: SyntaxError"),
    ],
)
def test_a_validator_that_fails_accepts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], validator: str, word: str
) -> None:
    files = {"problem.yaml": TIMED, **cases("secret/1", "secret/2"), **RIGHT, "input_validators/v.py": validator}
    found = inputs(capsys, write_package(tmp_path, files), 1)
    assert found["accepted"] == 0
    assert word in found["refusals"][0]["why"]


def test_arguments_are_the_cases_for_all_validators_or_for_one_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = "import sys\nsys.exit(42 if sys.argv[1:] == {} else str(sys.argv[1:]))"
    files = {
        "problem.yaml": TIMED,
        **cases("secret/a/1", "secret/a/2", "secret/b/1"),
        "data/secret/a/test_group.yaml": "args: [p]\ninput_validator_args: [q]",
        "data/secret/a/2.yaml": "input_validator_args: {v: [q], w.py: [q]}",
        "data/secret/b/1.yaml": "args: [q, p]\ninput_validator_args: {other: [x]}",
        **RIGHT,
        "input_validators/v.py": asks.format(["q", "p"]),
        "input_validators/w.py": asks.format(["q", "p"]),
        "input_validators/other.py": "exit(42)",
    }
    assert inputs(capsys, write_package(tmp_path, files), 0)["accepted"] == 3
    (tmp_path / "sum/data/secret/a/2.yaml").write_text("input_validator_args: {u: [q]}")
    with pytest.raises(InvalidProblem, match="input validator 'u', there is none"):
        read_package(tmp_path / "sum")


def test_legacy_flags_of_groups_reach_all_validators_or_the_one_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "problem.yaml": LEGACY,
        ".timelimit": "1",
        **cases("secret/a/1", "secret/b/1"),
        "data/secret/a/testdata.yaml": "input_validator_flags: max 5",
        "data/secret/b/testdata.yaml": "input_validator_flags: {name: v, flags: max 5}",
        **RIGHT,
        "input_format_validators/v.py": "import sys\nsys.exit(42 if sys.argv[1:] == ['max', '5'] else 43)",
        "input_format_validators/w.py": "import sys\nsys.exit(42 if len(sys.argv) in (1, 3) else 43)",
    }
    assert inputs(capsys, write_package(tmp_path, files), 0)["accepted"] == 2


def test_an_invalid_input_is_refused_by_one_of_them_at_least(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "problem.yaml": TIMED,
        **cases("secret/1"),
        "data/invalid_input/long/1.in": "1 2 3\n",
        "data/invalid_input/2.in": "one two\n",
        **RIGHT,
        "input_validators/any.py": "exit(42)",
        "input_validators/two.py": TWO,
    }
    package = write_package(tmp_path, files)
    assert inputs(capsys, package, 1)["passed_over"] == ["invalid_input/2"]
    assert main(["verify", str(package)]) == 1
    assert "! no input validator refuses data/invalid_input/2.in" in capsys.readouterr().out
    (package / "input_validators/int.py").write_text("import sys\n[*map(int, sys.stdin.read().split())]\nsys.exit(42)")
    assert inputs(capsys, package, 0)["invalid"] == 2


def test_a_package_whose_inputs_nobody_looks_at_is_told_so(tmp_path: Path) -> None:
    package = read_package(write_package(tmp_path, {"problem.yaml": NEW, "input_validators/v/build": "", **RIGHT}))
    assert [note for note in package.notes if "input validator" in note] == [
        "no input validator is run: nobody looks whether the inputs are as the statement says"
    ]
    assert "input_validators/v is not run: scripts like its 'build' are not supported" in package.notes
