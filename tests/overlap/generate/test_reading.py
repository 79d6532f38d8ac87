"""Answers read by a parser: what is given to it, what comes of it, and of one that fails."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from overlap.core import Spoken
from overlap.errors import ConfigError
from overlap.generate.reading import Reader

TOOLS = '[{"function":{"name":"f"},"type":"function"}]'


class Tokenizer:
    all_special_ids = (9,)

    def decode(self, ids: Any, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not skip_special_tokens
        return " ".join(map(str, ids))


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands where vLLM's parsers stand; what it was given."""
    given: list[Any] = []

    class Parser:
        def __init__(self, tokenizer: Any, tools: Any) -> None:
            self.tools = tools

        def parse(self, text: str, request: Any, auto: bool, ids: Any) -> Any:
            given.append((text, request.tools, auto, list(ids)))
            if text == "7":
                raise KeyError("broken")
            calls = [SimpleNamespace(name="f", arguments='{"a": 1}')] if auto else None
            return "hm", None if auto else text, calls

    class Manager:
        @staticmethod
        def get_parser(**names: Any) -> Any:
            if names["tool_parser_name"] == "none-such":
                raise TypeError("which has not been registered")
            return Parser

    class Asked:
        def __init__(self, messages: Any, tools: Any = None, tool_choice: Any = None) -> None:
            self.tools = tools

    protocol = "vllm.entrypoints.openai.chat_completion.protocol"
    for name, more in (("vllm.parser", {"ParserManager": Manager}), (protocol, {"ChatCompletionRequest": Asked})):
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
        module = ModuleType(name)
        vars(module).update(more)
        monkeypatch.setitem(sys.modules, name, module)
    return given


def test_without_a_parser_an_answer_is_its_text() -> None:
    assert Reader(object(), "", "").read("text", (1, 2), "[]") == Spoken("text")


def test_a_parser_gets_what_was_sampled_with_its_marks_but_for_the_one_that_ends_it(vllm) -> None:
    spoken = Reader(Tokenizer(), "hermes", "").read("text", (1, 2, 9), TOOLS)
    assert spoken == Spoken("", "hm", (("f", '{"a": 1}'),))
    ((text, tools, auto, ids),) = vllm
    assert (text, auto, ids) == ("1 2", True, [1, 2])
    assert tools[0]["function"]["name"] == "f"
    assert Reader(Tokenizer(), "", "qwen3").read("text", (1, 2), "[]") == Spoken("1 2", "hm")


def test_what_a_parser_cannot_read_is_text_and_said_to_be(vllm) -> None:
    assert Reader(Tokenizer(), "hermes", "").read("seven", (7,), TOOLS) == Spoken("seven", failed=True)


def test_a_parser_that_is_not_there_is_told_by_its_field(vllm) -> None:
    with pytest.raises(
        ConfigError, match=r"episode.tool_parser='none-such': which has not been registered; use a parser"
    ):
        Reader(Tokenizer(), "none-such", "")
