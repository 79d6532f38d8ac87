"""Real packages of ../shared/data: every difference between expected and found is known, with its cause.

SANDBOX_AGREEMENT=all verifies every package; without it, a sample of some seconds.
"""

from __future__ import annotations

import json
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
