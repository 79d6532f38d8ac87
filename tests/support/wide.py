"""A row of a table of tests that is run with ``--wide`` only: a further combination of what other rows cover."""

from __future__ import annotations

from typing import Any

import pytest


def wide(*values: Any) -> Any:
    """The row."""
    return pytest.param(*values, marks=pytest.mark.wide)
