"""Rows of others: tests stored otherwise than meant, limits and splits of their own, and what would mislead."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from rows import OWN, Bytes, jsonl, only

import sandbox
from overlap.core.errors import ConfigError
from overlap.rows import sources
from recipes.code_rl import formats_judge
from recipes.code_rl.cases import Judging
from recipes.code_rl.data import load_problems
from recipes.code_rl.shapes import is_cut
from recipes.code_rl.task import CodeTask
from sandbox.core.nouns import MIB, Case, Limits

Row = dict[str, Any]


def taco(inputs: list[Any], outputs: list[Any], name: str = "", **more: Any) -> Row:
    tests = {"inputs": inputs, "outputs": outputs} | ({"fn_name": name} if name else {})
    return {"question": "q", "input_output": json.dumps(tests), **more}


def calls(*tests: tuple[Any, Any]) -> Row:
    listed = [{"type": "function_call", "fn_name": "f", "input": given, "output": wanted} for given, wanted in tests]
    return {"prompt": "p", "verification_info": {"language": "python", "test_cases": listed}}


def codeforces(**more: Any) -> Row:
    return {"id": "1/A", "description": "d", "official_tests": [{"input": "5\n", "output": "7\n"}], **more}


def contests(inputs: list[str], outputs: list[str]) -> Row:
    none: Row = {"input": [], "output": []}
    tests = {"public_tests": {"input": inputs, "output": outputs}, "private_tests": none, "generated_tests": none}
    return {"name": "n", "description": "d", **tests}


def left_out(path: Path, row: Row) -> str:
    with pytest.raises(ConfigError) as refused:
        only(path, row)
    return str(refused.value)


# --- values ---------------------------------------------------------------------------------------------------


@pytest.mark.promise("formats")
@pytest.mark.parametrize(
    ("row", "source"),
    [
        (calls(("[1, True]", "True"), ("[0, False]", "False")), "return b"),
        (calls(("[2]", "(2, 4)"), ("[3]", "(3, 6)")), "return [n, 2 * n]"),
        (calls(("[2]", "{'a': 2}")), "return {'a': n}"),
        (calls(("['x']", "'x'")), "return n"),
        (calls(("[[1, 2]]", "None"), ("[[3]]", "3")), "return n[0] if len(n) == 1 else None"),
        (calls(('["x"]', "a b")), "return 'a b'"),
        (calls(('["x"]', "(a"), ('["y"]', "True")), "return '(a' if n == 'x' else 'True'"),
        (calls(("[{1: 2, 3: 4}]", "4")), "return sum(n)"),
        (calls(("[(1, 2)]", "3")), "return sum({n: 3}[n] for _ in '1')"),
        (taco([[{"1": 2, "3": 4}]], [4], "f"), "return sum(n)"),
        (taco([[{"1": 2, "a": 4}]], ["1a"], "f"), "return ''.join(n)"),
        (taco([[[3, 3, 5]], [[1]]], [[5], [1]], "f"), "return [x for x in n if n.count(x) == 1]"),
        (taco([[5], [1]], [[6], [2]], "f"), "return n + 1"),
    ],
)
def test_tests_mean_what_they_were_written_for(tmp_path: Path, row: Row, source: str) -> None:
    problem = only(tmp_path, row).problem
    program = f"def f(n, b=None):\n    {source}\n"
    assert sandbox.judge(problem, program).verdict == "AC"
    assert sandbox.judge(problem, "def f(n, b=None):\n    return [[0]]\n").verdict == "WA"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (calls(("[1]", "{1, 2}")), "what JSON cannot"),
        (calls(("[1]", "1e400"), ("[2]", "3")), "beyond a double"),
        (calls(("[1e400]", "1")), "beyond a double"),
        (taco([[1], [2]], ["1", "2"], "f") | {"input_output": '{"inputs": [[1]], "outputs": [1e400], "fn_name": "f"}'},
         "beyond a double"),
        (taco(["5\n", "5"], ["1\n", "2\n"]), "tests contradict each other"),
        (contests(["5\n", "5\n"], ["1\n", "2\n"]), "tests contradict each other"),
        (taco([[1], [1]], [2, 3], "f"), "tests contradict each other"),
        ({"task_id": 1, "text": "t", "test_list": ["assert f(1) == 2", "assert f( 1) == 3"]}, "tests contradict"),
        ({"task_id": 1, "text": "t", "test_list": ["assert f(1)", "assert not f(1)"]}, "tests contradict"),
        (taco(["\ufeff5\n"], ["1\n"]), "byte order mark"),
        (taco(["5\n"], ["1\0\n\0"]), "UTF-16"),
        (contests(["3\n1 2 ..."], ["9\n"]), "truncated"),
        (codeforces(official_tests_complete=False), "official tests missing"),
    ],
)  # fmt: skip
def test_a_row_whose_tests_would_mislead_is_left_out_by_name(tmp_path: Path, row: Row, complaint: str) -> None:
    assert complaint in left_out(tmp_path, row)


@pytest.mark.parametrize(
    "row",
    [
        taco(["5\n", "5"], ["1\n", "1"]),
        taco(["5\n", "5"], ["0.5\n", "0.50"]),
        taco([[1], [1]], [0.5, 0.50000001], "f"),
        codeforces(examples=[{"input": "5\n", "output": "8\n"}], generated_checker="print(1)"),
        {"task_id": 1, "text": "t", "test_list": ["c = C()\nassert next(c) == 1", "c = D()\nassert next(c) == 2"]},
        {"task_id": 1, "text": "t", "test_list": ["reset()\nassert f(1) == 1", "again()\nassert f(1) == 2"]},
        {"task_id": 1, "text": "t", "test_list": ["assert f(1) == 1", "assert f(1) == True"]},
        codeforces(official_tests_complete=True),
    ],
)
def test_tests_that_agree_are_kept(tmp_path: Path, row: Row) -> None:
    assert only(tmp_path, row)


def test_columns_and_keys_that_are_null_are_those_of_other_rows(tmp_path: Path) -> None:
    tests = {"inputs": ["1\n"], "outputs": ["2\n"], "input": None, "fn_name": float("nan"), "functional": None}
    for given in (tests, json.dumps(tests), str(tests).replace("nan", "None")):
        assert only(tmp_path, {"problem": "p", "tests": given}).problem.cases == (Case("1\n", "2\n"),)
    row = {"question": None, "input_output": None, "prompt": "p", "reward_model": {"ground_truth": tests}}
    assert only(tmp_path, row).problem.kind == "stdio"
    listed = [{"input": "1\n", "output": "2\n", "fn_name": None, "testtype": None, "metadata": None}]
    assert only(tmp_path, {"problem": "p", "tests": listed}).problem.kind == "stdio"


# --- truncated tests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["3\n1 2 ...", "3\n1 2 34...\n", "9 -1 ...", f"1\n{'ab' * 130}...", "7 8\u2026"])
def test_numbers_and_long_texts_that_end_in_dots_are_cut(text: str) -> None:
    assert is_cut(text)


@pytest.mark.parametrize(
    "text", ["1 3\n...\n", "2 3\n#..\n...", "1...", "Wait...", "", "...", "3\n1 2 3", "S..\n" * 80 + "E...", "1.5 2.5"]
)
def test_grids_and_sentences_that_end_in_dots_are_whole(text: str) -> None:
    assert not is_cut(text)


def test_a_truncated_test_is_not_used_and_noted(tmp_path: Path) -> None:
    problem = only(tmp_path, contests(["2\n1 2\n", "3\n1 2 ..."], ["3\n", "9\n"]))
    assert problem.problem.cases == (Case("2\n1 2\n", "3\n"),)
    assert "truncated" in problem.notes[0]


# --- limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "cpu_s", "mib"),
    [
        ({"time_limit": 2.0, "memory_limit": 256.0}, 10, 256),
        ({"time_limit": "1.5 seconds", "memory_limit": "128 megabytes"}, 7.5, 128),
        ({"time_limit": {"seconds": 1, "nanos": 500_000_000}, "memory_limit_bytes": 100 << 20}, 7.5, 100),
        ({"time_limit": '{"seconds": 3, "nanos": 0}'}, 15, 512),
        ({"time_limit": 2000, "memory_limit": 64}, 10, 64),
        ({"time_limit": "500 ms", "memory_limit": "1 GB"}, 2.5, 1024),
        ({"time_limit": 60.0, "memory_limit": 4096.0}, 30, 1024),
        ({"time_limit": 0, "memory_limit": None}, 4, 512),
        ({"time_limit": "soon", "memory_limit": 16}, 4, 64),
        ({}, 4, 512),
    ],
)
def test_a_contests_own_limits_hold_within_the_bounds(tmp_path: Path, more: Row, cpu_s: float, mib: int) -> None:
    problem = only(tmp_path, codeforces(**more))
    assert problem.problem.limits == Limits(cpu_s=cpu_s, memory_bytes=mib * MIB)
    told = "".join(problem.notes)
    assert ("cut to 30 s" in told, "no limit" in told) == (
        more.get("time_limit") == 60,
        more.get("time_limit") == "soon",
    )


def test_keys_that_look_like_settings_and_have_no_effect_are_noted_by_name(tmp_path: Path) -> None:
    tests = [{"input": "[1]", "output": "2", "weight": 3}]
    row = {**OWN, "tests": tests, "checker": "x", "time_limit": 9, "weight": 2, "memory_limit": None}
    names = ("checker", "time_limit", "weight", "tests.weight")
    assert only(tmp_path, row).notes == tuple(f"with {name}, which has no effect" for name in names)
    assert only(tmp_path, codeforces(time_limit=1, generated_checker="print(1)")).notes == ()


# --- size -----------------------------------------------------------------------------------------------------


def test_a_row_that_unfolds_beyond_the_bound_is_named_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "ROW_BYTES_MAX", 1000)
    lines = [
        json.dumps(OWN),
        json.dumps({**OWN, "id": "large", "statement": " " * 5000}),
        json.dumps({**OWN, "id": "b"}),
    ]
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    found = load_problems(str(path))
    assert [problem.id for problem in found.problems] == ["inc", "b"]
    assert [row.place for row in found.left_out] == [f"{path}:2"]
    path.write_bytes(gzip.compress(b"[" + b" " * 1_000_000 + b"]"))
    with pytest.raises(ConfigError, match="unfolds to more than"):
        load_problems(str(path))


@pytest.mark.parametrize(
    "pickled", [pickle.dumps(" " * 5000), b"\x80\x04r\xff\xff\xff\x7f.", b"\x80\x05\x96" + b"\xff" * 7 + b"\x00."]
)
def test_packed_tests_that_would_take_more_memory_than_the_bound_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pickled: bytes
) -> None:
    monkeypatch.setattr(formats_judge, "UNPACKED_MAX", 1000)
    row = {"question_content": "q", "public_test_cases": '[{"input": "1", "output": "2", "testtype": "stdin"}]'}
    row["private_test_cases"] = base64.b64encode(zlib.compress(pickled)).decode()
    assert "private_test_cases" in left_out(tmp_path, row)


# --- splits ---------------------------------------------------------------------------------------------------


def marked(**splits: Any) -> list[Row]:
    return [{**OWN, "id": id, "statement": id, "split": split} for id, split in splits.items()]


def test_the_split_of_a_row_holds_and_rows_without_one_are_trained_on_among_others(tmp_path: Path) -> None:
    tests = [{"input": f"[{n}]", "output": str(n + 1)} for n in range(20)]
    splits = {f"p{n}": None for n in range(30)} | {"a": "heldout", "b": "test", "c": "validation", "d": "train"}
    path = jsonl(tmp_path / "rows.jsonl", *({**row, "tests": tests} for row in marked(**splits)))
    task = CodeTask(train=path, judging=Judging(3))
    train, heldout = task.problems("train"), task.problems("heldout")
    assert [problem.id for problem in heldout] == ["a", "b", "c"]
    assert (len(train), {len(p.problem.cases) for p in train}, {len(p.problem.cases) for p in heldout}) == (
        31,
        {3},
        {20},
    )


def test_the_split_of_a_row_holds_also_where_held_out_rows_are_named(tmp_path: Path) -> None:
    train = jsonl(tmp_path / "train.jsonl", *marked(a="train", b="test"))
    heldout = jsonl(tmp_path / "heldout.jsonl", *marked(c="heldout", d="train"))
    task = CodeTask(train=train, heldout=heldout)
    found = {split: task.prompts(Bytes(), split) for split in ("train", "heldout")}
    assert [(p.id if hasattr(p, "id") else (p.reason, p.by_choice)) for p in found["train"]] == [
        "a", ("heldout by its own split", True),
    ]  # fmt: skip
    assert found["heldout"][1].reason == "train by its own split"


@pytest.mark.parametrize("split", ["dev", "Train", 1, ["train"]])
def test_another_split_is_refused_with_its_place(tmp_path: Path, split: Any) -> None:
    path = jsonl(tmp_path / "rows.jsonl", *marked(a="train", b=split))
    with pytest.raises(
        ConfigError, match=r"rows.jsonl:2': its split is .*; use one of train, heldout, test, validation"
    ):
        CodeTask(train=path).problems("train")
