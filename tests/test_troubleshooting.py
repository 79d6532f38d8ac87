"""The troubleshooting page quotes lines that the program prints: what is constant in each stands in the source."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from places import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
SECTION = re.compile(r"^### (.+?)(?: \{#[\w-]+\})?\n\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"\A```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = dict(SECTION.findall(PAGE.read_text("utf-8")))
UNQUOTED = {"The reward does not move"}
"""What no line is printed for."""
LINES = [
    line
    for text in SECTIONS.values()
    if (found := QUOTED.search(text))
    for line in found[1].splitlines()
    if line.strip()
]


@cache
def texts() -> str:
    """Every text in the source, those of f-strings with `\\0` for what is filled in."""
    found = []
    for folder in ("overlap", "sandbox", "recipes"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                    found.append("".join(map(str, parts)))
    return "\n".join(found)


@pytest.mark.promise("documents")
@pytest.mark.parametrize("title", SECTIONS)
def test_each_section_begins_with_the_line_that_is_printed_and_has_a_way_out(title: str) -> None:
    quoted = QUOTED.search(SECTIONS[title])
    assert bool(quoted) != (title in UNQUOTED)
    assert len(SECTIONS[title][quoted.end() if quoted else 0 :].split()) >= 15, "no cause, no way out"


@pytest.mark.promise("documents")
@pytest.mark.parametrize("line", LINES)
def test_what_is_constant_in_a_quoted_line_stands_in_the_source(line: str) -> None:
    pieces = [piece.strip() for piece in line.split("…")]
    assert sum(len(piece) for piece in pieces) >= 10
    for piece in filter(None, pieces):
        assert piece in texts(), piece
