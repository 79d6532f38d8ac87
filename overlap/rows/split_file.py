"""Split files: which rows of other files are trained on and which are held out, as ``overlap filter`` writes them.

JSONL with rows {id, passes, samples, split, source}: the id of a row, how often a policy solved it in how many samples,
"train", "heldout" or "dropped", and the source that it is of (relative to the split file, or a hub id).
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from overlap.rows.row import DUPLICATE, SourceRow, Unusable
from overlap.rows.sources import UNREADABLE, Rows, jsonl, source_rows, unfolded

SPLIT_COLUMNS = frozenset({"id", "split", "source"})
SPLIT_NAMES = ("train", "heldout", "dropped")
NOT_THERE = "not in its file"


def is_split_file(source: str) -> bool:
    """True when the first row that can be read has the columns of a split file. The rest of the file is not read."""
    try:
        path = Path(source).expanduser()
        if path.suffix != ".jsonl" or not path.is_file():
            return False
        with path.open("rb") as raw:
            first = first_row(path, raw)
    except (RuntimeError, *UNREADABLE):  # its reader says what is wrong with it
        return False
    return first is not None and first.values.keys() >= SPLIT_COLUMNS


def first_row(path: Path, raw: io.BufferedReader) -> SourceRow | None:
    """The first row of a file of lines that can be read, if there is one."""
    return next((row for row in jsonl(path, unfolded(raw)) if isinstance(row, SourceRow)), None)


def split_entries(
    source: str, names: Sequence[str], field: str
) -> tuple[dict[str, list[SourceRow]], tuple[Unusable, ...]]:
    """The rows of a split file that are of the splits ``names``, by the source that each names, and the rows that are
    of no split. Raises ConfigError for ``field``.
    """
    wanted: dict[str, list[SourceRow]] = defaultdict(list)
    bad = []
    for row in source_rows(source, field):
        try:
            if isinstance(row, Unusable):
                raise row
            if row.text("split") not in SPLIT_NAMES:
                raise row.fault(row.values["split"], f"split must be one of {', '.join(SPLIT_NAMES)}")
            if row.text("split") in names:
                named = row.text("source")
                beside = Path(source).expanduser().parent / named
                wanted[str(beside) if beside.exists() else named].append(row)
        except Unusable as error:
            bad.append(error)
    return wanted, tuple(bad)


def absent(entry: SourceRow, file: str) -> Unusable:
    """Return the fault of a row of a split file whose id ``file`` does not have."""
    way_out = f"{file} has no usable problem of this id; measure anew with overlap filter"
    return entry.fault(entry.id("id"), way_out, NOT_THERE)


def split_rows(source: str, split: str, field: str, id_of: Callable[[SourceRow], str]) -> Rows:
    """The rows that a split file names for ``split``; an Unusable in the place of one that is not there. Raises
    ConfigError for ``field``.
    """
    wanted, bad = split_entries(source, (split,), field)
    yield from bad
    for file, entries in wanted.items():
        known = {id_of(row): row for row in source_rows(file, field) if isinstance(row, SourceRow)}
        taken = set[str]()
        for entry in entries:
            id = entry.id("id")
            if id in taken:
                yield entry.fault(id, "occurs twice in this split", DUPLICATE)
            else:
                yield known[id] if id in known else absent(entry, file)
            taken.add(id)
