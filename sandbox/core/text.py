"""Text that a program wrote, made fit to be shown beside ours."""

from __future__ import annotations


def printable(text: str, keep: str = "") -> str:
    r"""`text` with all but printable characters and those of `keep` escaped: no line, colour or cursor of its own.

    The result can be encoded: a lone surrogate becomes `\udcff`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
