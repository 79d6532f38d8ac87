"""What a policy said, in the text that a trainer hands over."""

from __future__ import annotations

import pytest

from sandbox.rewards.extract import answer_behind, program_of_answer, without_tokens

LONG = "word " * 100
BEHIND = {
    "begins with the prompt": ("Add.Seven", "Add.", "Seven"),
    "a token before the prompt": ("<s>Add.Seven", "Add.", "Seven"),
    "the answer says the prompt again": ("Add.I shall: Add.", "Add.", "I shall: Add."),
    "a prompt that was cut at its beginning": (LONG[50:] + "Seven", LONG, "Seven"),
    "no prompt": ("Seven", "", "Seven"),
    "another prompt": ("```python\nprint(7)\n```", "Add.", None),
}


@pytest.mark.parametrize(("query", "prompt", "answer"), BEHIND.values(), ids=BEHIND.keys())
def test_an_answer_stands_behind_its_prompt(query: str, prompt: str, answer: str | None) -> None:
    assert answer_behind(query, prompt) == answer


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "</s>",
        "<|im_end|>\n<|endoftext|>",
        " <|eot_id|> \n" + "<pad>" * 5000,
        "<end_of_turn>",
        "<｜end▁of▁sentence｜>",
    ],
)
def test_tokens_that_end_an_answer_are_no_part_of_its_program(ending: str) -> None:
    assert program_of_answer(f"```python\nprint(7)\n```{ending}") == "print(7)\n"


def test_a_long_run_of_white_space_is_read_once() -> None:
    answer = " " * 2_000_000 + "x"  # hours, where each blank is a new beginning
    assert without_tokens(answer) == answer
