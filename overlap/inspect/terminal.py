"""Rich's output as lines: for a terminal in colours and its width, for a pipe whole lines without colours."""

from __future__ import annotations

import io
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from sandbox.core.checks import printable

WIDE = 100_000
"""Columns of a pipe, whose lines are never shortened."""
_VERDICTS = {"AC": "green", "WA": "red", "RE": "red", "CE": "magenta", "SEC": "magenta"}
Cell = Any
"""A text, or a pair of it and its style."""


def console_of(stream: TextIO | None) -> Console:
    """Return the console that draws for ``stream``. NO_COLOR and TERM=dumb are respected, as Rich does."""
    terminal = stream is not None and stream.isatty()
    width = max(40, shutil.get_terminal_size((100, 24)).columns) if terminal else WIDE
    return Console(
        file=stream or io.StringIO(), width=width, force_terminal=terminal, markup=False, highlight=False, emoji=False
    )


def drawn(parts: Iterable[RenderableType], console: Console | None = None) -> Iterator[str]:
    """The lines of all parts, for stdout where no console is given."""
    console = console or console_of(sys.stdout)
    for part in parts:
        with console.capture() as found:
            console.print(part, soft_wrap=isinstance(part, str | Text))
        yield from (line.rstrip() for line in found.get().removesuffix("\n").split("\n"))


def title(text: str) -> RenderableType:
    """The heading of a part, with a rule behind it."""
    line = Text(one_line_of(text), "bold")
    return Constrain(Rule(line, align="left", style="bright_black"), max(72, cell_len(line.plain) + 4))


def table(heading: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: str = "") -> Table:
    """Rows below a heading, without columns that are empty. Columns named in ``right`` (words) are set to the right.
    What does not fit is wrapped, in the longest column first.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    used = [at for at in range(len(heading)) if at == len(heading) - 1 or any(row[at] for row in cells)]
    for at in used:
        justify: Any = "right" if heading[at] in right.split() else "left"
        made.add_column(heading[at], justify=justify, overflow="fold")
    for row in cells:
        made.add_row(*(row[at] for at in used))
    return made


def _cell(cell: Cell) -> Text:
    text, style = cell if isinstance(cell, tuple) else (cell, "")
    return Text(one_line_of(str(text)), style)


def hint(command: str, what: str) -> Text:
    """A command that shows more, and what that is."""
    return Text.assemble((one_line_of(command), "cyan"), "   ", what)


def safe(text: str) -> str:
    """The text of a program, a model or a file: its lines stay, every control character becomes an escape."""
    return printable(text.expandtabs(4), "\n")


def one_line_of(text: str) -> str:
    """The same in one line."""
    return safe(" ".join(text.split("\n")) if "\n" in text else text)


def shown_argument(text: str) -> str:
    """A name as it is written in a command that is to be copied."""
    return one_line_of(shlex.quote(text))


def figure(value: float | None) -> str:
    """A number as people read it; "-" where there is none."""
    return "-" if value is None or value != value else f"{value:.3f}".rstrip("0").rstrip(".") or "0"


def verdict_cell(verdict: str | None) -> tuple[str, str]:
    """A verdict with its colour; "-" for none."""
    return (verdict, _VERDICTS.get(verdict, "yellow")) if verdict else ("-", "bright_black")
