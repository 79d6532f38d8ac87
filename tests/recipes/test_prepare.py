"""Which problems are trained on: DeepCoder's filters, counted by reason, and a command that goes on where it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rows import jsonl, refusal

from overlap.rows.split_file import is_split_file
from recipes.code_rl import prepare, splits
from recipes.code_rl.cases import Judging
from recipes.code_rl.statements import Statements

TESTS = [{"input": f"[{n}]", "output": str(n + 1)} for n in range(5)]
ROW: dict[str, Any] = {
    "kind": "function",
    "fn_name": "inc",
    "starter": "def inc(n):",
    "tests": TESTS,
    "reference": "def inc(n):\n    return n + 1\n",
}
LARGE = [{"input": f"[{n}]", "output": str(n + 1)} for n in range(10**9, 10**9 + 20)]
LONG = " ".join(f"word{n}" for n in range(40))


def row(id: str, **other: Any) -> dict[str, Any]:
    return {**ROW, "id": id, "statement": f"Write `{id}`.", **other}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAP_CACHE", str(tmp_path / "cache"))


def prepared(folder: Path, *words: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Split (or reason) by id, and the counts."""
    out = folder / "out.jsonl"
    assert prepare.main([*words, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return {r["id"]: r.get("reason", r["split"]) for r in rows}, json.loads((folder / "out.counts.json").read_text())


def test_every_filter_leaves_out_what_it_is_for_and_counts_it(tmp_path: Path) -> None:
    source = jsonl(
        tmp_path / "rows.jsonl",
        row("good"),
        row("few", tests=TESTS[:4]),
        row("again", statement="WRITE  `good`!"),
        row("seen", statement=f"# A title\n\n{LONG} and a word more"),
        row("wrong", reference="def inc(n):\n    return n\n"),
        row("wrong in a short test", tests=[*TESTS, *LARGE], reference="def inc(n):\n    return n + 1 if n else 7\n"),
        row("bare", reference=None),
        row("held", statement="Held.", split="test"),
        {"id": "odd", "kind": "quiz", "statement": "?", "tests": []},
    )
    against = jsonl(tmp_path / "eval.jsonl", row("e", statement=LONG))
    found, counts = prepared(tmp_path, source, "--against", against)
    assert found == {
        "good": "train",
        "few": prepare.FEW_TESTS,
        "again": prepare.TWICE,
        "seen": prepare.EVALUATED,
        "wrong": prepare.REJECTED,
        "wrong in a short test": prepare.REJECTED,
        "bare": "train",
        "held": prepare.HELD_OUT,
    }
    assert {reason: entry["count"] for reason, entry in counts["left_out"].items()} == {
        prepare.FEW_TESTS: 1,
        prepare.TWICE: 1,
        prepare.EVALUATED: 1,
        prepare.HELD_OUT: 1,
        prepare.REJECTED: 2,
        "malformed": 1,
    }
    assert (counts["kept"], counts["unreferenced"]) == (2, 1)
    assert counts["left_out"][prepare.EVALUATED]["detail"] == f"as {against}:1"


def test_a_run_takes_what_was_chosen_and_nothing_else(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "rows.jsonl", row("a"), row("b", tests=TESTS[:1]), row("c"))
    prepared(tmp_path, source, "--against", "none", "--no-judging")
    out = str(tmp_path / "out.jsonl")
    assert is_split_file(out)
    (train,) = splits.load_splits(out, ("train",), Judging(), "data.train")
    assert [problem.id for problem in train.problems] == ["a", "c"]
    assert json.loads(Path(out).read_text().splitlines()[0])["source"] == "rows.jsonl"


def test_a_command_that_was_stopped_judges_no_reference_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(f"p{n}", reference=f"# {n}\n{ROW['reference']}") for n in range(5)]
    source = jsonl(tmp_path / "rows.jsonl", *rows)
    monkeypatch.setattr(prepare, "PART", 2)
    judge, parts = prepare.check_problems, list[int]()

    async def stops(pool: Any, task: Any, prompts: Any) -> Any:
        parts.append(len(prompts))
        if len(parts) == 2:
            raise KeyboardInterrupt(2)
        return await judge(pool, task, prompts)

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "check_problems", stops)
        assert prepare.main([source, "--against", "none", "--out", str(tmp_path / "out.jsonl")]) == 130
    assert not (tmp_path / "out.jsonl").exists()
    found, _ = prepared(tmp_path, source, "--against", "none")
    assert set(found.values()) == {"train"}
    assert "3 references judged, 2 more were judged before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["/no/such.jsonl"], "no such file"),
        (["--agaist", "none"], "there is no --agaist; did you mean --against?"),
        (["--against", "/no/such.jsonl"], "no such file"),
        (["--against", "codeforce"], "no such set and no such file; did you mean codeforces?"),
        (["--min-tests", "0"], "use a whole number"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_2(tmp_path: Path, words: list[str], says: str) -> None:
    against = [] if "--against" in words else ["--against", "none"]
    assert says in refusal(prepare.main, [*words, "--out", str(tmp_path / "out.jsonl"), *against])
    assert not (tmp_path / "out.jsonl").exists()


# --- statements -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (LONG.upper() + "!!", True),
        (f"Heading.\n{LONG}\nInput\nOne number.", True),
        (LONG[: len(LONG) * 3 // 4], True),
        (" ".join(reversed(LONG.split())), False),
        (" ".join([*LONG.split()[:16], *(f"else{n}" for n in range(24))]), False),
        ("word1 word2", False),
        ("", False),
    ],
)
def test_a_statement_is_the_same_by_its_words(other: str, same: bool) -> None:
    assert (Statements([("long", LONG), ("short", "Print two.")]).same(other) == "long") is same


def test_a_short_statement_is_the_same_only_where_all_words_are() -> None:
    known = Statements([("short", "Print `two`, please.")])
    assert known.same("print two please") == "short"
    assert known.same("print two") == ""


def test_rows_that_are_left_unread_leave_the_limit_of_digits_as_it_was(tmp_path: Path) -> None:
    before = sys.get_int_max_str_digits()
    source = jsonl(tmp_path / "rows.jsonl", row("a"), row("b"))
    filters = prepare.Filters(Statements([]), fewest_tests=1)
    rows = prepare.candidates([source], Judging(), filters, prepare.FilterOutcome())
    assert next(rows)
    assert sys.get_int_max_str_digits() == before
