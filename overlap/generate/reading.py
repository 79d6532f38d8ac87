"""Answers read by vLLM's own parsers, as a library: reasoning, words and calls of tools. Runs in the host.

What is read is for whoever asked; what is learned from are the sampled ids. Nothing here touches how they are sampled:
vLLM's own server has its parsers bind the decoding to a tool's schema (``adjust_request``), which is never called.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from overlap.core import Spoken
from overlap.errors import ConfigError, EngineError


class Reader:
    """Raises ConfigError for a parser that vLLM does not know, or that this tokenizer does not suit."""

    def __init__(self, tokenizer: Any, tool_parser: str, reasoning_parser: str) -> None:
        self._tokenizer = tokenizer
        self._parser: Any = None
        if tool_parser or reasoning_parser:
            self._parser = _parser(tokenizer, tool_parser, reasoning_parser)
            self._special = set(tokenizer.all_special_ids)

    def read(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """``tools`` are those of the request, a JSON list; ``text`` is what is read where there is no parser."""
        if self._parser is None:
            return Spoken(text)
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        asked = {"tools": found, "tool_choice": "auto"} if (found := json.loads(tools)) else {}
        said = list(token_ids[:-1] if token_ids and token_ids[-1] in self._special else token_ids)
        words = self._tokenizer.decode(said, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        try:
            request = ChatCompletionRequest(messages=[{"role": "user", "content": ""}], **asked)
            reasoning, content, calls = self._parser(self._tokenizer, request.tools).parse(
                words, request, bool(asked), said
            )
        except Exception:  # whatever a parser makes of what a policy says
            return Spoken(text, failed=True)
        return Spoken(content or "", reasoning, tuple((call.name, call.arguments) for call in calls or ()))


def _parser(tokenizer: Any, tool_parser: str, reasoning_parser: str) -> Any:
    try:
        from vllm.parser import ParserManager
    except ImportError as error:
        raise EngineError(
            f"vLLM's parsers cannot be used: {error}; install the vLLM that requirements/ names"
        ) from error
    names = {"tool_parser_name": tool_parser or None, "reasoning_parser_name": reasoning_parser or None}
    try:
        return ParserManager.get_parser(**names, enable_auto_tools=True, tokenizer=tokenizer)
    except Exception as error:  # TypeError for a name, or what its constructor raises
        field, value = ("tool_parser", tool_parser) if tool_parser else ("reasoning_parser", reasoning_parser)
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"episode.{field}", value, f'{reason}; use a parser that suits the policy, or ""') from error
