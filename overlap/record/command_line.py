"""The command that started a run, for its history; without secrets."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

_SECRET = re.compile(
    r"(?i)((?:api[_-]?key|access[_-]?key|token|secret|password|passwd)['\"]?\s*[=: ]\s*)(?:'[^']*'|\"[^\"]*\"|\S+)"
)
_OURS = (("bin", "overlap"), ("overlap", "cli.py"))


def command_line() -> str:
    """The words of ``overlap ...`` as a shell takes them; of another program its name alone."""
    program = Path(sys.argv[0] or "python")
    if program.parts[-2:] not in _OURS:
        return program.name
    return shlex.join(["overlap", *map(masked, sys.argv[1:])])


def masked(text: str) -> str:
    """``text`` with the values of passwords and tokens left out: ``--api-key ***``."""
    return _SECRET.sub(r"\1***", text)
