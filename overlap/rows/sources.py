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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from overlap.core.errors import ConfigError
from overlap.rows.row import SourceRow, Unusable, decoded, made_row
from sandbox.compare.values import finite_float

_HUB = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(:(?P<configs>[\w.+-]*))?(:(?P<split>[\w\[\]%:.-]+))?")
_HUB_FILE = re.compile(r"(?P<id>[\w.-]+/[\w.-]+):(?P<files>[\w./+-]+\.(?:jsonl?|parquet)(?:\.gz)?)")
_KINDS = (
    "a .jsonl, .json or .parquet file (.gz too), a folder of them or of APPS problems, "
    "or a hub id owner/name[:config[:split]] or owner/name:file.jsonl"
)
_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet", ".gz")
_APPS_FILES = {"question": "question.txt", "input_output": "input_output.json", "solutions": "solutions.json"}
_SPACE = re.compile(r"[ \t\r\n]*")
ROW_BYTES_MAX = 256 << 20
"""Bytes of a row as JSON: what is read of it takes several times as many."""
_RATIO_MAX = 64
"""A packed list may unfold to at most this many times its size: test data packs well, and zeros a thousand times."""
_GZIP = b"\x1f\x8b"
_FEED, _BOM = "\n", "\ufeff"

Rows = Iterator[SourceRow | Unusable]


def source_rows(source: str, field: str = "data.train") -> Rows:
    """All rows of ``source``, in order; an Unusable in the place of a row that cannot be read.

    Raises ConfigError for the source as a whole.
    """
    try:
        path = Path(source).expanduser()
        if path.is_dir():
            return _folder(path, field)
        if path.is_file():
            return _file(path, field)
        if path.exists():
            raise ConfigError(field, source, f"is neither a file nor a folder; give {_KINDS}")
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, with a NUL, or the home of an unknown user
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(field, source, f"cannot be looked at ({error}); give {_KINDS}") from error
    hub = _hub_id(source)
    if hub is None:
        raise ConfigError(field, source, f"no such file; give {_KINDS}")
    if hub.re is _HUB_FILE:
        return _hub_files(hub["id"], hub["files"].split("+"), field)
    return _hub(hub["id"], hub["configs"] or "", hub["split"] or "train", field)


def is_hub_source(source: str) -> bool:
    """True when ``source`` has the form of a data set of the hub, and no file or folder of that name is here. Raises
    OSError for what can be no path.
    """
    return _hub_id(source) is not None and not Path(source).exists()


def _hub_id(source: str) -> re.Match[str] | None:
    """Match ``source`` as an id of the hub, by ``_HUB_FILE`` or ``_HUB``."""
    return _HUB_FILE.fullmatch(source) or (None if Path(source).suffix in _SUFFIXES else _HUB.fullmatch(source))


def _file(path: Path, field: str) -> Rows:
    try:
        with path.open("rb") as file:
            if file.peek(2)[:2] != _GZIP:
                return _read(path, file.read(), field)
            start = gzip.GzipFile(fileobj=file).read(1 << 12)
        if start.decode("utf-8", "replace").lstrip(_BOM).lstrip().startswith("{"):
            return _packed_lines(path, field)
        most = max(ROW_BYTES_MAX, _RATIO_MAX * path.stat().st_size)
        with gzip.open(path) as unfolded:
            raw = unfolded.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(field, str(path), f"cannot be read ({error})") from error
    if len(raw) > most:
        way_out = f"unfolds to more than {most >> 20} MiB; unpack it, or write an object per line"
        raise ConfigError(field, str(path), way_out)
    return _read(path, raw, field)


def _packed_lines(path: Path, field: str) -> Rows:
    """The rows of a packed file of lines, of which no more than a row is unfolded at a time."""
    try:
        with gzip.open(path) as unfolded:
            yield from _jsonl(path, _bounded(unfolded))
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(field, str(path), f"cannot be read ({error})") from error


