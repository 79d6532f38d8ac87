"""Readers of the public problem formats: what they keep, and how they name what they refuse."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from rows import OWN, jsonl

from overlap.core.errors import ConfigError
from overlap.rows.split_file import SPLIT_COLUMNS, first_row, is_split_file
from recipes.code_rl import splits
from recipes.code_rl.cases import Judging, longest
from recipes.code_rl.data import load_problems
from sandbox.core.nouns import Case

# --- our own rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_list", "zipped"),
    [
        ("usual.jsonl", False, False),
        ("usual.jsonl.gz", False, True),
        ("usual.json", True, False),
        ("usual.json.gz", True, True),
        ("lines.json", False, False),
        ("lines.txt", False, False),
        ("lines", False, False),
        ("list.jsonl", True, False),
        ("zipped.jsonl", False, True),
    ],
)
def test_what_a_file_holds_is_told_by_its_content(tmp_path: Path, name: str, is_list: bool, zipped: bool) -> None:
    raw = json.dumps([OWN] if is_list else OWN).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if zipped else raw)
    assert [problem.id for problem in load_problems(str(tmp_path / name)).problems] == ["inc"]


def test_a_parquet_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import Dataset, config

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    Dataset.from_list([OWN]).to_parquet(str(tmp_path / "problems.parquet"))
    assert [problem.id for problem in load_problems(str(tmp_path / "problems.parquet")).problems] == ["inc"]


def test_a_hub_id_may_name_configurations_and_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(hub_id: str, config: str | None, split: str) -> list[dict[str, Any]]:
        if hub_id == "no/network":
            raise ConnectionError("no network\nand a long story")
        return [{**OWN, "id": f"{hub_id}/{config}/{split}"}]

    monkeypatch.setattr("datasets.load_dataset", load)
    assert [p.id for p in load_problems("own/set").problems] == ["own/set/None/train"]
    assert [p.id for p in load_problems("own/set:a+b:test").problems] == ["own/set/a/test", "own/set/b/test"]
    with pytest.raises(ConfigError, match=r"cannot be loaded from the hub \(no network and a long story\)"):
        load_problems("no/network")


def test_a_hub_id_may_name_files_of_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(hub_id: str, file: str, repo_type: str, etag_timeout: float) -> str:
        assert repo_type == "dataset"
        if file == "c.jsonl":
            raise ConnectionError("no network")
        return jsonl(tmp_path / file, {**OWN, "id": f"{hub_id}/{file}"})

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    found = load_problems("own/set:a.jsonl+b.jsonl").problems
    assert [problem.id for problem in found] == ["own/set/a.jsonl", "own/set/b.jsonl"]
    with pytest.raises(ConfigError, match=r"own/set:c.jsonl.*cannot be loaded from the hub \(no network\)"):
        load_problems("own/set:c.jsonl")


def test_rows_that_are_not_wanted_are_passed_over_unread(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "p.jsonl", OWN, {"id": "odd"}, {**OWN, "id": "two"})
    found = load_problems(source, wanted=lambda row: row.values["id"] == "two")
    assert ([problem.id for problem in found.problems], found.left_out) == (["two"], ())


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason", "complaint"),
    [
        ({"kind": "quiz"}, "malformed", "kind must be one of stdio, function, assert"),
        ({"statement": None}, "malformed", "'statement' is missing or null"),
        ({"statement": 7}, "malformed", "statement must be text"),
        ({"tests": "[{"}, "malformed", "tests is not JSON"),
        ({"tests": {"a": 1}}, "malformed", "tests must be a list"),
        ({"tests": [{"output": "2"}]}, "malformed", "tests must be a list of"),
        ({"tests": [{"input": "[1", "output": "2"}]}, "malformed", "input='[1': not JSON"),
        ({"tests": [{"input": [1], "output": "2"}]}, "malformed", "case: input=[1]: must be text"),
        ({"tests": [{"input": "1", "output": "2"}]}, "malformed", "JSON list of positional arguments"),
        ({"tests": [{"input": "[1]"}]}, "malformed", "give the expected output"),
        ({"fn_name": None}, "malformed", "needs 'name' or 'Class.method'"),
        ({"level": "easy"}, "malformed", "level must be a whole number"),
        ({"tests": []}, "no tests", "second"),
        ({"id": "inc"}, "id used twice", "already used at"),
        (b"{oops", "malformed", "not JSON"),
        (b'{"id": "\xff"}', "malformed", "UTF-8"),
    ],
)
def test_a_bad_line_costs_no_other_and_is_named_by_file_and_line(
    tmp_path: Path, line: dict[str, Any] | bytes, reason: str, complaint: str
) -> None:
    path = tmp_path / "bad.jsonl"
    raw = line if isinstance(line, bytes) else json.dumps({**OWN, "id": "second", **line}).encode()
    path.write_bytes(json.dumps(OWN).encode() + b"\n\n" + raw + b"\n")
    found = load_problems(str(path))
    (bad,) = found.left_out
    assert [problem.id for problem in found.problems] == ["inc"]
    assert (bad.place, bad.reason) == (f"{path}:3", reason)
    assert complaint in bad.detail
    assert "\n" not in bad.detail


def test_a_row_of_a_json_list_is_named_by_its_line_and_number(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([OWN, {**OWN, "id": "b", "kind": "quiz"}], indent=1))
    line = path.read_text()[: path.read_text().rindex(' {\n  "id"')].count("\n") + 1
    assert [row.place for row in load_problems(str(path)).left_out] == [f"{path}:{line} (row 2)"]


@pytest.mark.parametrize(
    "text", ["{}", "[1]", "[1]\n[2]", '[{"a": 1} {"b": 2}]', '[{"a": 1}', "", " \n", "[", "[]", "hello", "\x00\x01"]
)
def test_a_file_that_holds_no_problem_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"data\.train=") as caught:
        load_problems(str(path))
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(OWN).encode() + b"\r\n" + json.dumps({**OWN, "id": "b"}).encode() + b"\r\n"
    )
    found = load_problems(str(path))
    assert ([problem.id for problem in found.problems], found.left_out) == (["inc", "b"], ())


def test_a_folder_of_files_is_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    jsonl(tmp_path / "b.jsonl", {**OWN, "id": "second"})
    jsonl(tmp_path / "a.jsonl", {**OWN, "id": "first"})
    (tmp_path / "README.md").write_text("no problems")
    assert [problem.id for problem in load_problems(str(tmp_path)).problems] == ["first", "second"]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        load_problems(str(tmp_path / "pipe.jsonl"))


def test_a_damaged_archive_names_the_field(tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(json.dumps(OWN).encode())[:-9])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_problems(str(tmp_path / "cut.jsonl.gz"))


def test_unknown_columns_are_answered_with_the_known_formats(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no known format.*DeepCoder: problem, tests"):
        load_problems(jsonl(tmp_path / "a.jsonl", {"question": "?", "answer": 42}))


@pytest.mark.parametrize("source", ["nowhere.jsonl", "/not/there", "problems.csv", "no such thing"])
def test_a_source_that_is_not_there_names_the_field(source: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_problems(source, field="data.heldout")
    assert caught.value.field == "data.heldout"


# --- tests: sampling ------------------------------------------------------------------------------------------


def test_the_tests_with_the_longest_inputs_are_kept_in_their_order() -> None:
    cases = [Case("a" * n, str(n)) for n in (3, 1, 9, 5, 9)]
    assert [case.expected for case in longest(cases, 3)] == ["9", "5", "9"]
    assert longest(cases, 3) == longest(cases, 3)
    assert len(longest(cases, 15)) == 5


# --- splits ---------------------------------------------------------------------------------------------------


def split_file(path: Path, *rows: tuple[str, str]) -> str:
    jsonl(path / "problems.jsonl", *({**OWN, "id": id, "statement": id} for id in "abcd"))
    return jsonl(path / "split.jsonl", *({"id": id, "split": split, "source": "problems.jsonl"} for id, split in rows))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([("a", "train"), ("zz", "train")], "no usable problem of this id"),
        ([("a", "train"), ("a", "train")], "occurs twice"),
        ([("a", "train"), ("b", "validation")], "split must be one of"),
    ],
)
def test_a_bad_row_of_a_split_file_is_named_by_line(
    tmp_path: Path, rows: list[tuple[str, str]], complaint: str
) -> None:
    path = split_file(tmp_path, *rows)
    train, heldout = splits.load_splits(path, ("train", "heldout"), Judging(), "data.train")
    (bad,) = train.left_out
    assert heldout.left_out == ()
    assert bad.place == f"{path}:2"
    assert complaint in bad.detail


def test_a_split_file_is_known_by_its_first_row_without_reading_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(split_file(tmp_path, ("a", "train")))
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)  # the rest of it never comes
    os.write(writer, b"no JSON\n" + path.read_bytes())
    with pipe.open("rb") as raw:
        row = first_row(pipe, raw)
    os.close(writer)
    assert row is not None
    assert row.values.keys() == SPLIT_COLUMNS
    assert is_split_file(str(path))
    assert not is_split_file(str(tmp_path / "problems.jsonl"))
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert is_split_file(str(packed))


def test_a_division_by_hash_does_not_depend_on_the_order(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "many.jsonl", *({**OWN, "id": f"p{i}", "statement": f"s{i}"} for i in range(300)))
    problems = load_problems(path).problems
    train, heldout = splits.divide(problems, Judging(), "data.train")
    assert 15 <= len(heldout) <= 45
    assert {p.id for p in train} | {p.id for p in heldout} == {p.id for p in problems}
    assert {p.id for p in splits.divide(problems[::-1], Judging(), "data.train")[1]} == {p.id for p in heldout}
