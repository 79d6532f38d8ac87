"""Rows from their sources: JSONL, JSON, Parquet, a folder in the layout of APPS, or a data set of the hub.

    problems.jsonl, problems.jsonl.gz      one object per line
    problems.json, problems.json.gz        a list of objects
    problems.parquet                       through ``datasets``
    apps/train/                            sub-folders with question.txt and input_output.json
    set/data/                              such files, in the order of their names
    owner/name                             the hub's "train" split
    owner/name:config_a+config_b:test      these configurations, that split
    owner/name:test.jsonl+test2.jsonl      these files of the data set, as they are there

The format of a file is found by its first bytes, not by its name: ``.json`` with an object per line is common. A row
that cannot be read is handed out as the ``Unusable`` that says why; what makes the whole source unreadable is raised.
Plain readers are used where they are simpler than ``datasets``: they know the line of every row.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

from overlap.core.errors import ConfigError, refusing
from overlap.rows.row import SourceRow, Unusable, decoded, made_row
from sandbox.compare.values import finite_float

_HUB = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(:(?P<configs>[\w.+-]*))?(:(?P<split>[\w\[\]%:.-]+))?")
_HUB_FILE = re.compile(r"(?P<id>[\w.-]+/[\w.-]+):(?P<files>[\w./+-]+\.(?:jsonl?|parquet)(?:\.gz)?)")
_KINDS = (
    "a .jsonl, .json or .parquet file (.gz too), a folder of them or of APPS problems, "
    "or a hub id owner/name[:config[:split]] or owner/name:file.jsonl"
)
_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet", ".gz")
_APPS_FILES = {
    "question": "question.txt",
    "input_output": "input_output.json",
    "solutions": "solutions.json",
    "starter_code": "starter_code.py",
}
_SPACE = re.compile(r"[ \t\r\n]*")
ROW_BYTES_MAX = 256 << 20
"""Bytes of a row as JSON: what is read of it takes several times as many."""
_RATIO_MAX = 64
"""A packed list may unfold to at most this many times its size: test data packs well, and zeros a thousand times."""
_GZIP = b"\x1f\x8b"
_FEED, _BOM = "\n", "\ufeff"
UNREADABLE = (OSError, EOFError, zlib.error, UnicodeDecodeError)
"""Errors that reading a file raises, packed or not."""

Rows = Iterator[SourceRow | Unusable]


def source_rows(source: str, field: str = "data.train") -> Rows:
    """All rows of ``source``, in order; an Unusable in the place of a row that cannot be read.

    Raises ConfigError for the source as a whole.
    """
    # A name too long, or the home of an unknown user.
    with refusing(field, source, "cannot be looked at", f"give {_KINDS}", (OSError, RuntimeError)):
        path = Path(source).expanduser()
        if path.is_dir():
            return _folder(path, field)
        if path.is_file():
            return _file(path, field)
        if path.exists():
            raise ConfigError(field, source, f"is neither a file nor a folder; give {_KINDS}")
    if files := _HUB_FILE.fullmatch(source):
        return _hub_files(files["id"], files["files"].split("+"), field)
    hub = None if path.suffix in _SUFFIXES else _HUB.fullmatch(source)
    if hub is None:
        raise ConfigError(field, source, f"no such file; give {_KINDS}")
    return _hub(hub["id"], hub["configs"] or "", hub["split"] or "train", field)


def _file(path: Path, field: str) -> Rows:
    with (
        refusing(field, str(path), "cannot be read", f"give {_KINDS}", UNREADABLE),
        path.open("rb") as raw,
        unfolded(raw) as file,
    ):
        first = file.peek(1 << 12)
        start = first.decode("utf-8", "replace").lstrip(_BOM).lstrip()
        suffix = Path(path.name.removesuffix(".gz")).suffix
        if first[:4] == b"PAR1":
            yield from _parquet(path, field)
        elif first[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise ConfigError(field, str(path), "is UTF-16; convert the file to UTF-8")
        elif not start:
            raise ConfigError(field, str(path), "is empty; give problems with tests")
        elif start.startswith("["):
            data = _whole(path, file, field)
            is_list = suffix != ".jsonl" or data.rstrip().endswith(b"]")
            yield from _json(path, data, field) if is_list else jsonl(path, io.BytesIO(data))
        elif start.startswith("{") or suffix in (".json", ".jsonl", ".ndjson"):
            yield from jsonl(path, file)
        else:
            raise ConfigError(field, str(path), f"holds neither JSON nor Parquet; give {_KINDS}")


def unfolded(raw: io.BufferedReader) -> io.BufferedReader:
    """A file, or what a file that is packed by gzip holds."""
    return io.BufferedReader(gzip.GzipFile(fileobj=raw)) if raw.peek(2)[:2] == _GZIP else raw


def _whole(path: Path, file: io.BufferedReader, field: str) -> bytes:
    most = max(ROW_BYTES_MAX, _RATIO_MAX * path.stat().st_size)
    if len(data := file.read(most + 1)) > most:
        way_out = f"unfolds to more than {most >> 20} MiB; unpack it, or write an object per line"
        raise ConfigError(field, str(path), way_out)
    return data


def jsonl(path: Path, file: IO[bytes]) -> Rows:
    """The rows of a file of lines, of which no more than a row is read at a time. Lines end at a line feed only: JSON
    strings may hold other line separators.
    """
    for number, line in enumerate(iter(partial(file.readline, ROW_BYTES_MAX + 1), b""), start=1):
        if not line.strip():
            continue
        row = SourceRow(f"{path}:{number}", {})
        if len(line) > ROW_BYTES_MAX:
            while line and not line.endswith(b"\n"):
                line = file.readline(1 << 20)
            yield row.fault("a row", f"is of more than {ROW_BYTES_MAX >> 20} MiB")
            continue
        try:
            found = decoded(line.decode("utf-8").lstrip(_BOM).rstrip())
        except (ValueError, RecursionError) as error:
            yield row.fault(line.decode("utf-8", "replace").strip(), f"is not JSON in UTF-8: {error}")
        else:
            yield made_row(row.place, found, f"{path.name.split('.')[0]}/{number}")


def _json(path: Path, raw: bytes, field: str) -> Rows:
    """The list is walked element by element, so that each row's line is known."""
    text = raw.decode("utf-8").lstrip(_BOM)
    decoder = json.JSONDecoder(parse_float=finite_float)

    def skip(at: int) -> int:
        found = _SPACE.match(text, at)
        return found.end() if found else at

    at, line, counted, index = skip(skip(0) + 1), 1, 0, 0
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        place = f"{path}:{line} (row {index + 1})"
        # Where the row after a torn one begins is not known.
        with refusing(field, place, "is not JSON", "the list ends there", (ValueError, RecursionError)):
            value, at = decoder.raw_decode(text, at)
        yield made_row(place, value, f"{path.name.split('.')[0]}/{index + 1}")
        at, index = skip(at), index + 1
        if text[at : at + 1] == ",":
            at = skip(at + 1)
        elif text[at : at + 1] != "]":
            raise ConfigError(field, place, "a comma or the end of the list was expected after this row")
    if rest := text[at + 1 :].strip():
        place = f"{path}:{line + text.count(_FEED, counted, at)}"
        yield SourceRow(place, {}).fault(rest, "comes after the end of the list")


