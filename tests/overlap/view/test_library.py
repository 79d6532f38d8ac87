"""Tests of the samples behind ``overlap view``: filtered, sorted, searched, found by place, and growing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from kept_rows import kept_row, write_rows
from places import ROOT

from overlap.errors import ConfigError
from overlap.view.library import SORTS, SampleLibrary, SampleOrder
from overlap.view.sample_filter import SampleFilter
from overlap.view.source import open_samples


def _library(folder: Path, *rows: dict[str, Any]) -> SampleLibrary:
    return SampleLibrary(open_samples(str(write_rows(folder, *rows))))


def _ids(library: SampleLibrary, order: SampleOrder) -> list[int]:
    return [head.values["sample"] for head in library.ordered(order)]


@pytest.mark.parametrize(
    ("only", "samples"),
    [
        ({}, [0, 1, 2, 3]),
        ({"step": 4}, [1]),
        ({"split": "heldout"}, [2]),
        ({"verdict": "AC"}, [1]),
        ({"verdict": "none"}, [3]),
        ({"problem": "q"}, [2]),
        ({"kept_as": "best"}, [1]),
        ({"program": "beef"}, [0]),
        ({"failed": True}, [0, 2, 3]),
        ({"failure": True}, [3]),
        ({"dropped": True}, [0]),
        ({"weak": True}, [1]),
        ({"truncated": True}, [2]),
        ({"failed": True, "step": 3}, [0, 2, 3]),
    ],
)
def test_samples_are_filtered_by_what_their_heads_say(only: dict[str, Any], samples: list[int], tmp_path: Path) -> None:
    library = _library(
        tmp_path / "run",
        kept_row(sample=0, program_sha256="beef", dropped="equal_rewards"),
        kept_row(sample=1, step=4, verdict="AC", reward=1.0, weak=True, kept_as=["best"]),
        kept_row(sample=2, split="heldout", prompt_id="q", truncated=True),
        kept_row(sample=3, verdict=None, reward=None, failure="WorkerLost"),
    )
    assert _ids(library, SampleOrder(SampleFilter(**only), sort="step")) == samples


def test_samples_without_a_figure_come_last_however_they_are_sorted(tmp_path: Path) -> None:
    rows = [kept_row(sample=n, reward=reward) for n, reward in enumerate((0.5, None, 1.0, 0.0))]
    library = _library(tmp_path / "run", *rows)
    assert _ids(library, SampleOrder(SampleFilter(), sort="reward")) == [3, 0, 2, 1]
    assert _ids(library, SampleOrder(SampleFilter(), sort="-reward")) == [2, 0, 3, 1]
    assert _ids(library, SampleOrder(SampleFilter(), sort="-step")) == [3, 2, 1, 0]
    for name in SORTS:
        assert len(_ids(library, SampleOrder(SampleFilter(), sort=name))) == 4
    with pytest.raises(ConfigError, match="use one of step, reward"):
        library.ordered(SampleOrder(SampleFilter(), sort="colour"))


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
    library = _library(folder, *rows)
    with (folder / "trajectories.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(kept_row(sample=2, answer='say "hi"\n')) + "\n")
        file.write(json.dumps(kept_row(sample=3, prompt="größe"), ensure_ascii=False) + "\n")
    assert _ids(library, SampleOrder(SampleFilter(), text, "step")) == samples


def test_what_is_written_meanwhile_is_there_at_the_next_request(tmp_path: Path) -> None:
    library = _library(tmp_path / "run", kept_row(sample=0))
    order = SampleOrder(SampleFilter())
    assert _ids(library, order) == [0]
    before = library.facts()["revision"]
    write_rows(tmp_path / "run", kept_row(sample=1))
    assert _ids(library, order) == [1, 0]
    assert library.facts()["revision"] != before
    assert library.sample((3, 17, 1))["prompt"] == "Add two numbers.\n"


def test_a_run_that_went_back_is_read_anew(tmp_path: Path) -> None:
    library = _library(tmp_path / "run", kept_row(sample=0), kept_row(sample=1))
    assert len(library.state().heads) == 2
    (tmp_path / "run" / "trajectories.jsonl").write_text("")
    write_rows(tmp_path / "run", kept_row(sample=7))
    assert _ids(library, SampleOrder(SampleFilter())) == [7]
    with pytest.raises(ConfigError, match="g17s1': is not among the kept samples"):
        library.sample((3, 17, 1))


def test_a_run_that_went_back_and_has_written_as_many_bytes_again_is_read_anew(tmp_path: Path) -> None:
    library = _library(tmp_path / "run", kept_row(verdict="WA"))
    path, revision = tmp_path / "run" / "trajectories.jsonl", library.state().revision
    path.write_text(path.read_text().replace('"verdict": "WA"', '"verdict": "RE"'))
    os.utime(path, ns=(1, 1))
    assert library.state().revision != revision
    assert [head.values["verdict"] for head in library.ordered(SampleOrder(SampleFilter()))] == ["RE"]


def test_a_run_without_samples_has_facts(tmp_path: Path) -> None:
    facts = _library(tmp_path / "run").facts()
    assert (facts["samples"], facts["last_step"], facts["verdicts"]) == (0, None, {})


def test_facts_and_problems_of_a_finished_run(finished: Path) -> None:
    library = SampleLibrary(open_samples(str(finished)))
    facts = library.facts()
    assert (facts["first_step"], facts["last_step"], facts["problems"], facts["live"]) == (0, 6, 18, False)
    assert [step for step, _ in facts["course"]["heldout"]] == [0, 2, 4, 6]
    problems = library.problems()
    assert len(problems) == 18
    rates = [problem["solved"] / problem["samples"] for problem in problems]
    assert rates == sorted(rates)


def test_the_page_sorts_by_what_can_be_sorted_by() -> None:
    script = (ROOT / "overlap/view/page/rows.js").read_text("utf-8").partition("SORTS = {")[2].partition("},")[0]
    asked = {name.removeprefix("-") for name in re.findall(r'"?(-?\w+)"?: "', script)}
    assert asked <= set(SORTS)
    assert {"step", "reward", "tokens"} <= asked
