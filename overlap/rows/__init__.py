"""The rows of a data set, from where they lie: a file, a folder or the hub."""

from overlap.rows.row import DUPLICATE, IDS, MALFORMED, SourceRow, Unusable, held_out, is_held_out, made_row, own_split
from overlap.rows.sources import first_row, is_hub_source, source_rows
from overlap.rows.split_file import absent, is_split_file, split_entries, split_rows

__all__ = [
    "DUPLICATE",
    "IDS",
    "MALFORMED",
    "SourceRow",
    "Unusable",
    "absent",
    "first_row",
    "held_out",
    "is_held_out",
    "is_hub_source",
    "is_split_file",
    "made_row",
    "own_split",
    "source_rows",
    "split_entries",
    "split_rows",
]
