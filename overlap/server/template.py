"""A chat template as ids: of a whole dialog, or only of what is new behind an answer whose ids are known.

    whole          render(messages) ──▶ ids
    continuation   render(stand-in for the answer + new), what follows the stand-in ──▶ ids behind the sampled ones

A continuation never uses the answer's text, which need not tokenize to the ids that were sampled. It begins with the
token that ends a turn, unless the answer already ended with it. Whether a template allows this is tried when it
is made.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from overlap.core.chat_turns import unicode_of
from overlap.core.errors import EpisodeError, RequestRefused, one_line
from overlap.core.turn_marks import TurnMarks
from overlap.server.episode_tree import ARGUMENTS, ROLES, said_in, text_of
from overlap.server.turn_request import context_full

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "ovl7asked"}]
TOOL_NAME = "ovl7tool"
TOOL = {
    "type": "function",
    "function": {"name": TOOL_NAME, "description": "", "parameters": {"type": "object", "properties": {}}},
}
DUMMY = "ovl7dummy"
"""Placeholder of an answer: a word that no template contains or changes."""
THREADS = 2
"""Threads that render and tokenize long texts, of all episodes."""
MANY = 100_000
"""Characters from which on a text is tokenized without a tokenizer's other outputs."""
LONGEST = 256
"""Characters of the longest token, where a tokenizer does not list its tokens."""


class ChatTemplate:
    """The chat template of a Hugging Face tokenizer; without a template, a blank line follows each message.

    ``longest`` is the number of characters of the longest token: a text of N characters has at least N / ``longest``
    tokens. ``threads`` are for work that is too long for the event loop.
    ``context`` is the number of tokens that a dialog may have, None where that is checked later.

    A mark of a turn that is a token is text in the texts of a dialog. ``plain_mark`` is one that is no token, "" where
    there is none: a text that holds it reads as a turn.
    """

    def __init__(self, tokenizer: Any, context: int | None = None) -> None:
        self._tokenizer, self.context = tokenizer, context
        self.threads = ThreadPoolExecutor(THREADS, "chat template")
        tokens = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
        self.longest = max(map(len, tokens), default=LONGEST)
        self._marks = TurnMarks(tokenizer)
        self._end = _around(self._text([*ASKED, _answer()], (), False))[1] or ""
        self.plain_mark = self._marked_by()
        self.continues = self._tried()

    def whole(self, messages: Sequence[Raw], tools: Sequence[Raw] = ()) -> list[int]:
        """Ids [P] of a dialog up to where the policy speaks. Where the template refuses answers with several tool
        calls, or with arguments that are no object, each call is shown in an answer of its own, before its result.

        Raises RequestRefused where the template refuses the dialog, or EpisodeError if the reason may be how the policy
        called its tools.
        """
        plain, refusals = [plain_message(message) for message in messages], list[EpisodeError]()
        for shown in (plain, calls_apart(plain)) if called_oddly(plain) else (plain,):
            try:
                return self._marks.ids(self._text(shown, tools, True), self._ids)
            except EpisodeError as refusal:
                refusals.append(refusal)
        raise refusals[0]

    def continuation(
        self, reply: Raw, last: int | None, new: Sequence[Raw], tools: Sequence[Raw] = ()
    ) -> list[int] | None:
        """Ids of ``new`` messages behind an answer that ended with id ``last`` (None: an empty answer), up to where the
        policy speaks again; None where this template does not allow it. ``reply`` holds the answer's tool calls.
        """
        tail = self.tail(reply, new, tools) if self.continues else None
        if tail is None:
            return None
        ids = self._marks.ids(tail, self._ids)
        return ids[1:] if ids and ids[0] == last else ids

    def tail(self, reply: Raw, new: Sequence[Raw], tools: Sequence[Raw] = ()) -> str | None:
        """The text behind the words and calls of an answer: the end of its turn, and all of ``new``."""
        calls = plain_message({"role": "assistant", "tool_calls": reply.get("tool_calls")}).get("tool_calls", ())
        plain = [plain_message(message) for message in new]
        for alike in _stand_ins(calls):
            with suppress(EpisodeError):  # refused: others are tried, which are less alike
                return next(filter(None, (self._tail(said, plain, tools) for said in alike)), None)
        return None

    def says(self, text: str) -> list[int]:
        """Ids of plain text."""
        return self._ids(text)

    @property
    def shows_calls(self) -> str:
        """A call of a tool as this template shows it; "" where it shows none."""
        call = {"type": "function", "id": "0" * 9, "function": {"name": TOOL_NAME, "arguments": {}}}
        with suppress(EpisodeError):
            whole = self._text([*ASKED, _answer("", tool_calls=[call])], [TOOL], False)
            front, shown, rest = whole.rpartition(TOOL_NAME)
            head = self._text([*ASKED, _answer()], [TOOL], False).rpartition(DUMMY)[0]
            return front.removeprefix(head) + shown + rest.removesuffix(self._end) if front.startswith(head) else ""
        return ""

    def _tail(self, said: Raw, new: Sequence[Raw], tools: Sequence[Raw]) -> str | None:
        shown = self._text([*ASKED, said], tools, False)
        whole = self._text([*ASKED, said, *new], tools, True)
        (front, before), (front_now, after) = _around(shown), _around(whole)
        if before is None or after is None or shown.count(DUMMY) != whole.count(DUMMY):
            return None  # also where one of the new messages holds the word
        if len(front_now) > len(front):
            return None  # something new is in front of the answer's words
        calls = before.removesuffix(self._end)
        return after[len(calls) :] if after.startswith(calls) else None

    def _marked_by(self) -> str:
        """Return the text before or behind a user's words, where it is plain text and not blank."""
        if not getattr(self._tokenizer, "chat_template", None):
            return ""
        before, _, behind = (self.tail(_answer(), ASKED) or "").partition(str(ASKED[0]["content"]))
        return next((part.strip() for part in (before, behind) if part.strip() and not self._marks.among(part)), "")

    def _tried(self) -> bool:
        """Return whether the text behind an answer has the same ids on its own as behind the answer."""
        new = [{"role": "user", "content": "and now?"}]
        tail = self.tail(_answer(), new)
        if tail is None:
            return False
        with suppress(EpisodeError):
            ids, whole = self._marks.ids(tail, self._ids), self.whole([*ASKED, _answer(), *new])
            return whole[-len(ids) :] == ids
        return False

    def _text(self, messages: Sequence[Raw], tools: Sequence[Raw], asks: bool) -> str:
        if not getattr(self._tokenizer, "chat_template", None):
            said = "".join(f"{text_of(message.get('content'))}\n\n" for message in messages)
            return str(self._marks.hidden(said))
        try:
            messages, tools = self._marks.hidden(list(messages)), self._marks.hidden(list(tools))
            found = self._tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=asks
            )
        except Exception as error:  # a template is a program of the checkpoint
            reason = unicode_of(one_line(error, 200)) or type(error).__name__
            kind = EpisodeError if called_oddly(messages) else RequestRefused
            raise kind(f"the policy's chat template refuses these messages: {reason}") from error
        return str(found)

    def _ids(self, text: str) -> list[int]:
        if unicode_of(text) != text:  # arguments of tools may hold it, spelt as JSON spells it
            raise RequestRefused("messages: they hold half a character (a lone surrogate), which no tokenizer takes")
        if not text:
            return []
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None or len(text) < MANY:
            return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]
        (found,) = backend.encode_batch([text], add_special_tokens=False)
        if self.context is not None and len(found) >= self.context:  # a list of millions would block all threads
            raise context_full(self.context, str(len(found)))
        return list(found.ids)


