"""Lines for a terminal or a pipe: colours where they are seen, tables that fit, no control character of a program."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO
from unicodedata import east_asian_width

from sandbox.core.checks import printable
from sandbox.terminal import wants_colour

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36", "grey": "90"}
_BOLD, _OFF = "\x1b[1m", "\x1b[0m"
_VERDICTS = {"AC": "green", "WA": "red", "RE": "red", "CE": "magenta", "SEC": "magenta"}
GAP, _INDENT = "  ", "    "
_LAST = 32
"""Columns that the last column of a table wants at least."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What lines are made for: ``width`` in columns, 0 for a pipe, whose lines are never shortened."""

    width: int = 0
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO | None = None) -> Screen:
        """What ``stream`` (stdout) is. NO_COLOR and TERM=dumb are respected."""
        stream = sys.stdout if stream is None else stream
        if stream is None or not stream.isatty():
            return cls()
        return cls(max(40, shutil.get_terminal_size((100, 24)).columns), wants_colour(stream))

    def paint(self, text: str, colour: str = "", *, bold: bool = False) -> str:
        """``text`` in a colour, where colours are seen."""
        codes = (_BOLD if bold else "") + (f"\x1b[{_COLOURS[colour]}m" if colour else "")
        return f"{codes}{text}{_OFF}" if self.colour and codes and text else text

    def verdict(self, verdict: str | None) -> str:
        """A verdict in its colour."""
        return self.paint(one_line_of(verdict or "-"), verdict_colour(verdict))

    def title(self, text: str) -> str:
        """The heading of a part, with a rule to the edge of the terminal."""
        rule = "─" * max(0, min(self.width or 72, 100) - columns(text) - 1)
        return f"{self.paint(text, bold=True)} {self.paint(rule, 'grey')}" if rule else self.paint(text, bold=True)

    def cut(self, text: str, width: int | None = None) -> str:
        """One line of ``text``, which holds no colours, shortened to ``width`` (the terminal's)."""
        line = one_line_of(text)
        limit = self.width if width is None else width
        if not limit or columns(line) <= limit:
            return line
        while columns(line) > limit - 1:
            line = line[: limit - 1 - (0 if line.isascii() else 1)] if len(line) >= limit else line[:-1]
        return line + "…"

    def table(self, heading: Sequence[str], rows: Iterable[Sequence[Any]], *, right: str = "") -> Iterator[str]:
        """Rows below a heading, without columns that are empty. Columns named in ``right`` (words) are set to the
        right. The last column is shortened to what the terminal leaves; where that is too little, it gets lines of its
        own. A cell is a text, or a pair of the text and its colour.
        """
        cells = [[_cell(cell) for cell in row] for row in rows]
        used = [at for at in range(len(heading)) if at == len(heading) - 1 or any(row[at][0] for row in cells)]
        heading, cells = [heading[at] for at in used], [[row[at] for at in used] for row in cells]
        last, numbers = len(heading) - 1, right.split()
        widths = [max([columns(name), *(columns(row[at][0]) for row in cells)]) for at, name in enumerate(heading)]
        left = self.width - sum(widths[:last]) - len(GAP) * last if self.width else widths[last]
        apart = left < min(widths[last], _LAST)
        title = heading[last]
        if apart:
            heading = heading[:last]
        else:
            widths[last] = min(widths[last], left)
        yield self._row([(name, "grey") for name in heading], widths, numbers, heading)
        for row in cells:
            yield self._row(row[: len(heading)], widths, numbers, heading)
            if apart and row[last][0]:
                text = f"{title}: {row[last][0]}"
                yield _INDENT + self.paint(self.cut(text, self.width - len(_INDENT)), row[last][1])

    def _row(
        self, row: Sequence[tuple[str, str]], widths: Sequence[int], right: Sequence[str], heading: Sequence[str]
    ) -> str:
        parts = []
        for at, (text, colour) in enumerate(row):
            shown = self.cut(text, widths[at]) if self.width else one_line_of(text)
            space = " " * max(0, widths[at] - columns(shown))
            painted = self.paint(shown, colour)
            parts.append(space + painted if heading[at] in right else painted + (space if at < len(row) - 1 else ""))
        return GAP.join(parts).rstrip()


def safe(text: str) -> str:
    """The text of a program, a model or a file: its lines stay, every control character becomes an escape."""
    return printable(text.expandtabs(4), "\n")


def one_line_of(text: str) -> str:
    """The same in one line."""
    return safe(" ".join(text.split("\n")) if "\n" in text else text)


def shown_argument(text: str) -> str:
    """A name as it stands in a command that is to be copied."""
    return one_line_of(shlex.quote(text))


def columns(text: str) -> int:
    """Columns that a line without colours takes."""
    return len(text) if text.isascii() else len(text) + sum(east_asian_width(c) in "WF" for c in text)


def _cell(cell: Any) -> tuple[str, str]:
    if isinstance(cell, tuple):
        return one_line_of(str(cell[0])), cell[1]
    return one_line_of(str(cell)), ""


def figure(value: float | None) -> str:
    """A number as people read it; "-" where there is none."""
    return "-" if value is None or value != value else f"{value:.3f}".rstrip("0").rstrip(".") or "0"


def verdict_colour(verdict: str | None) -> str:
    """The colour of a verdict, or of none."""
    return _VERDICTS.get(verdict, "yellow") if verdict else "grey"
