"""The text of a program in colours: as lines for a terminal, and in parts for a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from overlap.view.terminal import Screen, columns, safe


def _lexer_of(language: str) -> Any:
    """pygments' lexer; None where pygments is missing, or does not know the language."""
    with suppress(ImportError, ValueError):
        from pygments.lexers import get_lexer_by_name

        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    return None


def highlighted(source: str, language: str, screen: Screen) -> list[str]:
    """The lines of a program, in colours where they are seen and the language is known."""
    text, lexer = safe(source), _lexer_of(language) if screen.colour else None
    if lexer is None:
        return text.splitlines()
    from pygments import highlight
    from pygments.console import codes
    from pygments.formatters.terminal import TERMINAL_COLORS, TerminalFormatter
    from pygments.token import Comment, Whitespace

    grey = "brightblack" if "brightblack" in codes else ""  # seen on light and dark
    scheme = {**TERMINAL_COLORS, Comment: (grey, grey), Whitespace: ("", "")}
    return str(highlight(text, lexer, TerminalFormatter(colorscheme=scheme))).splitlines()


def program_parts(source: str, language: str) -> list[list[str]]:
    """A program in parts, each with its kind: pygments' short name of a function, class or builtin, else the first
    letter of keywords, strings, comments and numbers ("m"); "" for all else.
    """
    lexer = _lexer_of(language)
    if lexer is None:
        return [["", source]]
    from pygments.token import STANDARD_TYPES

    parts: list[list[str]] = []
    for kind, text in lexer.get_tokens(source):
        name = STANDARD_TYPES.get(kind, "")
        short = name if name in ("nf", "nc", "nb") else name[:1] if name[:1] in ("k", "s", "c", "m") else ""
        if parts and parts[-1][0] == short:
            parts[-1][1] += text
        else:
            parts.append([short, text])
    return parts


def numbered(lines: list[str], screen: Screen) -> Iterator[str]:
    """Lines with their numbers."""
    width = columns(str(len(lines)))
    yield from (f"{screen.paint(str(number).rjust(width), 'grey')}  {line}" for number, line in enumerate(lines, 1))
