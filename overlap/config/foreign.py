"""Names by which TRL (and transformers), verl, OpenRLHF and AReaL call what a field here is (``foreign.yaml``): for
users of these. ``meaning`` is asked before any spelling is compared: ``epsilon`` is no misspelt ``episode``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def _table() -> Mapping[str, Mapping[str, str]]:
    table: Mapping[str, Mapping[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return table


@cache
def foreign_names() -> Mapping[str, str]:
    """Last parts of another trainer's name ("val_kwargs.n", "n") → the name here."""
    return {name: here for here, names in _table()["names"].items() for name in names.split()}


def algorithms() -> Mapping[str, str]:
    """Algorithms → ``learn.advantage``."""
    return _table()["advantages"]


def meaning(path: Sequence[str], value: Any) -> str:
    """Return the name here ("learn.lr") of a name of another trainer, "" for one that is not known. ``path`` is the
    name with its sections; the longest known end of it decides.
    """
    for start in range(len(path)):
        if here := foreign_names().get(".".join(path[start:]).lower().replace("-", "_")):
            known = algorithms().get(str(value).lower()) if here == "learn.advantage" else None
            return f"{here}={known}" if known else here
    return ""
