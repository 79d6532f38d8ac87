"""Real packages of ../shared/data: every difference between expected and found is known, with its cause.

SANDBOX_AGREEMENT=all verifies every package; without it, a sample of some seconds.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from agreement import ALL, DATA, MARKS
from wide import wide

from sandbox.cli import main

pytestmark = MARKS

KATTIS: Final = DATA / "kattis_problemtools"
KODSPORT: Final = DATA / "kodsport_olympiad"
SURPRISES: Final = {
    "training_training_kontrollsiffra": "accepted/js.py is Python 2 and does not say so",
}
BY_MACHINE: Final = {
    "training_training_lagomvinkladehard": "time_limit_exceeded/uppg1.cpp takes about as long as its limit"
}
REFUSED: Final = {
    "po2022_skolkval_dentrottemalaren": "no output_validators/",
    "training_training_telefonkatalog": ": CE",  # it needs a grader's header that is not in this copy
}
SAMPLE: Final = (wide("po2022_skolkval_arabiska"), "po2022_skolkval_dentrottemalaren", "training_cng_uddatal")


def verified(capsys: pytest.CaptureFixture[str], package: Path) -> tuple[int, dict[str, Any], str]:
    code = main(["verify", "--json", str(package)])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if shown.out else {}, shown.err


def surprising(report: dict[str, Any]) -> set[str]:
    return {each["name"] for each in report["submissions"] if each["surprises"]}


@pytest.mark.promise("packages")
@pytest.mark.parametrize(
    "name", sorted(path.name for path in KODSPORT.glob("*_*")) if ALL and KODSPORT.is_dir() else SAMPLE
)
def test_the_olympiads_packages_are_as_their_authors_say_save_the_known_noise(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (KODSPORT / name).is_dir():
        pytest.skip(f"{name} is not here")
    code, report, error = verified(capsys, KODSPORT / name)
    if name in REFUSED:
        assert (code, REFUSED[name] in error) == (2, True), error
    else:
        found = surprising(report)
        assert bool(found) == (name in SURPRISES) or name in BY_MACHINE, found
        assert code == (1 if found else 0)


@pytest.mark.wide
def test_kattis_examples_of_scores_and_of_plain_output(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("hello", "oddecho") if ALL else ("oddecho",):
        code, report, error = verified(capsys, KATTIS / name)
        assert (code, surprising(report)) == (0, set()), error


DIFFERENT: Final = """
import sys
given, answer, feedback = sys.argv[1:]
try:
    right = [int(token) for token in sys.stdin.read().split()] == [int(token) for token in open(answer).read().split()]
except ValueError:
    right = False
sys.exit(42 if right else 43)
"""
GUESS: Final = """
import random, sys
mode, number = open(sys.argv[1]).read().split()
secret = int(number) if mode == "fixed" else random.Random(int(number)).randint(1, 1000)
low, high = 1, 1000
for turn in range(10):
    line = sys.stdin.readline()
    if not line.strip().isdigit() or not 1 <= int(line) <= 1000:
        sys.exit(43)
    guess = int(line)
    if mode == "adaptive":  # the larger part stays possible
        secret = guess if low == high == guess else guess + 1 if high - guess > guess - low else guess - 1
        secret = min(max(secret, low), high)
    if guess == secret:
        print("correct", flush=True)
        sys.exit(43 if sys.stdin.readline() else 42)
    low, high = (low, min(high, guess - 1)) if guess > secret else (max(low, guess + 1), high)
    print("lower" if guess > secret else "higher", flush=True)
sys.exit(43)
"""


@pytest.mark.parametrize(
    ("name", "folder", "validator", "keep"),
    [
        ("different", "output_validators", DIFFERENT, ("accepted/different.c*", "wrong_answer/different_int.cc")),
        ("guess", "output_validator", GUESS, ("accepted/guess.cc", "run_time_error/*", "wrong_answer/guess_0.cc")),
    ],
)
def test_kattis_examples_with_a_validator_in_place_of_the_one_that_is_not_in_this_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, folder: str, validator: str, keep: tuple[str, ...]
) -> None:
    package = tmp_path / name
    shutil.copytree(KATTIS / name, package, copy_function=shutil.copyfile)
    for path in (package, *package.rglob("*")):
        path.chmod(0o700)
    (package / folder).mkdir()
    (package / folder / "validate.py").write_text(validator)
    if not ALL:
        kept = {path for glob in keep for path in (package / "submissions").glob(glob)}
        for path in set((package / "submissions").glob("*/*")) - kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    code, report, error = verified(capsys, package)
    assert (code, surprising(report)) == (0, set()), error
