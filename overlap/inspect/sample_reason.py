"""The reason for a sample's reward: one sentence, with the test that decided, its expected and its actual value."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from overlap.core.errors import compile_error

SHOWN = 60
"""Characters of a value in a sentence."""
ACCEPTED = "AC"
COMPARED = ("stdio", "function", "")
"""Kinds of problems whose tests compare the actual value with the expected one; "" for rows without a kind."""
_SAYS_NOTHING = ("wrong output", "wrong value")
"""Messages that only repeat the verdict."""
VERDICT_WORDS = {
    "AC": "accepted",
    "WA": "wrong answer",
    "TLE": "took too long",
    "MLE": "took too much memory",
    "OLE": "printed too much",
    "RE": "crashed",
    "CE": "does not compile",
    "SEC": "tried what no judged program may do",
}


def first_failed_test(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The first test that was not accepted, as it is in the row."""
    return next((test for test in row.get("tests") or () if test["verdict"] != ACCEPTED), None)


def whole_text(excerpt: Any) -> str | None:
    """The text of an excerpt of a row, with a mark where something is left out; None where there is none."""
    if excerpt is None or isinstance(excerpt, str):
        return excerpt
    left_out = excerpt["bytes"] - len((excerpt["head"] + excerpt["tail"]).encode("utf-8", "surrogatepass"))
    mark = f"\n… {left_out:,} bytes left out …\n" if excerpt["tail"] else ""
    return f"{excerpt['head']}{mark}{excerpt['tail']}"


def compared(kind: str, test: Mapping[str, Any]) -> bool:
    """True when a test of a row has an expected and an actual value, and compares them."""
    return kind in COMPARED and test.get("expected") is not None and test.get("got") is not None


def difference_of(kind: str, test: Mapping[str, Any]) -> list[str]:
    """The lines of ``sandbox.diff_lines``; none where they are the same, or not compared."""
    if not compared(kind, test):
        return []
    from sandbox import Excerpt, diff_lines  # with all data types of the sandbox

    return diff_lines(Excerpt.from_json(test["expected"]), Excerpt.from_json(test["got"]), kind=kind or "stdio")


def reason(row: Mapping[str, Any]) -> str:
    """The reason for the reward of the sample of this row, which is whole or a head alone."""
    why = _cause(row)
    extras = []
    if row["truncated"] and row["verdict"] != ACCEPTED:
        extras.append(f"the answer was cut off after {row['tokens']:,} tokens")
    if row["weak"]:
        extras.append("accepted on a token that a program could forge")
    parts = row["parts"]
    if len(parts) > 1:
        extras.append("reward " + " ".join(f"{value:+g} ({name})" for name, value in parts.items()))
    if row["dropped"]:
        extras.append(f"its group was not trained on: {dropped_words(row)}")
    return "; ".join([why, *extras])


def _cause(row: Mapping[str, Any]) -> str:
    if row["failure"]:
        return f"not scored, by no fault of the program: {row['failure']}"
    verdict = row["verdict"]
    if verdict is None:
        return _cause_without_verdict(row)
    if verdict == ACCEPTED:
        return f"accepted: {_passed(row)}"
    if verdict == "CE":
        return f"does not compile{_behind(compile_error(row.get('compile_log') or ''))}"
    test = first_failed_test(row)
    if test is None:
        return f"{verdict_words(verdict)}: {_passed(row)}"
    detail = _behind(_detail(test, row.get("kind") or ""))
    of = f" of {row['total']}" if row["total"] else ""
    return f"test {test['index'] + 1}{of}: {verdict_words(test['verdict'])}{detail}"


def _cause_without_verdict(row: Mapping[str, Any]) -> str:
    """The cause for an answer without a program, or a task whose reward judges none: a row does not say which."""
    if row["reward"] is None or row.get("program") is not None:
        return "not judged"
    if row["reward"] == 0:
        return "reward 0, and no program was judged: the answer has none, or the task judges none"
    return f"reward {row['reward']:g} by the task, which judged no program"


def _passed(row: Mapping[str, Any]) -> str:
    passed, total = row["passed"], row["total"]
    if total is None:
        return "by its tests"
    if passed != total:
        return f"passed {passed} of {total} tests"
    return "passed its only test" if total == 1 else f"passed all {total} tests"


def _detail(test: Mapping[str, Any], kind: str) -> str:
    """The detail of a test: for a wrong answer the two values, otherwise the message."""
    expected, got = whole_text(test.get("expected")), whole_text(test.get("got"))
    message = test_message(test)
    if test["verdict"] != "WA" or got is None:
        return message or ("" if test["verdict"] == "WA" else program_end(test))
    if message == "assert 1 of 1 does not hold" and (asked := whole_text(test.get("input"))):
        message = f"{_short(asked)} does not hold"
    if not compared(kind, test):
        return "; ".join(part for part in (message, f"got {_short(got)}" if got.strip() else "it said nothing") if part)
    return f"expected {_short(expected)}, got {_short(got) if got.strip() else 'nothing'}"


def test_message(test: Mapping[str, Any]) -> str:
    """A test's message; "" where it only repeats the verdict."""
    return "" if test["message"] in _SAYS_NOTHING else str(test["message"])


def dropped_words(row: Mapping[str, Any]) -> str:
    """Reason why the group of a sample, or of a row of groups.jsonl, was dropped; "" where it was not."""
    return str(row["dropped"]).replace("_", " ")


def trained_on(row: Mapping[str, Any]) -> str:
    """Return "yes" for a row of groups.jsonl that was trained on, else the reason why not, or "held-out"."""
    if row["split"] == "heldout":
        return "held-out"
    return "yes" if row["learned"] else dropped_words(row) or "no"


def verdict_words(verdict: str) -> str:
    """A verdict in words."""
    return VERDICT_WORDS.get(verdict, verdict)


def program_end(test: Mapping[str, Any]) -> str:
    """End of the program in a test: ``exit code 1``, ``ended by SIGSEGV``; "" where that is not known."""
    if (number := test.get("signal")) is not None:
        name = next((known.name for known in signal.Signals if known == number), f"signal {number}")
        return f"ended by {name}"
    return f"exit code {test['exit']}" if test.get("exit") is not None else ""


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    text = text.strip("\n")
    line = text.replace("\n", "⏎")
    return f"`{line}`" if len(line) <= SHOWN else f"`{line[: SHOWN - 1]}…`"


def _behind(detail: str) -> str:
    return f": {detail}" if detail else ""
