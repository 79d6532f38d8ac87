"""Input validators: every input by each of them, with the arguments that its author gave."""

from __future__ import annotations

import pytest
from package_files import LEGACY, NEW, RIGHT, Packages, cases
from toolchains import need

from sandbox.packages.package import read_package

TIMED = {"problem.yaml": NEW + "limits: {time_limit: 1, validation_time: 1}\n", **RIGHT}
TWO = "import sys\nwords = sys.stdin.read().split()\nif len(words) != 2: sys.exit(f'{len(words)} words')\nsys.exit(42)"
THREE = cases("secret/2", "secret/3", given="1 2 3\n", answer="6\n")


def test_inputs_that_every_validator_accepts_are_as_expected(packages: Packages) -> None:
    need("cpp")
    files = {
        **TIMED,
        **cases("sample/1", "secret/1"),
        "input_validators/two.py": TWO,
        "input_validators/v/v.cc": '#include "v.h"\nint main() { int a, b; return std::cin >> a >> b ? 42 : 43; }',
        "input_validators/v/v.h": "#include <iostream>",
        "input_validators/README.md": "",
        "input_validators/v.ctd": "INT EOF",
    }
    shown = packages.lines(files)
    assert "ok        inputs: 2 accepted by two.py, v" in shown
    assert "note: input_validators/v.ctd is not run: no supported language has the suffix '.ctd'" in shown


def test_an_input_that_is_refused_is_a_surprise_with_the_validators_words(packages: Packages) -> None:
    files = {**TIMED, **cases("secret/1"), **THREE, "input_validators/two.py": TWO}
    shown = packages.lines(files, 1)
    assert "SURPRISE  inputs: 1 accepted by two.py" in shown
    assert "          ! two.py refuses data/secret/2.in: exit code 1: 3 words (and 1 more)" in shown
    assert shown[-1] == "1 submissions judged, 0 skipped, 2 surprises"
    found = packages.report(files, 1)["inputs"]
    assert [each["case"] for each in found["refusals"]] == ["secret/2", "secret/3"]


@pytest.mark.parametrize(
    ("validator", "word"),
    [
        ("raise ValueError('no')", "exit code 1: Traceback"),
        ("while True: pass", "was stopped: CPU-time limit of"),
        ("exit(0)", "exit code 0"),
        ("import os, signal\nos.kill(os.getpid(), 9)", "signal 9"),
        ("def f(:", "does not compile: SyntaxError"),
    ],
)
def test_a_validator_that_fails_accepts_nothing(packages: Packages, validator: str, word: str) -> None:
    files = {**TIMED, **cases("secret/1", "secret/2"), "input_validators/v.py": validator}
    found = packages.report(files, 1)["inputs"]
    assert found["accepted"] == 0
    assert word in found["refusals"][0]["why"]


def test_arguments_are_the_cases_for_all_validators_or_for_one_by_its_name(packages: Packages) -> None:
    asks = "import sys\nsys.exit(42 if sys.argv[1:] == {} else str(sys.argv[1:]))"
    files = {
        **TIMED,
        **cases("secret/a/1", "secret/a/2", "secret/b/1"),
        "data/secret/a/test_group.yaml": "args: [p]\ninput_validator_args: [q]",
        "data/secret/a/2.yaml": "input_validator_args: {v: [q], w.py: [q]}",
        "data/secret/b/1.yaml": "args: [q, p]\ninput_validator_args: {other: [x]}",
        "input_validators/v.py": asks.format(["q", "p"]),
        "input_validators/w.py": asks.format(["q", "p"]),
        "input_validators/other.py": "exit(42)",
    }
    assert packages.report(files)["inputs"]["accepted"] == 3
    files["data/secret/a/2.yaml"] = "input_validator_args: {u: [q]}"
    notes = read_package(packages.write(files)).notes
    assert "data/secret/a/2: arguments are for the input validator 'u', and there is none" in notes


def test_legacy_flags_of_groups_reach_all_validators_or_the_one_that_is_named(packages: Packages) -> None:
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
    assert packages.report(files)["inputs"]["accepted"] == 2


def test_an_invalid_input_is_refused_by_one_of_them_at_least(packages: Packages) -> None:
    files = {
        **TIMED,
        **cases("secret/1"),
        "data/invalid_input/long/1.in": "1 2 3\n",
        "data/invalid_input/2.in": "one two\n",
        "input_validators/any.py": "exit(42)",
        "input_validators/two.py": TWO,
    }
    assert packages.report(files, 1)["inputs"]["passed_over"] == ["invalid_input/2"]
    assert "          ! no input validator refuses data/invalid_input/2.in" in packages.lines(files, 1)
    files["input_validators/int.py"] = "import sys\n[*map(int, sys.stdin.read().split())]\nsys.exit(42)"
    assert packages.report(files)["inputs"]["invalid"] == 2


def test_a_package_whose_inputs_nobody_looks_at_is_told_so(packages: Packages) -> None:
    package = read_package(packages.write({**TIMED, "input_validators/v/build": ""}))
    assert [note for note in package.notes if "input validator" in note] == [
        "no input validator is run: nobody looks whether the inputs are as the statement says"
    ]
    assert "input_validators/v is not run: scripts like its 'build' are not supported" in package.notes