def _bounded(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    """Lines, the rest of one that is too long left out."""
    while line := file.readline(ROW_BYTES_MAX + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(1 << 20)


def _read(path: Path, raw: bytes, field: str) -> Rows:
    if raw[:4] == b"PAR1":
        return _parquet(path, field)
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ConfigError(field, str(path), "is UTF-16; convert the file to UTF-8")
    start = raw[:4096].decode("utf-8", "replace").lstrip(_BOM).lstrip()
    if not start:
        raise ConfigError(field, str(path), "is empty; give problems with tests")
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if start.startswith("[") and not _is_lines(raw) and (suffix != ".jsonl" or raw.rstrip().endswith(b"]")):
        return _json(path, raw, field)
    if start.startswith(("{", "[")) or suffix in (".json", ".jsonl", ".ndjson"):
        return _jsonl(path, io.BytesIO(raw))
    raise ConfigError(field, str(path), f"holds neither JSON nor Parquet; give {_KINDS}")


def first_row(path: Path) -> SourceRow | None:
    """The first row of a file of lines that can be read; the rest of the file is not read. None where there is none."""
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == _GZIP
            lines = _bounded(gzip.GzipFile(fileobj=raw) if packed else raw)
            return next((row for row in _jsonl(path, lines) if isinstance(row, SourceRow)), None)
    except (OSError, EOFError, zlib.error):
        return None  # who reads the whole of it says what is wrong


def _is_lines(raw: bytes) -> bool:
    """True when a file that begins with a list goes on with another value on its second line: lists, one per line."""
    first, _, rest = raw.strip().partition(b"\n")
    if not rest.strip():
        return False
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return False
    return True


def _jsonl(path: Path, lines: Iterable[bytes]) -> Rows:
    """Lines end at a line feed only: JSON strings may hold other line separators."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = SourceRow(f"{path}:{number}", {})
        if len(line) > ROW_BYTES_MAX:
            yield row.fault("a row", f"is of more than {ROW_BYTES_MAX >> 20} MiB")
            continue
        try:
            text = line.decode("utf-8").lstrip(_BOM).rstrip()
            yield made_row(row.place, decoded(text), f"{path.name.split('.')[0]}/{number}")
        except UnicodeDecodeError as error:
            yield row.fault(error.reason, "is not UTF-8; convert the file")
        except (ValueError, RecursionError) as error:
            yield row.fault(text, f"is not JSON: {error}")


def _json(path: Path, raw: bytes, field: str) -> Rows:
    """The list is walked element by element, so that each row's line is known."""
    try:
        text = raw.decode("utf-8").lstrip(_BOM)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(field, f"{path}:{line}", "is not UTF-8; convert the file") from error
    decoder = json.JSONDecoder(parse_float=finite_float)

    def skip(at: int) -> int:
        found = _SPACE.match(text, at)
        return found.end() if found else at

    at, line, counted, index = skip(skip(0) + 1), 1, 0, 0
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        row = SourceRow(f"{path}:{line} (row {index + 1})", {})
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            # Where the next row begins is not known.
            raise ConfigError(field, row.place, f"is not JSON, and the list ends there: {error}") from error
        yield made_row(row.place, value, f"{path.name.split('.')[0]}/{index + 1}")
        at, index = skip(at), index + 1
        if text[at : at + 1] == ",":
            at = skip(at + 1)
        elif text[at : at + 1] != "]":
            raise ConfigError(field, row.place, "a comma or the end of the list was expected after this row")
    if text[at + 1 :].strip():
        yield SourceRow(f"{path}:{line + text.count(_FEED, counted, at)}", {}).fault(
            text[at + 1 :].strip(), "stands after the end of the list"
        )


def _parquet(path: Path, field: str) -> Rows:
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    try:
        rows = Dataset.from_parquet(str(path))
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise ConfigError(field, str(path), f"cannot be read as Parquet ({_first_line(error)})") from error
    for number, values in enumerate(rows, start=1):
        yield made_row(f"{path}:{number}", values, f"{path.stem}/{number}")


def _hub(hub_id: str, configs: str, split: str, field: str) -> Rows:
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    for config in configs.split("+") if configs else [None]:
        name = f"{hub_id}:{config}" if config else hub_id
        try:
            rows = load_dataset(hub_id, config, split=split)
        except (DatasetNotFoundError, OSError, ValueError) as error:
            reason = _first_line(error)
            raise ConfigError(field, name, f"cannot be loaded from the hub ({reason}); give {_KINDS}") from error
        for number, values in enumerate(rows, start=1):
            yield made_row(f"{name}:{number}", values, f"{name}/{number}")


def _hub_files(hub_id: str, files: list[str], field: str) -> Rows:
    """Read sets that are files and a loading script, which ``datasets`` no longer runs."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    for file in files:
        try:
            path = hf_hub_download(hub_id, file, repo_type="dataset", etag_timeout=10)
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            reason = _first_line(error)
            raise ConfigError(field, f"{hub_id}:{file}", f"cannot be loaded from the hub ({reason})") from error
        yield from _file(Path(path), field)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _folder(path: Path, field: str) -> Rows:
    """APPS problems, or problem files one after the other (the shards of a data set)."""
    try:
        folders = sorted(p.parent for p in path.glob("*/question.txt"))
        files = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    except OSError as error:
        raise ConfigError(field, str(path), f"cannot be read ({error.strerror}); give {_KINDS}") from error
    if folders:
        yield from map(_apps_problem, folders)
        return
    if not files:
        raise ConfigError(field, str(path), f"this folder holds no */question.txt and no problem file; give {_KINDS}")
    for file in files:
        yield from _file(file, field)


def _apps_problem(folder: Path) -> SourceRow | Unusable:
    row = SourceRow(f"{folder}/input_output.json:1", {})
    values: dict[str, Any] = {"problem_id": folder.name, "starter_code": ""}
    try:
        for name, file in {**_APPS_FILES, "starter_code": "starter_code.py"}.items():
            if (folder / file).is_file():
                values[name] = (folder / file).read_bytes().decode("utf-8")
        if (folder / "metadata.json").is_file():
            metadata = json.loads((folder / "metadata.json").read_bytes())
            values |= metadata if isinstance(metadata, dict) else {}
    except UnicodeDecodeError as error:
        return row.fault(error.reason, "is not UTF-8; convert the file")
    except (OSError, ValueError, RecursionError) as error:
        return row.fault(str(error), "a file of this problem cannot be read")
    values.setdefault("input_output", "")
    return SourceRow(row.place, values)
