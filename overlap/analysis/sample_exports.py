"""Kept samples in the files of other programs: verl's, TRL's, or all columns as one Parquet file.

verl      {train,heldout}/STEP.jsonl                      input, output, gts, score, step, and further columns
trl       {train,heldout}/completions_STEP.parquet        step, prompt, completion, a column per part of the reward,
                                                          further columns, advantage
parquet   samples.parquet                                 every key of the rows

The names of verl's and TRL's columns are those of ``RayPPOTrainer._dump_generations`` and ``GRPOTrainer.log``; those of
the token ids, which a text does not always give back, those of ``AgentLoopOutput`` and of TRL's rollout functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from overlap.analysis.row_shapes import PACKED_COLUMNS
from overlap.analysis.sample_file import SampleFile, SampleHead
from overlap.atomic import guarded
from overlap.errors import ConfigError
from sandbox.core.excerpt import Excerpt

FURTHER: Final = ("id", "prompt_id", "verdict", "passed", "total", "tokens", "finish", "failure", "dropped")
"""Of the head of a row, what verl's and TRL's files have besides their own columns."""
ROWS_AT_ONCE: Final = 256
_AS_JSON: Final = ("program", "tests", "forks")
"""Columns of Parquet that hold JSON, as their rows have many forms."""


def export_verl(samples: SampleFile, folder: Path) -> None:
    """Write verl's files. Raises RunDirError."""
    for split, step, heads in _by_step(samples):
        path = folder / split / f"{step}.jsonl"
        with guarded(path):
            path.parent.mkdir(exist_ok=True)
            with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
                for row in map(samples.row, heads):
                    file.write(json.dumps(_verl_row(row), ensure_ascii=False) + "\n")


def export_trl(samples: SampleFile, folder: Path) -> None:
    """Write TRL's files. Raises ConfigError without pyarrow, RunDirError."""
    _pyarrow()
    for split, step, heads in _by_step(samples):
        path = folder / split / f"completions_{step:05d}.parquet"
        parts = dict.fromkeys(name for head in heads for name in head.values["parts"])
        with guarded(path):
            path.parent.mkdir(exist_ok=True)
            _write_parquet(path, (_trl_row(row, parts) for row in map(samples.row, heads)), _trl_types(parts))


def export_parquet(samples: SampleFile, folder: Path) -> None:
    """Write all columns, tokens and log-probs as lists of numbers. Raises ConfigError without pyarrow, RunDirError."""
    _pyarrow()
    path = folder / "samples.parquet"
    with guarded(path):
        _write_parquet(path, map(_whole_row, samples), _TYPES)


EXPORTS: Final[Mapping[str, Callable[[SampleFile, Path], None]]] = {
    "verl": export_verl,
    "trl": export_trl,
    "parquet": export_parquet,
}


def _by_step(samples: SampleFile) -> Iterator[tuple[str, int, list[SampleHead]]]:
    found: dict[tuple[str, int], list[SampleHead]] = {}
    for head in samples.heads():
        found.setdefault((head.values["split"], head.values["step"]), []).append(head)
    for (split, step), heads in found.items():
        yield split, step, heads


def _verl_row(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"inputs": "input", "outputs": "expected"}
    truth = {name: [_shown(test.get(key)) for test in row.get("tests") or ()] for name, key in shown.items()}
    own = {"input": row["prompt"], "output": _response(row), "gts": json.dumps(truth, ensure_ascii=False)}
    own |= {"score": row["reward"], "step": row["step"], **_further(row), "advantage": row["advantage"]}
    prompt, response = (list(ids) for ids in _ids(row))
    return {**own, "prompt_ids": prompt, "response_ids": response}


def _trl_row(row: Mapping[str, Any], parts: Iterable[str]) -> dict[str, Any]:
    own = {"step": row["step"], "prompt": row["prompt"], "completion": _response(row)}
    own |= {**{part: row["parts"].get(part) for part in parts}, **_further(row)}
    prompt, completion = _ids(row)
    return {**own, "prompt_ids": prompt, "completion_ids": completion, "advantage": row["advantage"]}


