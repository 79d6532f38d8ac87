"""A sample as the page wants it: JSON, with all that is computed done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES
from pygments.util import ClassNotFound

from overlap.inspect.run_data import RunData
from overlap.inspect.sample_filter import passed
from overlap.inspect.sample_reason import (
    difference_of,
    first_failed_test,
    program_end,
    reason,
    test_message,
    verdict_words,
    whole_text,
)
from overlap.inspect.tokens import TOKEN_FIGURES, SampleTokens, branches, token_texts
from overlap.record.row_shapes import PACKED_COLUMNS

_DIGITS = 5


def sample_parts(row: Mapping[str, Any]) -> dict[str, Any]:
    """A whole sample: its row without numbers per token, why it got its reward, differences, its program in parts."""
    program, failed = row.get("program"), first_failed_test(row)
    found = branches(row) if row["turns"] > 1 or row["branches"] > 1 else []
    return {
        **{name: value for name, value in row.items() if name not in PACKED_COLUMNS},
        "why": reason(row),
        "good": passed(row),
        "tests": [test_parts(test, row.get("kind") or "") for test in row.get("tests") or ()],
        "failed_test": failed["index"] if failed else None,
        "program": program and {**program, "parts": _program_parts(program["source"], program.get("language") or "")},
        "forks": [branch._asdict() for branch in found],
        "has_tokens": bool(row.get("token_ids")),
    }


def test_parts(test: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A test of a sample with its texts whole, its verdict and its end in words, and the ``diff`` of a wrong answer."""
    texts = {name: whole_text(test.get(name)) for name in ("input", "expected", "got", "stderr")}
    told = {"message": test_message(test), "words": verdict_words(test["verdict"]), "ending": program_end(test)}
    return {**test, **texts, **told, "diff": difference_of(kind, test)}


def _program_parts(source: str, language: str) -> list[list[str]]:
    """A program in parts, each with its kind: pygments' short name of a function, class or builtin, else the first
    letter of keywords, strings, comments and numbers ("m"); "" for all else.
    """
    try:
        lexer: Any = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return [["", source]]
    parts: list[list[str]] = []
    for kind, text in lexer.get_tokens(source):
        name = STANDARD_TYPES.get(kind, "")
        short = name if name in ("nf", "nc", "nb") else name[:1] if name[:1] in ("k", "s", "c", "m") else ""
        if parts and parts[-1][0] == short:
            parts[-1][1] += text
        else:
            parts.append([short, text])
    return parts


def token_parts(row: Mapping[str, Any], run: RunData) -> dict[str, Any]:
    """The tokens of a sample: their texts and figures; without texts, ``error`` says why."""
    tokens = SampleTokens.of(row)
    if tokens is None:
        return {"error": "this sample keeps no tokens", "texts": [], "figures": {}}
    texts, error = token_texts(run, tokens.ids)
    figures: dict[str, list[float | None] | None] = {}
    for name in TOKEN_FIGURES:
        values = [None if value is None else round(value, _DIGITS) for value in tokens.figures(name)]
        figures[name] = values if any(value is not None for value in values) else None
    return {"error": error or None, "texts": texts, "figures": figures}
