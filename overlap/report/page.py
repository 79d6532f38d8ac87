"""A page of one file: text that is escaped, figures as people write them, sections, and the frame around them.

Answers of a policy are hostile HTML: every text goes through ``esc``, and the page's own policy lets no script run but
``page.js``, and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
MARK = "<!-- overlap report -->"
"""In the first line: what tells a file of ours, which may be written over."""
LINKS = {
    "outcome": "Outcome",
    "paired": "Paired",
    "warnings": "Warnings",
    "configuration": "Configuration",
    "problems": "Held-out",
    "curves": "Learning",
    "samples-axis": "By samples",
    "time-axis": "By time",
    "time": "Time",
    "timeline": "Timeline",
    "map": "Map",
    "samples": "Samples",
    "machine": "Machine",
}
"""By the anchor of a section, its name in the contents."""
_ANCHOR = re.compile(r'<section id="([a-z-]+)">')
_UNSEEN = (0x061C, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
_HIDDEN = {code: f"⟨{code:02X}⟩" for code in (*range(32), 127, *range(0x80, 0xA0))}
_HIDDEN |= {code: f"⟨U+{code:04X}⟩" for code in _UNSEEN}
_VISIBLE = {code: text for code, text in _HIDDEN.items() if code not in (9, 10)}
"""What a reader would not see, or which turns text around, is written out."""


def esc(text: object) -> str:
    """``text`` for HTML, in an element and in an attribute."""
    shown = str(text).translate(_VISIBLE).encode("utf-8", "backslashreplace").decode("utf-8")
    return html.escape(shown, quote=True)


def figure_text(value: object, spec: str = ".3g") -> str:
    """A figure; "–" for one that is not known."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "–" if value is None else str(value)
    if not math.isfinite(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:{spec}}"


def percent(value: float | None, spec: str = ".1f") -> str:
    """A share as "12.5%"."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:{spec}}%"


def cut_short(text: str, most: int) -> str:
    """``text`` whole, or its beginning and end with the number of characters between them."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most - most * 2 // 3
    return f"{text[:head]}\n… {len(text) - head - tail:,} characters left out …\n{text[-tail:]}"


def section(anchor: str, title: str, body: str, lead: str = "") -> str:
    """A section with its place in the contents; "" without a body."""
    if not body:
        return ""
    lead = f'<p class="lead">{esc(lead)}</p>' if lead else ""
    return f'<section id="{anchor}"><h2>{esc(title)}</h2>{lead}{body}</section>\n'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table; cells are HTML. It scrolls by itself where it is too wide."""
    top = "".join(f"<th>{esc(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def card(name: str, value: str, note: str = "") -> str:
    """A figure with its name, and a note below it; all plain text."""
    note = f"<small>{esc(note)}</small>" if note else ""
    return f'<div class="card"><span>{esc(name)}</span><b>{esc(value)}</b>{note}</div>'


def html_page(title: str, subtitle: str, body: str) -> str:
    """The whole file, whose contents list the sections of ``body`` in their order."""
    style, script = ((HERE / name).read_text("utf-8") for name in ("style.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    links = "".join(f'<a href="#{at}">{LINKS[at]}</a>' for at in _ANCHOR.findall(body) if at in LINKS)
    return (
        f'<!doctype html>{MARK}\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{esc(title)}</title>\n<style>\n{style}</style></head>\n<body>\n"
        f'<header><p class="kind">overlap report</p><h1>{esc(title)}</h1><p class="sub">{esc(subtitle)}</p></header>\n'
        f"<nav>{links}</nav>\n<main>\n{body}</main>\n<script>{script}</script>\n</body></html>\n"
    )
