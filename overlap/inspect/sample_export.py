"""Kept samples as one file for other programs: JSON lines, or Parquet with the numbers per token as lists."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from overlap.core.errors import ConfigError
from overlap.process.atomic import guarded, made_whole
from overlap.record.ownership import check_out
from overlap.record.row_shapes import PACKED_COLUMNS, BulkRow, HeadRow
from overlap.record.sample_file import SampleFile, SampleHead

ROWS_AT_ONCE = 256
_AS_JSON = ("program", "tests", "forks", "restore")
"""Columns of Parquet that hold JSON, as their rows have many forms."""


def write_samples(samples: SampleFile, heads: Sequence[SampleHead], out: Path) -> None:
    """Write whole samples to ``out``, whose name ends in .jsonl or .parquet: all of it or nothing.

    Raises ConfigError for another name, a file that is there, and Parquet without pyarrow; RunDirError.
    """
    if out.suffix not in (".jsonl", ".parquet"):
        raise ConfigError("--out", str(out), "name a file that ends in .jsonl or .parquet")
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
    try:
        import pyarrow
        from pyarrow.parquet import ParquetWriter
    except ImportError as error:
        raise ConfigError("--out", str(path), "needs pyarrow: pip install pyarrow, or name a .jsonl file") from error
    schema = pyarrow.schema(_columns(pyarrow))
    with ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in blocks:
            writer.write_table(pyarrow.Table.from_pylist(list(map(_flat, rows)), schema=schema))


def _columns(pyarrow: Any) -> list[tuple[str, Any]]:
    """Each column with its type."""
    texts, whole, number = pyarrow.string(), pyarrow.int64(), pyarrow.float64()
    lists = {"kept_as": texts, "versions": pyarrow.list_(whole), "mask": pyarrow.int8()}
    lists |= dict.fromkeys(("token_ids", "prompt_token_ids"), pyarrow.int32())
    lists |= dict.fromkeys(("logprobs", "learner_logprobs"), pyarrow.float32())
    known = {name: pyarrow.list_(held) for name, held in lists.items()} | {"parts": pyarrow.map_(texts, number)}
    known |= dict.fromkeys(
        ("schema", "step", "group", "sample", "passed", "total", "tokens", "turns", "branches"), whole
    )
    known |= dict.fromkeys(("reward", "advantage", "generate_s", "queue_s", "verify_s"), number)
    known |= dict.fromkeys(("weak", "truncated"), pyarrow.bool_())
    return [(name, known.get(name, texts)) for name in (*HeadRow.__annotations__, *BulkRow.__annotations__)]


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
