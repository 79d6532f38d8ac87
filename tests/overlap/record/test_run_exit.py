"""How a run can end: each way has its words in one place, and what reads them knows all of them."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from overlap.record.run_summary import RunExit


@pytest.mark.parametrize("member", RunExit)
def test_a_text_is_known_by_the_words_that_it_begins_with_and_a_detail_changes_nothing(member: RunExit) -> None:
    assert RunExit.of(member.value) is RunExit.of(f"{member}: stopped, finished") is member


def test_the_documentation_has_a_row_for_every_end_and_no_other() -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    table = page.partition("| `exit` begins with |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE) == [member.value for member in RunExit]


def test_no_other_module_has_these_words_of_its_own() -> None:
    words = "|".join(re.escape(member) for member in RunExit if " " in member or member is RunExit.DRAINED)
    found = [
        str(path.relative_to(ROOT))
        for package in ("overlap", "recipes")
        for path in (ROOT / package).rglob("*.py")
        if re.search(f'"({words})', path.read_text("utf-8"))
    ]
    assert found == ["overlap/record/run_summary.py"]
