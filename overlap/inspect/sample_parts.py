"""A sample as the page wants it: JSON, with all that is computed done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overlap.core.errors import ConfigError
from overlap.inspect.branches import branches, depth
from overlap.inspect.program_text import program_parts
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
from overlap.inspect.tokens import TOKEN_FIGURES, SampleTokens, TokenTexts
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
        "tests": [_test_parts(test, row.get("kind") or "") for test in row.get("tests") or ()],
        "failed_test": failed["index"] if failed else None,
        "program": program and {**program, "parts": program_parts(program["source"], program.get("language") or "")},
        "forks": [{**branch._asdict(), "depth": depth(found, branch.number)} for branch in found],
        "has_tokens": bool(row.get("token_ids")),
    }


def _test_parts(test: Mapping[str, Any], kind: str) -> dict[str, Any]:
    texts = {name: whole_text(test.get(name)) for name in ("input", "expected", "got", "stderr")}
    told = {"message": test_message(test), "words": verdict_words(test["verdict"]), "ending": program_end(test)}
    return {**test, **texts, **told, "diff": difference_of(kind, test)}


def token_parts(row: Mapping[str, Any], texts: TokenTexts) -> dict[str, Any]:
    """The tokens of a sample: their texts and figures; without texts, ``error`` says why."""
    tokens = SampleTokens.of(row)
    if tokens is None:
        return {"error": "this sample keeps no tokens", "texts": [], "figures": {}}
    error = None
    try:
        words = texts.of(tokens.ids)
    except ConfigError as failed:
        error, words = str(failed), [f"⟨{token}⟩" for token in tokens.ids]
    figures: dict[str, list[float | None] | None] = {}
    for name in TOKEN_FIGURES:
        values = tokens.figures(name)  # type: ignore[arg-type]
        known = any(value is not None for value in values)
        figures[name] = [None if v is None else round(v, _DIGITS) for v in values] if known else None
    return {"error": error, "texts": words, "figures": figures}
