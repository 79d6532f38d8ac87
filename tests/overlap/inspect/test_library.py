"""Tests of the run behind the page's requests: searched, found by place, and growing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from kept_rows import kept_row, write_rows

from overlap.core.errors import ConfigError
from overlap.inspect.routes import RunLibrary
from overlap.inspect.run_data import open_samples


def library_of(folder: Path, *rows: dict[str, Any]) -> RunLibrary:
    return RunLibrary(open_samples(str(write_rows(folder, *rows))))


def column(library: RunLibrary, name: str) -> list[Any]:
    found = json.loads(library.lists())["samples"]["columns"][name]
    return found if isinstance(found, list) else [found["words"][at] for at in found["at"]]


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("needle", [1]),
        ('say "hi"\n', [2]),
        ("größe", [3]),
        ("g17s0", [0]),
        ("boom", [0]),
        ("answer", []),  # the name of a field
        ("AAAA", []),  # numbers of tokens
        ("nowhere", []),
    ],
)
def test_a_text_is_found_where_a_person_would_see_it(text: str, samples: list[int], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rows = kept_row(sample=0, token_ids="AAAA", test={"stderr": "boom"}), kept_row(sample=1, prompt="a needle")
    library = library_of(folder, *rows)
    with (folder / "trajectories.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(kept_row(sample=2, answer='say "hi"\n')) + "\n")
        file.write(json.dumps(kept_row(sample=3, prompt="größe"), ensure_ascii=False) + "\n")
    assert [sample for _, _, sample in library.places_with(text)] == samples


def test_what_is_written_meanwhile_is_there_at_the_next_request(tmp_path: Path) -> None:
    library = library_of(tmp_path / "run", kept_row(sample=0))
    assert column(library, "sample") == [0]
    before = library.revision()
    write_rows(tmp_path / "run", kept_row(sample=1))
    assert column(library, "sample") == [0, 1]
    assert library.revision() != before
    assert library.sample((3, 17, 1))["prompt"] == "Add two numbers.\n"


def test_a_run_that_went_back_is_read_anew(tmp_path: Path) -> None:
    library = library_of(tmp_path / "run", kept_row(sample=0), kept_row(sample=1))
    assert column(library, "sample") == [0, 1]
    (tmp_path / "run" / "trajectories.jsonl").write_text("")
    write_rows(tmp_path / "run", kept_row(sample=7))
    assert column(library, "sample") == [7]
    with pytest.raises(ConfigError, match="g17s1': is not among the kept samples"):
        library.sample((3, 17, 1))


def test_a_run_that_went_back_and_has_written_as_many_bytes_again_is_read_anew(tmp_path: Path) -> None:
    library = library_of(tmp_path / "run", kept_row(verdict="WA"))
    path, revision = tmp_path / "run" / "trajectories.jsonl", library.revision()
    path.write_text(path.read_text().replace('"verdict": "WA"', '"verdict": "RE"'))
    os.utime(path, ns=(1, 1))
    assert library.revision() != revision
    assert column(library, "verdict") == ["RE"]


def test_columns_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [kept_row(sample=n, reward=reward, verdict=v) for n, (reward, v) in enumerate(((0.5, "WA"), (None, None)))]
    library = library_of(tmp_path / "run", *rows)
    assert column(library, "reward") == [0.5, None]
    assert column(library, "verdict") == ["WA", None]
    assert column(library, "kept_as") == [["worst"], ["worst"]]


def test_a_run_without_samples_has_facts(tmp_path: Path) -> None:
    facts = json.loads(library_of(tmp_path / "run").facts())
    assert (facts["steps"], facts["cards"], facts["warnings"]) == (0, [], [])
