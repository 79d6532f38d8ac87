"""Tests of the sentence that says why a sample got its reward, and of the difference that a failed test shows."""

from __future__ import annotations

from typing import Any

import pytest
from kept_rows import kept_row

from overlap.inspect.sample_reason import difference_of, reason, whole_text

LONG = {"head": "1" * 50, "tail": "9", "bytes": 1051, "sha256": "ab"}


@pytest.mark.promise("reasons")
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "test 3 of 5: wrong answer: expected `7`, got `8`"),
        ({"test": {"got": " \n"}}, "test 3 of 5: wrong answer: expected `7`, got nothing"),
        ({"test": {"got": "a\nb\n"}}, "test 3 of 5: wrong answer: expected `7`, got `a⏎b`"),
        ({"test": {"got": None}}, "test 3 of 5: wrong answer"),
        ({"kind": "interactive", "test": {"got": "? 1", "message": "too many questions"}},
         "test 3 of 5: wrong answer: too many questions; got `? 1`"),
        ({"test": {"got": "f(1) = 2", "expected": None, "message": "assert 1 of 2 does not hold"}},
         "test 3 of 5: wrong answer: assert 1 of 2 does not hold; got `f(1) = 2`"),
        ({"kind": "assert", "test": {"input": "assert f(1) == 3", "got": "f(1) = 2", "expected": None,
                                     "message": "assert 1 of 1 does not hold"}},
         "test 3 of 5: wrong answer: `assert f(1) == 3` does not hold; got `f(1) = 2`"),
        ({"verdict": "RE", "test": {"verdict": "RE", "message": "exit code 1: NameError", "exit": 1}},
         "test 3 of 5: crashed: exit code 1: NameError"),
        ({"verdict": "RE", "test": {"verdict": "RE", "message": "", "exit": None, "signal": 11}},
         "test 3 of 5: crashed: ended by SIGSEGV"),
        ({"verdict": "TLE", "test": {"verdict": "TLE", "message": "CPU-time limit of 4.0 s"}},
         "test 3 of 5: took too long: CPU-time limit of 4.0 s"),
        ({"verdict": "CE", "tests": [], "compile_log": "main.c: In function\nmain.c:3:1: error: expected ;\n"},
         "does not compile: main.c:3:1: error: expected ;"),
        ({"verdict": None, "program": None, "tests": [], "truncated": True, "finish": "length"},
         "reward 0, and no program was judged: the answer has none, or the task judges none; "
         "the answer was cut off after 40 tokens"),
        ({"verdict": None, "program": None, "tests": [], "reward": -0.25},
         "reward -0.25 by the task, which judged no program"),
        ({"verdict": None, "program": None, "tests": [], "reward": None}, "not judged"),
        ({"verdict": None, "reward": None, "failure": "WorkerLost: killed"},
         "not scored, by no fault of the program: WorkerLost: killed"),
        ({"verdict": "AC", "reward": 1.0, "passed": 5, "tests": [], "weak": True},
         "accepted: passed all 5 tests; accepted on a token that a program could forge"),
        ({"parts": {"task": 0.0, "punishment": -0.1}, "dropped": "equal_rewards"},
         "test 3 of 5: wrong answer: expected `7`, got `8`; reward +0 (task) -0.1 (punishment); "
         "its group was not trained on: equal rewards"),
    ],
)  # fmt: skip
def test_one_sentence_says_what_decided(given: dict[str, Any], sentence: str) -> None:
    assert reason(kept_row(**given)) == sentence


def test_a_head_alone_has_a_reason_too() -> None:
    row = kept_row()
    head = {name: value for name, value in row.items() if name not in ("tests", "program", "compile_log")}
    assert reason(head) == "wrong answer: passed 2 of 5 tests"


def test_a_shortened_text_says_how_much_is_left_out() -> None:
    assert whole_text(LONG) == "1" * 50 + "\n… 1,000 bytes left out …\n9"
    assert whole_text(None) is None


@pytest.mark.parametrize(
    ("kind", "expected", "got", "lines"),
    [
        ("stdio", "a\nb\n", "a\nc\n", ["  a", "- b", "+ c"]),
        ("", "7\n", "8\n", ["- 7", "+ 8"]),
        ("function", "[1, 2]", "[1, 3]", ["- [1, 2]", "+ [1, 3]"]),
        ("stdio", "a\n", "a\n", []),
        ("stdio", None, "a", []),
        ("stdio", "a", None, []),
        ("assert", "a", "f(1) = 2", []),
        ("interactive", "5", "? 1\n? 2\n", []),
        ("stdio", "1\n", {"head": "1", "tail": "9", "bytes": 1002, "sha256": "ab"},
         ["  1", "+ … about 1000 bytes left out …", "+ 9"]),
    ],
)  # fmt: skip
def test_what_is_compared_is_shown_line_by_line(kind: str, expected: Any, got: Any, lines: list[str]) -> None:
    assert difference_of(kind, {"expected": expected, "got": got}) == lines
