"""A verdict is complete when it has words, a colour, a place in the page's order, and its line in the documents."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from overlap.inspect.curves import VERDICT_COLOURS
from overlap.inspect.sample_reason import VERDICT_WORDS
from sandbox.core.nouns import Verdict


def text_of(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


@pytest.mark.promise("documents")
@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("VERDICT_WORDS of overlap/inspect/sample_reason.py", VERDICT_WORDS),
        ("VERDICT_COLOURS of overlap/inspect/curves.py", VERDICT_COLOURS),
        ("ORDER of overlap/inspect/page/dom.js", re.findall(r'"([A-Z]+)"', text_of("overlap/inspect/page/dom.js"))),
        ("docs/sandbox/overview.md", re.findall(r"^\| `([A-Z]+)` \|", text_of("docs/sandbox/overview.md"), re.M)),
        ("docs/metrics.md", re.findall(r"`([A-Z]{2,3})`", text_of("docs/metrics.md"))),
        ("sandbox/README.md", re.findall(r"\b[A-Z]{2,3}\b", text_of("sandbox/README.md"))),
    ],
)
def test_every_verdict_stands_in_every_table(place: str, found: list[str]) -> None:
    assert [str(verdict) for verdict in Verdict if verdict not in found] == [], f"add it to {place}"
