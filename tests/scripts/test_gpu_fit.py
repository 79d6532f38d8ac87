"""scripts/gpu/fit.py: what fits on which GPUs, and the table of it in docs/machines.md."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from places import ROOT

SPEC = importlib.util.spec_from_file_location("fit", ROOT / "scripts/gpu/fit.py")
fit = importlib.util.module_from_spec(SPEC)
sys.modules["fit"] = fit
SPEC.loader.exec_module(fit)
DOCUMENT = (ROOT / "docs/machines.md").read_text(encoding="utf-8")


@pytest.mark.promise("memory-plan")
@pytest.mark.parametrize(("policy", "column"), [("0.5B", 1), ("1.5B", 1), ("1.5B", 2), ("7B", 2), ("14B", 4)])
def test_the_table_of_what_fits_is_what_the_plan_says(policy: str, column: int) -> None:
    shape, devices = fit.shape_of_policy(policy), fit.DEVICES[column - 1]
    for what, rank in (("full", 0), (f"LoRA {fit.RANK}", fit.RANK)):
        (row,) = [line for line in DOCUMENT.splitlines() if line.startswith(f"| {policy}, {what} |")]
        assert row.split(" | ")[column].strip(" |") == str(fit.fit(shape, devices, fit.RESPONSE, rank))


def test_where_nothing_fits_the_refusal_says_what_is_missing_and_what_to_change() -> None:
    found = fit.fit(fit.shape_of_policy("32B"), "1x24", fit.RESPONSE)
    assert str(found) == "no"
    for part in ("GPU 0 needs 1", " GiB during ", "23.0 free; most of it is for ", ": use "):
        assert part in found.refusal


@pytest.mark.parametrize(
    ("words", "message"),
    [("--devices 4x", "--devices='4x': say how many GPUs"), ("--response=-5", "--response=-5: use 1 or more")],
)
def test_bad_words_are_one_line(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["fit.py", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        fit.main()
    assert message in capsys.readouterr().err
