"""Show a failed case to a person: its input, the expected output beside the actual one, and how the program ended.

Every line is printable: nothing that a program wrote moves a cursor, sets a colour or forges a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Final

from sandbox.core.checks import encode_text, printable
from sandbox.core.excerpt import Excerpt
from sandbox.core.nouns import Case, CaseResult, Verdict
from sandbox.core.problem import Kind, Problem

LINES_MAX: Final = 40
"""Lines of a difference, of an input and of stderr; what is left out is counted."""
_WIDTH: Final = 160
_BEFORE: Final = 20
"""Characters of a long line that are shown before the first one that differs."""
_CONTEXT: Final = 2
_ONE_LINE: Final = 60
_END: Final = "\n"
_SPACES: Final = str.maketrans({" ": "·", "\t": "→", "\r": "␍", "\n": "⏎"})

Rows = Sequence[str]


def diff_lines(expected: str | Excerpt, got: str | Excerpt, *, kind: Kind | str = "stdio") -> list[str]:
    """Return the line difference of what was expected and what was got; [] where they are the same.

    A line begins with "- " (expected), "+ " (got), "  " (in both) or "@ " (about the text, as "@ 12 lines left out").
    White space at the end of lines counts only where nothing else differs; where a line differs in white space alone,
    it is made visible: · → ⏎. Results of functions are compared as JSON, an item a line where they are long.
    At most 40 lines, of 160 characters; texts are shortened as `Excerpt.of` does.
    """
    one, other = (_excerpt(each, kind) for each in (expected, got))
    if kind == "function":
        rows, their_rows = _json_rows(one), _json_rows(other)
    else:
        rows, their_rows = _rows(one), _rows(other)
    keys, their_keys = _without_last_blanks(rows), _without_last_blanks(their_rows)
    if keys != their_keys:
        lines = list(_compare(rows[: len(keys)], their_rows[: len(their_keys)], keys, their_keys))
    elif rows != their_rows:
        lines = list(_compare(_with_ends(rows), _with_ends(their_rows), _with_ends(rows), _with_ends(their_rows)))
    elif one != other:
        lines = ["@ they differ in what is left out here"]
    else:
        return []
    if not other.size:
        lines.append("@ nothing was printed")
    return _at_most(lines)


def _excerpt(text: str | Excerpt, kind: str) -> Excerpt:
    if isinstance(text, Excerpt):
        return text
    value, is_json = _json(text) if kind == "function" else (None, False)
    return Excerpt.of(json.dumps(value, ensure_ascii=False) if is_json else text)  # as the judge writes what it got


def failure_lines(problem: Problem, result: CaseResult) -> list[str]:
    """Return a failed case for people: test, input, difference or both texts, stderr. Lines as in `diff_lines`."""
    case = problem.cases[result.index]
    ended = _ending(result)
    lines = [f"test {result.index + 1}  {result.verdict}  {printable(result.message)}{f'  ({ended})' if ended else ''}"]
    lines += _block("the test" if problem.kind == "assert" else "input", case.input)
    if case.arguments:
        lines += _block("arguments", " ".join(case.arguments))
    lines += _texts(problem, case, result)
    return lines + (_block("stderr", result.stderr) if result.stderr else [])


def first_failure_lines(problem: Problem, results: Sequence[CaseResult]) -> list[str]:
    """Return the lines of the first case that failed, below a blank one; [] where none did."""
    failed = next((result for result in results if result.verdict is not Verdict.AC), None)
    return [] if failed is None else ["", *failure_lines(problem, failed)]


def _texts(problem: Problem, case: Case, result: CaseResult) -> list[str]:
    compared = problem.kind in ("stdio", "function") and problem.checker is None
    if compared and case.expected is not None and result.got is not None:
        found = diff_lines(case.expected, result.got, kind=problem.kind)
        return ["- expected  + got", *found] if found else _block("got, and expected", result.got)
    lines = [] if case.expected is None else _block("expected" if compared else "the judge's answer", case.expected)
    words = {"assert": "its calls gave", "interactive": "the program said"}
    return lines + ([] if result.got is None else _block(words.get(problem.kind, "got"), result.got))


def _ending(result: CaseResult) -> str:
    """Return how the program ended, where the message does not say so."""
    if result.signal is not None:
        return "" if "ended by" in result.message else f"ended by signal {result.signal}"
    if result.exit_code is None or "exit code" in result.message:
        return ""
    return f"exit code {result.exit_code}"


def _block(title: str, text: str | Excerpt) -> list[str]:
    rows = _rows(text if isinstance(text, Excerpt) else Excerpt.of(text))
    if rows and not rows[-1]:
        rows.pop()
    return [title, *_at_most([f"    {printable(_clipped(row, 0))}" for row in rows] or ["    (nothing)"])]


def _at_most(lines: list[str]) -> list[str]:
    left = len(lines) - LINES_MAX
    return lines if left <= 1 else [*lines[:LINES_MAX], f"@ {left} lines left out"]


def _rows(text: Excerpt) -> list[str]:
    rows = text.head.split("\n")
    if text.tail:
        shown = len(encode_text(text.head)) + len(encode_text(text.tail))
        rows += [f"… about {max(0, text.size - shown)} bytes left out …", *text.tail.split("\n")]
    return rows if rows != [""] else []


def _json_rows(text: Excerpt) -> list[str]:
    """The rows of a value: one where it is short, otherwise one for each of its items."""
    value, is_json = _json(text.head) if text.whole else (None, False)
    if not is_json:
        return _rows(text)
    line = json.dumps(value, ensure_ascii=False)
    if len(line) <= _ONE_LINE or not isinstance(value, list | dict):
        return [line]
    items = [json.dumps(item, ensure_ascii=False) for item in (value if isinstance(value, list) else value.values())]
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {item}" for key, item in zip(value, items, strict=True)]
    return [line[0], *(f"  {item}," for item in items), line[-1]]


def _json(text: str) -> tuple[Any, bool]:
    """The value of a text, and whether it is JSON."""
    with suppress(ValueError, RecursionError):
        return json.loads(text), True
    return None, False


def _without_last_blanks(rows: Rows) -> list[str]:
    """The rows without white space at their ends, and without blank ones after the last."""
    keys = [row.rstrip() for row in rows]
    while keys and not keys[-1]:
        keys.pop()
    return keys


def _with_ends(rows: Rows) -> list[str]:
    return [row + _END * (place < len(rows) - 1) for place, row in enumerate(rows) if row or place < len(rows) - 1]


def _compare(rows: Rows, theirs: Rows, keys: Rows, their_keys: Rows) -> Iterator[str]:
    """The lines of the difference of the rows, found by their keys."""
    matcher = SequenceMatcher(None, keys, their_keys, autojunk=False)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        if before := group[0][1]:
            yield f"@ from line {before + 1}"
        for what, start, end, from_, to in group:
            if what == "equal":
                yield from (f"  {printable(_clipped(row.removesuffix(_END), 0))}" for row in rows[start:end])
            else:
                yield from _changed(rows[start:end], theirs[from_:to])


def _changed(rows: Rows, theirs: Rows) -> Iterator[str]:
    visible = "".join("".join(rows).split()) == "".join("".join(theirs).split())
    pairs = [_pair(one, other) for one, other in zip_longest(rows, theirs)]
    for sign, side in (("-", [one for one, _ in pairs]), ("+", [other for _, other in pairs])):
        for row in side:
            if row is not None:
                yield f"{sign} {printable(row.translate(_SPACES) if visible else row.removesuffix(_END))}"


def _pair(one: str | None, other: str | None) -> tuple[str | None, str | None]:
    """Two rows that correspond, each from a little before they differ."""
    same = 0
    if one is not None and other is not None:
        same = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    return (None if one is None else _clipped(one, same), None if other is None else _clipped(other, same))


def _clipped(row: str, at: int) -> str:
    """Return at most _WIDTH characters of the row, which hold the one at this place."""
    start = max(0, at - _BEFORE) if len(row) > _WIDTH and at > _WIDTH - _BEFORE else 0
    end = start + _WIDTH
    return "…" * (start > 0) + row[start:end] + "…" * (end < len(row))
