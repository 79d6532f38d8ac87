"""What a task's data gives: what is used, what is left out, and when that is too much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap.core import LeftOut, Prompt
from overlap.core.errors import ConfigError
from overlap.pipeline.dataset_filter import PromptSplit, check_splits, filter_prompts


def prompt(id: str, tokens: int = 3) -> Prompt:
    return Prompt(id, (1,) * tokens, place=f"rows.jsonl:{id}")


def rows(good: int, bad: int, too_long: int = 0) -> PromptSplit:
    entries = [prompt(str(i)) for i in range(good)]
    entries += [prompt(f"long{i}", 99) for i in range(too_long)]
    return filter_prompts(
        [*entries, *(LeftOut(f"rows.jsonl:{i}", "malformed", "'x': is no row") for i in range(bad))], 10
    )


def test_prompts_that_are_too_long_are_left_out_with_their_place_and_length() -> None:
    intake = filter_prompts([prompt("1"), prompt("2", 11), prompt("3", 10)], 10)
    assert [p.id for p in intake.prompts] == ["1", "3"]
    assert intake.left_out == (LeftOut("rows.jsonl:2", "prompt too long", "11 tokens, model.prompt_tokens=10", True),)
    assert (intake.rows, intake.bad) == (3, 0)


def test_notes_on_rows_that_are_used_are_counted_and_rows_left_out_by_choice_are_no_bad_ones() -> None:
    noted = [replace(prompt(id), notes=("with weight, which has no effect",)) for id in "12"]
    chosen = LeftOut("rows.jsonl:9", "heldout by its own split", by_choice=True)
    intake = filter_prompts([*noted, prompt("3"), chosen, chosen], 10)
    assert intake.noted() == ["2 with weight, which has no effect, first rows.jsonl:1"]
    assert (intake.rows, intake.bad, intake.lines(bad=True)) == (5, 0, [])
    check_splits({"train": intake}, "rows.jsonl")


@pytest.mark.promise("rows-left-out")
def test_reasons_are_counted_the_most_frequent_first_and_each_shows_its_first_row() -> None:
    odd = [
        LeftOut("a:1", "no tests"),
        LeftOut("a:2", "malformed", "1: must be text"),
        LeftOut("a:9", "malformed", "2: no"),
    ]
    intake = filter_prompts([prompt("1"), *odd], 10)
    assert intake.lines() == ["2 malformed, first a:2: 1: must be text", "1 no tests, first a:1"]
    assert intake.to_json() == {
        "rows": 4,
        "left_out": {
            "malformed": {"count": 2, "first": "a:2", "detail": "1: must be text"},
            "no tests": {"count": 1, "first": "a:1", "detail": ""},
        },
    }


@pytest.mark.promise("rows-left-out")
@pytest.mark.parametrize(("good", "bad"), [(18, 2), (4, 6)])
def test_too_many_bad_rows_are_refused_with_their_counts(good: int, bad: int) -> None:
    for few in ((1, 1), (19, 1), (38, 2)):
        check_splits({"train": rows(*few)}, "rows.jsonl")
    told = rf"data\.train='{bad} of {good + bad} rows': cannot be used, and 5% may be bad: {bad} malformed, first"
    with pytest.raises(ConfigError, match=told):
        check_splits({"train": rows(good, bad)}, "rows.jsonl")


def test_bad_rows_of_each_split_count_those_of_train_as_a_share_of_the_whole_file_and_long_prompts_never() -> None:
    check_splits({"train": rows(1, 0, too_long=50)}, "rows.jsonl")
    check_splits({"train": rows(36, 2), "heldout": rows(4, 0)}, "rows.jsonl")
    with pytest.raises(ConfigError, match=r"data\.heldout='5 of 10 rows'"):
        check_splits({"train": rows(5, 0), "heldout": rows(5, 5)}, "rows.jsonl")


@pytest.mark.parametrize(
    ("intake", "held", "why"),
    [
        (PromptSplit(), 0, "it is empty"),
        (rows(0, 0, too_long=3), 0, "3 prompt too long"),
        (rows(0, 0), 2, "all 2 are held"),
    ],
)
def test_nothing_to_train_on_is_refused(intake: PromptSplit, held: int, why: str) -> None:
    with pytest.raises(ConfigError, match=f"gives no prompt to train on: {why}") as caught:
        check_splits({"train": intake, "heldout": rows(held, 0)}, "rows.jsonl")
    assert caught.value.field == "data.train"
