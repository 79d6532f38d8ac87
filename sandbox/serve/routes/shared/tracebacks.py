"""A traceback as a notebook shows it."""

from __future__ import annotations

import re
from typing import Final

from sandbox.serve.bodies import Json

_LAST: Final = re.compile(r"(?P<ename>[\w.]+)(?:: (?P<evalue>.*))?\Z", re.DOTALL)


def errors_of(traceback: str | None) -> list[Json]:
    """A traceback as a notebook has it: its last line in parts, and all lines."""
    if traceback is None:
        return []
    lines = traceback.split("\n")
    told = next((n for n in range(len(lines) - 1, -1, -1) if lines[n] and not lines[n].startswith((" ", "^"))), 0)
    found = _LAST.match("\n".join(lines[told:]))
    ename, evalue = (found["ename"], found["evalue"] or "") if found else ("Error", lines[-1])
    return [{"ename": ename, "evalue": evalue, "traceback": lines}]
