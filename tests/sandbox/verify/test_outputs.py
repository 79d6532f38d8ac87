"""Outputs of which the author knows what the output validator must say of them."""

from __future__ import annotations

import pytest
from package_files import LEGACY, NEW, RIGHT, TIMED, Packages, cases

from sandbox.packages.package import read_package

ANY_ORDER = """
import sys
said, want = sys.stdin.read().split(), open(sys.argv[2]).read().split()
sys.exit(42 if sorted(said) == sorted(want) and len(sys.argv) == 4 else 43)
"""
KNOWN = {
    **cases("secret/1"),
    **cases("valid_output/a", "invalid_output/b", "invalid_output/deep/c", answer="1 2\n"),
    "data/valid_output/a.out": "2 1\n",
    "data/invalid_output/b.out": "2 2\n",
    "data/invalid_output/deep/c.out": "1 2\n",
    "data/invalid_output/deep/test_group.yaml": "output_validator_args: [strict]",
}


def test_known_outputs_are_judged_as_their_author_says(packages: Packages) -> None:
    shown = packages.lines({"problem.yaml": TIMED, **KNOWN, **RIGHT, "output_validator/v.py": ANY_ORDER})
    assert "ok        outputs: 1 valid, 2 invalid" in shown


def test_an_output_that_is_judged_otherwise_is_a_surprise(packages: Packages) -> None:
    files = {"problem.yaml": TIMED, **KNOWN, **RIGHT, "input_validators/v.py": "exit(42)"}
    files["data/invalid_output/b.out"] = "1\t2"
    files["data/invalid_output/deep/test_group.yaml"] = "output_validator_args: [case_sensitive]"
    shown = packages.lines(files, 1)
    assert "SURPRISE  outputs: 1 valid, 2 invalid" in shown
    assert "          ! the output validator rejects data/valid_output/a.out: wrong output" in shown
    assert "          ! the output validator accepts data/invalid_output/b.out" in shown
    assert "ok        inputs: 4 accepted by v.py" in shown  # theirs are inputs as any others
    assert len(packages.report(files, 1)["outputs"]["surprises"]) == 3


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"data/sample/1.ans": "8 9\n"}, 0),
        ({"data/sample/1.ans": "x\n"}, 1),
        ({"data/sample/1.ans": "x\n", "data/sample/1.out": "7\n"}, 0),
        ({"data/sample/1.ans": "x\n", "data/sample/1.ans.statement": "7\n"}, 0),
        ({"data/sample/1.ans": "8\n", "data/sample/1.out": "x\n"}, 1),
    ],
)
def test_what_a_sample_shows_is_a_right_output(packages: Packages, files: dict[str, str], code: int) -> None:
    numbers = "import sys\nsys.exit(42 if sys.stdin.read().split()[0].isdigit() else 43)"
    more = {"problem.yaml": TIMED, **cases("secret/1", "sample/1"), **RIGHT, "output_validator/v.py": numbers}
    rejected = [line for line in packages.lines({**more, **files}, code) if "! the output validator rejects" in line]
    assert ["data/sample/1" in line for line in rejected] == [True] * code


@pytest.mark.parametrize("text", [LEGACY, NEW + "type: multi-pass\n", NEW + "type: interactive\n"])
def test_outputs_of_other_versions_and_of_talks_are_said_to_be_unused(packages: Packages, text: str) -> None:
    package = read_package(packages.write({"problem.yaml": text, **KNOWN, "output_validator/v.py": "exit(43)"}))
    assert "data/invalid_output is for validators, and not used" in package.notes
    assert package.outputs == ()
