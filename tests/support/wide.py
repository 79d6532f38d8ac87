"""A row of a table of tests that is run with ``--wide`` only: a further combination of what other rows cover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def wide(*values: Any) -> Any:
    """Return the row as a parameter that only ``--wide`` runs."""
    return pytest.param(*values, marks=pytest.mark.wide)


def every(step: int, rows: Sequence[Any]) -> list[Any]:
    """Return the rows; all but the first of each ``step`` are run with ``--wide`` only."""
    return [
        row if number % step == 0 else wide(*row) if isinstance(row, tuple) else wide(row)
        for number, row in enumerate(rows)
    ]