def _around(text: str) -> tuple[str, str | None]:
    """Split a text into the parts before and behind the placeholder; None for the part behind without a placeholder."""
    front, found, rest = text.rpartition(DUMMY)
    return front, rest if found else None


def _answer(content: str = DUMMY, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def _with_arguments(call: Raw, arguments: Raw) -> Raw:
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _stand_ins(calls: Sequence[Raw]) -> Iterator[tuple[Raw, ...]]:
    """Yield answers that may replace one with these tool calls, the most alike first: some templates show no words
    beside calls, some take one call only, or none. The text behind a call does not depend on the call's arguments.
    """
    if calls:
        bare = [_with_arguments(call, {}) for call in calls]
        marked = _with_arguments(calls[-1], {"word": DUMMY})
        yield _answer(tool_calls=bare), _answer("", tool_calls=[*bare[:-1], marked])
        yield (_answer("", tool_calls=[marked]),)
    yield (_answer(),)


Raw = Mapping[str, Any]


def plain_message(raw: Raw) -> dict[str, Any]:
    """A message with text, known roles, and arguments of tools as objects."""
    plain: dict[str, Any] = {"role": ROLES[raw["role"]], "content": said_in(raw)}
    plain |= {name: raw[name] for name in ("name", "tool_call_id") if raw.get(name) is not None}
    if (reasoning := raw.get("reasoning", raw.get("reasoning_content"))) is not None:
        plain["reasoning_content"] = reasoning
    if raw.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in raw["tool_calls"]]
    return plain


def _plain_call(call: Raw) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str) and len(arguments) <= ARGUMENTS:
        with contextlib.suppress(ValueError, RecursionError):  # as it was said
            arguments = json.loads(arguments)
    found = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return found | ({"id": call["id"]} if call.get("id") is not None else {})


def called_oddly(messages: Sequence[Raw]) -> bool:
    """Return whether an answer has several tool calls, or arguments that are no object: the policy may do so, and some
    templates refuse it.
    """
    called = [message.get("tool_calls") or () for message in messages]
    given = (call["function"].get("arguments") for calls in called for call in calls)
    return any(len(calls) > 1 for calls in called) or not all(isinstance(found, Mapping) for found in given)


def calls_apart(messages: Sequence[Raw]) -> list[Raw]:
    """The dialog with each tool call in an answer of its own, before its result, and with arguments as an object."""
    found, waiting, head = list[Raw](), list[Raw](), dict[str, Any]()

    def called(calls: Sequence[Raw]) -> Iterator[Raw]:
        nonlocal head
        for call in calls:
            yield head | {"tool_calls": [_with_object(call)]}
            head = {"role": "assistant", "content": ""}

    for message in messages:
        if message["role"] == "tool" and waiting:
            ids = [call.get("id") for call in waiting]
            own = message.get("tool_call_id")
            found += [*called([waiting.pop(ids.index(own) if own in ids else 0)]), message]
            continue
        found += called(waiting)
        waiting = list(message.get("tool_calls") or ())
        if waiting:
            head = {name: value for name, value in message.items() if name != "tool_calls"}
        else:
            found.append(message)
    return [*found, *called(waiting)]


def _with_object(call: Raw) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if not isinstance(arguments, Mapping):
        arguments = {"arguments": arguments}
    return {**call, "function": {**call["function"], "arguments": arguments}}
