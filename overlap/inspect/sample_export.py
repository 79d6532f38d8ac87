"""Kept samples as one file for other programs: JSON lines, or Parquet with the numbers per token as lists."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from overlap.core.errors import ConfigError
from overlap.process.atomic import descriptor_of, guarded, made_whole
from overlap.record.out_file import OutFile
from overlap.record.ownership import check_out
from overlap.record.row_shapes import PACKED_COLUMNS, BulkRow, HeadRow
from overlap.record.sample_file import SampleFile, SampleHead

ROWS_AT_ONCE = 256
_AS_JSON = ("program", "tests", "forks", "restore")
"""Columns of Parquet that hold JSON, as their rows have many forms."""


def write_samples(samples: SampleFile, heads: Sequence[SampleHead], out: Path) -> None:
    """Write whole samples to ``out``, whose name ends in .jsonl or .parquet: all of it or nothing. A descriptor, as
    ``-`` is, gets JSON lines.

    Raises ConfigError for another name, a file that is there, and Parquet without pyarrow; RunDirError.
    """
    if descriptor_of(out) is not None:
        stream = OutFile(out)
        stream.write("".join(f"{json.dumps(samples.row(head))}\n" for head in heads))
        return
    if out.suffix not in (".jsonl", ".parquet"):
        raise ConfigError("--out", str(out), "name a file that ends in .jsonl or .parquet, or - for standard output")
    check_out(out)
    blocks = (list(map(samples.row, heads[at : at + ROWS_AT_ONCE])) for at in range(0, len(heads), ROWS_AT_ONCE))
    with made_whole(out) as partial, guarded(out):
        if out.suffix == ".parquet":
            _write_parquet(partial, blocks)
            return
        with partial.open("w", encoding="utf-8") as file:
            for rows in blocks:
                file.writelines(f"{json.dumps(row)}\n" for row in rows)


def _write_parquet(path: Path, blocks: Iterator[list[dict[str, Any]]]) -> None:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    schema = pyarrow.schema(_columns(pyarrow))
    with ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in blocks:
            writer.write_table(pyarrow.Table.from_pylist(list(map(_flat, rows)), schema=schema))


def _columns(pyarrow: Any) -> list[tuple[str, Any]]:
    """Each column with its type: that of its values in a row, or of the numbers that are packed there."""
    texts, whole, number, list_of = pyarrow.string(), pyarrow.int64(), pyarrow.float64(), pyarrow.list_
    types: dict[Any, Any] = {bool: pyarrow.bool_(), list[str]: list_of(texts), list[list[int]]: list_of(list_of(whole))}
    types |= {
        int: whole,
        int | None: whole,
        float: number,
        float | None: number,
        dict[str, float]: pyarrow.map_(texts, number),
    }
    packed = {"mask": pyarrow.int8(), **dict.fromkeys(("token_ids", "prompt_token_ids"), pyarrow.int32())}
    packed |= dict.fromkeys(("logprobs", "learner_logprobs"), pyarrow.float32())
    hints = get_type_hints(HeadRow) | get_type_hints(BulkRow)
    return [(name, list_of(packed[name]) if name in packed else types.get(hint, texts)) for name, hint in hints.items()]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as Parquet takes it; a lone surrogate, which it cannot hold, as JSON escapes it."""
    found = dict(row)
    for name, unpacked in PACKED_COLUMNS.items():
        found[name] = unpacked(row[name]) if row.get(name) is not None else None
    for name in _AS_JSON:
        found[name] = json.dumps(row[name]) if row.get(name) is not None else None
    texts = {name: _encodable(text) for name, text in found.items() if type(text) is str}
    return {**found, **texts, "parts": [(_encodable(name), value) for name, value in row["parts"].items()]}


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
