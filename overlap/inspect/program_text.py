"""The text of a program in colours: for a terminal, and in parts for the page."""

from __future__ import annotations

from typing import Any

from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound
from rich.syntax import Syntax
from rich.text import Text

from overlap.inspect.terminal import safe


def highlighted(source: str, language: str) -> Text:
    """A program with numbered lines, in colours where the language is known."""
    lines = Syntax("", language, theme="ansi_dark", background_color="default").highlight(safe(source)).split()
    width = len(str(len(lines)))
    return Text("\n").join(
        Text.assemble((f"{at:>{width}}  ", "bright_black"), line) for at, line in enumerate(lines, 1)
    )


def program_parts(source: str, language: str) -> list[list[str]]:
    """A program in parts, each with its kind: pygments' short name of a function, class or builtin, else the first
    letter of keywords, strings, comments and numbers ("m"); "" for all else.
    """
    try:
        lexer: Any = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return [["", source]]
    parts: list[list[str]] = []
    for kind, text in lexer.get_tokens(source):
        name = STANDARD_TYPES.get(kind, "")
        short = name if name in ("nf", "nc", "nb") else name[:1] if name[:1] in ("k", "s", "c", "m") else ""
        if parts and parts[-1][0] == short:
            parts[-1][1] += text
        else:
            parts.append([short, text])
    return parts