def _trl_types(parts: Iterable[str]) -> dict[str, str]:
    own = {"step": "int64", "prompt": "string", "completion": "string", **dict.fromkeys(parts, "double")}
    own |= {name: _TYPES[name] for name in FURTHER}
    return {**own, **dict.fromkeys(("prompt_ids", "completion_ids"), "ints"), "advantage": "double"}


def _response(row: Mapping[str, Any]) -> str:
    """What came behind the prompt; of an episode the later turns of others too, as in its token ids."""
    dialog, prompt = row.get("dialog") or "", row["prompt"]
    return (dialog.startswith(prompt) and dialog[len(prompt) :]) or row["answer"]


def _ids(row: Mapping[str, Any]) -> tuple[Sequence[float], Sequence[float]]:
    """The token ids of the prompt and of what came behind it."""
    prompt, response = (PACKED_COLUMNS[name](row.get(name) or "") for name in ("prompt_token_ids", "token_ids"))
    return prompt, response


def _further(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in FURTHER}


def _shown(excerpt: Any) -> str | None:
    return None if excerpt is None else str(Excerpt.from_json(excerpt))


def _whole_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of an earlier format, what it lacks is null."""
    found = {name: row.get(name) for name in _TYPES}
    for name, unpacked in PACKED_COLUMNS.items():
        packed = found[name]
        found[name] = None if packed is None else unpacked(packed)
    for name in _AS_JSON:
        found[name] = None if found[name] is None else json.dumps(found[name], ensure_ascii=False)
    found["parts"] = list((found["parts"] or {}).items())
    return found


_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("schema", "step", "group", "sample"), "int64"),
    **dict.fromkeys(("split", "id", "prompt_id", "verdict", "failure", "dropped", "finish", "node"), "string"),
    **dict.fromkeys(("reward", "advantage", "generate_s", "queue_s", "verify_s"), "double"),
    **dict.fromkeys(("weak", "truncated"), "bool"),
    **dict.fromkeys(("passed", "total", "tokens", "turns", "branches"), "int64"),
    **dict.fromkeys(
        ("program_sha256", "prompt", "prefill", "answer", "dialog", "kind", "compile_log", *_AS_JSON), "string"
    ),
    **dict.fromkeys(("token_ids", "prompt_token_ids"), "ints"),
    **dict.fromkeys(("logprobs", "learner_logprobs"), "floats"),
    **{"parts": "parts", "kept_as": "strings", "versions": "spans", "mask": "bytes"},
}
"""Column → type; the names are those of ``_arrow_type``."""


def _arrow_type(name: str) -> Any:
    arrow = _pyarrow()
    lists = {
        "ints": arrow.int32(),
        "floats": arrow.float32(),
        "bytes": arrow.int8(),
        "strings": arrow.string(),
        "spans": arrow.list_(arrow.int64()),
    }
    if name in lists:
        return arrow.list_(lists[name])
    return arrow.map_(arrow.string(), arrow.float64()) if name == "parts" else arrow.type_for_alias(name)


def _write_parquet(path: Path, rows: Iterable[Mapping[str, Any]], types: Mapping[str, str]) -> None:
    arrow = _pyarrow()
    from pyarrow.parquet import ParquetWriter

    schema = arrow.schema([(name, _arrow_type(kind)) for name, kind in types.items()])
    with ParquetWriter(path, schema, compression="zstd") as writer:
        left = iter(rows)
        while some := list(islice(left, ROWS_AT_ONCE)):
            columns = {name: [_text(row[name]) for row in some] for name in types}
            writer.write_table(arrow.Table.from_pydict(columns, schema=schema))


def _text(value: Any) -> Any:
    """A lone surrogate, which Parquet cannot hold, as JSON escapes it."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError("--as", "parquet", "needs pyarrow: pip install pyarrow, or use --as verl") from error
    return pyarrow
