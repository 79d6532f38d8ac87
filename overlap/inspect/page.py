"""The page: one HTML file with its style and script, and its data where no server answers.

Answers of a policy are hostile HTML: they are data for the script, which puts them in as text, and the page's own
policy lets no other script run and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from pathlib import Path
from typing import Any

from overlap.core.json_types import to_json_types

HERE = Path(__file__).parent / "page"
SCRIPTS = ("dom", "source", "charts", "list", "sample", "groups", "run", "compare", "app")
"""In the order in which they are read: all of them are one script."""
MARK = "<!-- overlap report -->"
"""In the first line: what tells a file of ours, which may be written over."""


@cache
def page_files() -> tuple[str, str, str]:
    """The HTML around the page's parts, its style and its script."""
    script = "\n".join((HERE / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    return (HERE / "index.html").read_text("utf-8"), (HERE / "page.css").read_text("utf-8"), f'"use strict";\n{script}'


def page_policy(*, served: bool) -> str:
    """The Content-Security-Policy: the page's own style and script, and its server where it has one."""
    _, style, script = page_files()
    asked = "connect-src 'self'; frame-ancestors 'none'; " if served else ""
    rules = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
    return f"{rules}{asked}base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_html(title: str, data: Any = None) -> str:
    """The page, which shows ``data``, or without any asks its server."""
    frame, style, script = page_files()
    parts = {
        "mark": "" if data is None else MARK,
        "policy": html.escape(page_policy(served=data is None).replace("frame-ancestors 'none'; ", "")),
        "title": html.escape(title.encode("utf-8", "backslashreplace").decode()),
        "style": style,
        "script": script,
        "data": json_text(data).replace("<", "\\u003c"),
    }
    before, *pieces = frame.split("{{")
    for piece in pieces:
        name, _, rest = piece.partition("}}")
        before += parts[name] + rest
    return before


def json_text(value: Any) -> str:
    """JSON in ASCII; figures that are no numbers are null."""
    return json.dumps(to_json_types(value), allow_nan=False, separators=(",", ":"))