def _parquet(path: Path, field: str) -> Rows:
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    errors = OSError, ValueError, DatasetGenerationError
    with refusing(field, str(path), "cannot be read as Parquet", "write it anew", errors):
        rows = Dataset.from_parquet(str(path))
    for number, values in enumerate(rows, start=1):
        yield made_row(f"{path}:{number}", values, f"{path.stem}/{number}")


def _hub(hub_id: str, configs: str, split: str, field: str) -> Rows:
    from datasets import load_dataset

    for config in configs.split("+") if configs else [None]:
        name = f"{hub_id}:{config}" if config else hub_id
        with refusing(field, name, "cannot be loaded from the hub", f"give {_KINDS}", (OSError, ValueError)):
            rows = load_dataset(hub_id, config, split=split)
        for number, values in enumerate(rows, start=1):
            yield made_row(f"{name}:{number}", values, f"{name}/{number}")


def _hub_files(hub_id: str, files: list[str], field: str) -> Rows:
    """Read sets that are files and a loading script, which ``datasets`` no longer runs."""
    from huggingface_hub import hf_hub_download

    for file in files:
        name = f"{hub_id}:{file}"
        with refusing(field, name, "cannot be loaded from the hub", f"give {_KINDS}", (OSError, ValueError)):
            path = hf_hub_download(hub_id, file, repo_type="dataset", etag_timeout=10)
        yield from _file(Path(path), field)


def _folder(path: Path, field: str) -> Rows:
    """APPS problems, or problem files one after the other (the shards of a data set)."""
    with refusing(field, str(path), "cannot be read", f"give {_KINDS}"):
        folders = sorted(p.parent for p in path.glob("*/question.txt"))
        files = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    if not folders and not files:
        raise ConfigError(field, str(path), f"this folder holds no */question.txt and no problem file; give {_KINDS}")
    yield from map(_apps_problem, folders)
    for file in files if not folders else ():
        yield from _file(file, field)


def _apps_problem(folder: Path) -> SourceRow | Unusable:
    place = f"{folder}/input_output.json:1"
    values: dict[str, Any] = {"problem_id": folder.name, "starter_code": "", "input_output": ""}
    try:
        for name, file in _APPS_FILES.items():
            if (folder / file).is_file():
                values[name] = (folder / file).read_bytes().decode("utf-8")
        if (folder / "metadata.json").is_file():
            metadata = json.loads((folder / "metadata.json").read_bytes())
            values |= metadata if isinstance(metadata, dict) else {}
    except (OSError, ValueError, RecursionError) as error:
        return SourceRow(place, {}).fault(str(error), "a file of this problem cannot be read, or is not UTF-8")
    return SourceRow(place, values)
