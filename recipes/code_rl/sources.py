"""Rows from where they lie: JSONL, JSON, Parquet, a folder in the layout of APPS, or a data set of the hub.

    problems.jsonl, problems.jsonl.gz      one object per line
    problems.json, problems.json.gz        a list of objects
    problems.parquet                       through ``datasets``
    apps/train/                            sub-folders with question.txt and input_output.json
    owner/name                             the hub's "train" split
    owner/name:config_a+config_b:test      these configurations, that split

Plain readers are used where they are simpler than ``datasets``: they know the line of every row.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from overlap.errors import ConfigError, DataError
from recipes.code_rl.core import Row

_HUB = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(:(?P<configs>[\w.+-]*))?(:(?P<split>[\w\[\]%:.-]+))?")
_KINDS = (
    "a .jsonl, .json or .parquet file (.gz too), a folder of APPS problems, or a hub id owner/name[:config[:split]]"
)
_APPS_FILES = {"question": "question.txt", "input_output": "input_output.json", "solutions": "solutions.json"}


def read_rows(source: str, field: str = "data.train") -> Iterator[Row]:
    """All rows of ``source``, in order. Raises ConfigError for the source, DataError for a row of it."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _apps_folder(path, field)
    if path.is_file():
        return _file(path, field)
    if (hub := _HUB.fullmatch(source)) and not path.suffix.startswith((".json", ".parquet")):
        return _hub(hub["id"], hub["configs"] or "", hub["split"] or "train", field)
    raise ConfigError(field, source, f"no such file; give {_KINDS}")


def _file(path: Path, field: str) -> Iterator[Row]:
    suffixes = [s for s in path.suffixes if s != ".gz"]
    kind = suffixes[-1] if suffixes else ""
    if kind == ".jsonl":
        return _jsonl(path)
    if kind == ".json":
        return _json(path)
    if kind == ".parquet":
        return _parquet(path)
    raise ConfigError(field, str(path), f"cannot be read by its name; give {_KINDS}")


def _read_text(path: Path) -> str:
    """The file as text. Lines end at a line feed only: JSON strings may hold other line separators."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}", error.reason, "is not UTF-8; convert the file") from error
    except (OSError, EOFError) as error:
        raise ConfigError("data", str(path), f"cannot be read ({error})") from error


def _jsonl(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        row = Row(f"{path}:{number}", {})
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise row.fault(line, f"is not JSON: {error}") from error
        yield _object(row, value, path, number)


def _json(path: Path) -> Iterator[Row]:
    """The list is walked element by element, so that each row's line is known."""
    text, decoder = _read_text(path), json.JSONDecoder()
    space = re.compile(r"[ \t\r\n]*")

    def skip(at: int) -> int:
        found = space.match(text, at)
        return found.end() if found else at

    at, line, counted, index = skip(0), 1, 0, 0
    if text[at : at + 1] != "[":
        raise DataError(f"{path}:1", text[:40], "a .json file must hold a list of objects; use .jsonl for lines")
    at = skip(at + 1)
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        row = Row(f"{path}:{line} (row {index + 1})", {})
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise row.fault(text[at : at + 80], f"is not JSON: {error}") from error
        yield _object(row, value, path, index + 1)
        at, index = skip(at), index + 1
        if text[at : at + 1] == ",":
            at = skip(at + 1)
        elif text[at : at + 1] != "]":
            raise row.fault(text[at : at + 80], "a comma or the end of the list was expected after this row")


def _object(row: Row, value: Any, path: Path, number: int) -> Row:
    if not isinstance(value, dict):
        raise row.fault(value, "a row must be a JSON object")
    return Row(row.place, value, f"{path.name.split('.')[0]}/{number}")


def _parquet(path: Path) -> Iterator[Row]:
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    try:
        rows = Dataset.from_parquet(str(path))
    except (OSError, ValueError, DatasetGenerationError) as error:
        raise ConfigError("data", str(path), f"cannot be read as Parquet ({error})") from error
    for number, values in enumerate(rows, start=1):
        yield Row(f"{path}:{number}", values, f"{path.stem}/{number}")


def _hub(hub_id: str, configs: str, split: str, field: str) -> Iterator[Row]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    for config in configs.split("+") if configs else [None]:
        name = f"{hub_id}:{config}" if config else hub_id
        try:
            rows = load_dataset(hub_id, config, split=split)
        except (DatasetNotFoundError, OSError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(field, name, f"cannot be loaded from the hub ({reason}); give {_KINDS}") from error
        for number, values in enumerate(rows, start=1):
            yield Row(f"{name}:{number}", values, f"{name}/{number}")


def _apps_folder(path: Path, field: str) -> Iterator[Row]:
    folders = sorted(p.parent for p in path.glob("*/question.txt"))
    if not folders:
        raise ConfigError(field, str(path), f"this folder holds no */question.txt; give {_KINDS}")
    for folder in folders:
        values: dict[str, Any] = {"problem_id": folder.name}
        values |= {name: _read_text(folder / file) for name, file in _APPS_FILES.items() if (folder / file).is_file()}
        starter = folder / "starter_code.py"
        values["starter_code"] = _read_text(starter) if starter.is_file() else ""
        if (folder / "metadata.json").is_file():
            values |= Row(f"{folder}/metadata.json:1", {"m": _read_text(folder / "metadata.json")}).parsed("m")
        yield Row(f"{folder}/input_output.json:1", values)
