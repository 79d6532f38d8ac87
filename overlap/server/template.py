"""A chat template as ids: of a whole dialog, or only of what is new behind an answer whose ids are known.

    whole          render(messages) ──▶ ids
    continuation   render(dummy answer + new messages), what follows the dummy ──▶ ids behind the sampled ones

A continuation never uses the answer's text, which need not tokenize to the ids that were sampled. It begins with the
token that ends a turn, unless the answer already ended with it. Whether a template allows this, and what it leaves out
of a dialog, is tried when it is made.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from overlap.core import unicode_of
from overlap.errors import EpisodeError, RequestRefused
from overlap.server.episode_tree import ROLES, text_of

Raw = Mapping[str, Any]
_DUMMY = "ovl7dummy"
"""Stands for an answer: a word that no template contains or changes."""
_ASKED: list[dict[str, Any]] = [{"role": "user", "content": "ovl7asked"}]
_TOOL = {
    "type": "function",
    "function": {"name": "ovl7tool", "description": "", "parameters": {"type": "object", "properties": {}}},
}


class ChatTemplate:
    """The chat template of a Hugging Face tokenizer; without a template, a blank line follows each message.

    ``notes`` are sentences for the user: what this template does with dialogs of several turns.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._end = self._behind(self._text([*_ASKED, _answer()], (), False)) or ""
        self.continues = self._tried()
        self.notes = tuple(self._found())

    def whole(self, messages: Sequence[Raw], tools: Sequence[Raw] = ()) -> list[int]:
        """Ids [P] of a dialog up to where the policy speaks. Raises RequestRefused where the template refuses it, or
        EpisodeError if the reason may be the arguments with which the policy called a tool.
        """
        return self._ids(self._text([_plain(message) for message in messages], tools, True))

    def continuation(
        self, reply: Raw, last: int | None, new: Sequence[Raw], tools: Sequence[Raw] = ()
    ) -> list[int] | None:
        """Ids of ``new`` messages behind an answer that ended with id ``last`` (None: an empty answer), up to where the
        policy speaks again; None where this template does not allow it. ``reply`` holds the answer's tool calls.
        """
        if not self.continues:
            return None
        said = _answer() | ({"tool_calls": _plain(reply)["tool_calls"]} if reply.get("tool_calls") else {})
        tail = self._tail(said, new, tools)
        if tail is None:
            return None
        ids = self._ids(tail)
        return ids[1:] if ids and ids[0] == last else ids

    def says(self, text: str) -> list[int]:
        """Ids of plain text, without special tokens."""
        return self._ids(text)

    def _tail(self, said: Raw, new: Sequence[Raw], tools: Sequence[Raw]) -> str | None:
        """The text behind the words of an answer, and all of ``new``."""
        shown = self._text([*_ASKED, said], tools, False)
        whole = self._text([*_ASKED, said, *map(_plain, new)], tools, True)
        before, after = self._behind(shown), self._behind(whole)
        if before is None or after is None or shown.count(_DUMMY) != whole.count(_DUMMY):
            return None  # also where one of the new messages holds the word
        return self._end + after[len(before) :] if after.startswith(before) else None

    @staticmethod
    def _behind(text: str) -> str | None:
        _, found, rest = text.rpartition(_DUMMY)
        return rest if found else None

    def _tried(self) -> bool:
        """Whether the text behind an answer has the same ids on its own as behind the answer."""
        new = [{"role": "user", "content": "and now?"}]
        try:
            tail, whole = self._tail(_answer(), new, ()), self.whole([*_ASKED, _answer(), *new])
        except RequestRefused:
            return False
        return tail is not None and whole[-len(ids) :] == ids if (ids := self._ids(tail or "")) else False

    def _found(self) -> Iterator[str]:
        if not self.continues:
            yield "what it renders of a dialog depends on what comes later: each turn is a branch of its own"
        thought = _answer() | {"reasoning_content": "ovl7thought"}
        last, earlier = [*_ASKED, thought], [*_ASKED, thought, *_ASKED]
        if self._shows("ovl7thought", last) and not self._shows("ovl7thought", earlier):
            yield "it leaves earlier reasoning out of a dialog; here that stays in the context as it was sampled"
        if not self._shows("ovl7tool", _ASKED, [_TOOL]):
            yield "it has no place for tools: a policy learns of them only what the messages say"
        late = {"role": "system", "content": "ovl7late"}
        if not self._shows("ovl7late", [*_ASKED, _answer(), late, *_ASKED]):
            yield "it takes no system message behind the first message"

    def _shows(self, word: str, messages: Sequence[Raw], tools: Sequence[Raw] = ()) -> bool:
        try:
            return word in self._text(messages, tools, True)
        except RequestRefused:
            return False

    def _text(self, messages: Sequence[Raw], tools: Sequence[Raw], asks: bool) -> str:
        if not getattr(self._tokenizer, "chat_template", None):
            return "".join(f"{text_of(message.get('content'))}\n\n" for message in messages)
        try:
            found = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=asks
            )
        except Exception as error:  # a template is a program of the checkpoint
            reason = unicode_of(" ".join(str(error).split())[:200]) or type(error).__name__
            kind = EpisodeError if _called_oddly(messages) else RequestRefused
            raise kind(f"the policy's chat template refuses these messages: {reason}") from error
        return str(found)

    def _ids(self, text: str) -> list[int]:
        if unicode_of(text) != text:  # arguments of tools may hold it, spelt as JSON spells it
            raise RequestRefused("messages: they hold half a character (a lone surrogate), which no tokenizer takes")
        return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]] if text else []


def _called_oddly(messages: Sequence[Raw]) -> bool:
    """Whether a tool was called with arguments that are no object: a fault of the policy, not of the request."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return not all(isinstance(call["function"].get("arguments"), Mapping) for call in calls)


def _answer() -> dict[str, Any]:
    return {"role": "assistant", "content": _DUMMY}


def _plain(raw: Raw) -> dict[str, Any]:
    """A message in the form that templates expect: text, known roles, arguments of tools as objects."""
    plain: dict[str, Any] = {"role": ROLES[raw["role"]], "content": text_of(raw.get("content"))}
    plain |= {name: raw[name] for name in ("name", "tool_call_id") if raw.get(name) is not None}
    if (reasoning := raw.get("reasoning", raw.get("reasoning_content"))) is not None:
        plain["reasoning_content"] = reasoning
    if raw.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in raw["tool_calls"]]
    return plain


def _plain_call(call: Raw) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):  # as it was said
            arguments = json.loads(arguments)
    found = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return found | ({"id": call["id"]} if call.get("id") is not None else {})
