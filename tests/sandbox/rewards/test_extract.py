"""The one rule by which a program is taken out of an answer."""

from __future__ import annotations

import pytest

from sandbox.rewards.extract import (
    answer_behind,
    extract_program,
    fenced_blocks,
    opens_fence,
    program_of_answer,
    without_stop,
    without_tokens,
)

FENCE = "```python\n"
DRAFT = "<think>\n```python\ndraft()\n```\n"
INNER = 'print("```")\nx = "a```b"\nprint(x)  # ```\n'
DEEP = 'def f():\n    s = """\n        ```\n    """\n    return s\n'
ANSWERS = {
    "the only block": ("Sure:\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
    "of several Python blocks the last": ("```python\nfirst()\n```\nOr:\n```python\nsecond()\n```\n", "second()\n"),
    "a tagged one before a later one without a tag": (
        "```python\nprint(5)\n```\nIt prints\n```\n5\n```\n",
        "print(5)\n",
    ),
    "one without a tag where none is Python": ("```cpp\nint main(){}\n```\n```\nprint(1)\n```\n", "print(1)\n"),
    "no fence": ("def f():\n    return 1\n", ""),
    "nothing": ("", ""),
    "an empty block": ("```python\n```", ""),
    "a blank block": ("```python\n  \n\n```", ""),
    "a fence without lines": ("```python", ""),
    "thoughts only": (f"{DRAFT}</think>\nI give up.", ""),
    "thoughts, then a program": (f"{DRAFT}</think>\n```python\nfinal()\n```", "final()\n"),
    "thoughts that never end": (f"{DRAFT}but wait", ""),
    "tildes, which backticks do not close": ("~~~python\ns = '''\n```\n'''\n~~~\n", "s = '''\n```\n'''\n"),
    "a longer fence, which a shorter one does not close": (
        "````python\ns = '''\n```\n'''\n````\n",
        "s = '''\n```\n'''\n",
    ),
    "backticks inside a line of code": (f"```python\n{INNER}```\n", INNER),
    "inline code before a block": ("Use ```print(1)``` here.\n```python\nprint(2)\n```", "print(2)\n"),
    "inline code": ("```print(1)```\n", ""),
    "an indented block": ("1. So:\n   ```python\n   if x:\n       y()\n   ```\n", "if x:\n    y()\n"),
    "a fence deep inside code": (f"```python\n{DEEP}```\n", DEEP),
    "a fence that never closes": ("```python\nprint(1)", "print(1)\n"),
    **{f"tagged {tag}": (f"```{tag}\nprint(1)\n```\n", "") for tag in ("cpp", "text", "javascript", "bash")},
    **{
        f"tagged {tag!r}": (f"```{tag}\nprint(1)\n```\n```\nno\n```", "print(1)\n")
        for tag in ("python", "Python", "py", "python3", " python ", "python title=a.py", "{.python}")
    },
    "Windows line ends": ("```python\r\nprint(1)\r\n```\r\n", "print(1)\r\n"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_which_block_of_an_answer_is_its_program(name: str) -> None:
    answer, program = ANSWERS[name]
    assert extract_program(answer) == program


def test_the_answer_of_a_model_that_always_thinks_needs_the_end_of_its_thoughts() -> None:
    answer = "hmm\n```python\ndraft()\n```\n"
    assert extract_program(answer, thinks=True) == ""
    assert extract_program(answer + "</think>\n```python\nfinal()\n```", thinks=True) == "final()\n"


@pytest.mark.parametrize(
    ("prefill", "rest", "program"),
    [
        ("def f(x):", "\n    return x\n```\nAnother:\n```python\nnonsense\n```\n", "def f(x):\n    return x\n"),
        ("def f():", "\n    return '</think>'\n", "def f():\n    return '</think>'\n"),
    ],
)
def test_with_an_open_fence_in_the_prefill_the_program_begins_there(prefill: str, rest: str, program: str) -> None:
    assert extract_program(FENCE + prefill + rest, prefill=FENCE + prefill) == program


def test_a_stop_string_at_the_end_is_no_part_of_the_program() -> None:
    stop, prefill = ("```", "\nprint(", "\ndef "), FENCE + "def f(x):"
    for end in stop:
        answer = f"{prefill}\n    return x\n{end}".replace("\n\n", "\n")
        assert extract_program(answer, prefill=prefill, stop=stop) == "def f(x):\n    return x\n"


def test_of_several_stop_strings_the_longest_is_cut_and_only_once() -> None:
    assert without_stop("a\n#\n#", ("#", "\n#")) == "a\n#"
    assert without_stop("abc", ("```",)) == "abc"


def test_opens_fence_tells_open_from_closed() -> None:
    assert [*map(opens_fence, ("```python\ndef f():", "```python\nx\n```\n", ""))] == [True, False, False]


def test_blocks_say_their_tag_and_whether_they_were_closed() -> None:
    blocks = list(fenced_blocks("```Py\na\n```\n~~~\nb"))
    assert [(block.tag, block.code, block.closed) for block in blocks] == [("py", "a\n", True), ("", "b\n", False)]


# --- the text that a trainer hands over -----------------------------------------------------------------------------

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
