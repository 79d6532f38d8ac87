"""An episode of many turns as a tree of exact tokens. Pure: no engine, no tokenizer, no clock.

    request ──▶ match ──▶ the turn that it goes on from, and its messages that are new
                                   │ their ids, rendered by the caller
    answer  ──▶ commit ──▶ a turn: ids in front, ids sampled, log-probs, spans
    end     ──▶ branches ──▶ one sequence per leaf, each sampled token in one loss

A turn is never changed. The part of a request that repeats earlier turns is recognized by its messages, and is kept in
the tree as the ids that the engine saw and sampled; only new messages are rendered. A request with another history
opens a branch. So do retries, rejected answers, sub-agents and summaries: none of them is an error.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from overlap.core import Finish, Packed, Trajectory, VersionSpan, shortened

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles of a request, and the roles they are matched and rendered as: templates know no developer."""

NO_TOOLS = "[]"
ARGUMENTS = 100_000
"""Longer arguments of a tool are text, whatever they hold: reading JSON blocks all threads."""


@dataclass(frozen=True, slots=True)
class CanonicalCall:
    """A tool call in the form that is compared: ``arguments`` is canonical JSON, or plain text if it is no JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message in the form that is compared. ``reasoning`` None: not in the request. ``name``: of the speaker.
    ``answers``: index of the tool call, in the answer before, whose result this message is.
    """

    role: str
    text: str = ""
    calls: tuple[CanonicalCall, ...] = ()
    reasoning: str | None = None
    name: str | None = None
    answers: int | None = None

    def same(self, other: ChatMessage) -> bool:
        """Return whether one repeats the other. Clients trim the model's text, and may leave its reasoning out."""
        if (self.role, self.calls) != (other.role, other.calls):
            return False
        if self.role != "assistant":
            return (self.text, self.name, self.answers) == (other.text, other.name, other.answers)
        known = self.reasoning is not None and other.reasoning is not None
        return self.text.strip() == other.text.strip() and not (
            known and str(self.reasoning).strip() != str(other.reasoning).strip()
        )


def canonical(arguments: Any) -> str:
    """JSON arguments, as an object or as text, with keys in order and no blanks; text that is no JSON, is nested too
    deep to be read, or is longer than ARGUMENTS, as it is. Raises ValueError for an object that is nested too deep.
    """
    if isinstance(arguments, str) and len(arguments) > ARGUMENTS:
        return arguments
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
        return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        if isinstance(arguments, str):
            return str(arguments)
        raise ValueError(f"what a tool takes cannot be written as JSON: {error}") from None


def message_of(raw: Mapping[str, Any]) -> ChatMessage:
    """Read a message of ``/v1/chat/completions``. Raises ValueError with a text for its author."""
    role = raw.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"role {shortened(role)} is none of {', '.join(ROLES)}")
    reasoning = raw.get("reasoning", raw.get("reasoning_content"))
    if reasoning is not None and not isinstance(reasoning, str):
        raise ValueError("reasoning must be text")
    name = None if raw.get("name") is None else str(raw["name"])
    return ChatMessage(ROLES[role], said_in(raw), tuple(_calls(raw.get("tool_calls"))), reasoning, name)


def said_in(raw: Mapping[str, Any]) -> str:
    """The text of a message; the text of a refusal is in a field of its own. Raises ValueError."""
    refusal = raw.get("refusal")
    if refusal is not None and not isinstance(refusal, str):
        raise ValueError("refusal must be text")
    return text_of(raw.get("content")) + (refusal or "")


def text_of(content: Any) -> str:
    """The text of a message whose content is a string, None, or parts of text. Raises ValueError."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ValueError(f"content must be text, null or a list of parts, not {type(content).__name__}")
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind not in ("text", "input_text", "output_text", "refusal"):
            raise ValueError(f"a part of type {shortened(kind)}: only text can be read")
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise ValueError("a part of text without text")
        parts.append(text)
    return "".join(parts)


def _calls(raw: Any) -> Iterator[CanonicalCall]:
    if raw is None:
        return
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise ValueError("tool_calls must be a list")
    for call in raw:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError("a tool call without a function's name")
        yield CanonicalCall(function["name"], canonical(function.get("arguments") or {}))


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the policy. Its prompt is the prompt and answer of its ``parent``, and then ``added``.

    ``added`` [A], ``token_ids`` [T] and ``logprobs`` [T] as in a trajectory; ``spans`` count from its first token.
    ``dialog`` holds the messages of its request, and its own message behind them.
    """

    number: int
    parent: int | None
    dialog: tuple[ChatMessage, ...]
    tools: str
    added: Packed[int]
    token_ids: Packed[int]
    logprobs: Packed[float]
    spans: tuple[VersionSpan, ...]
    finish: Finish


@dataclass(slots=True)
class EpisodeTree:
    """The turns of one episode, numbered in the order in which they were committed; ``delivered`` has the numbers of
    the turns that are known to have arrived.
    """

    turns: list[Turn] = field(default_factory=list)
    delivered: set[int] = field(default_factory=set)

    def match(self, messages: Sequence[ChatMessage], tools: str) -> Turn | None:
        """The turn that a request continues: the request begins with its dialog, and goes on. The longest dialog is
        taken; of equal ones that of the last turn that is known to have arrived.
        """
        longest, best = (-1, False), None
        for turn in self.turns:
            rank = len(turn.dialog), turn.number in self.delivered
            if rank < longest or len(turn.dialog) >= len(messages) or turn.tools != tools:
                continue
            if all(map(ChatMessage.same, turn.dialog, messages)):
                longest, best = rank, turn
        return best

    def behind(self, ids: Sequence[int]) -> Turn | None:
        """The deepest turn whose ids are a proper prefix of ``ids``: for a request that was rendered as a whole."""
        found, longest, given = None, 0, array("i", ids)
        for turn in self.turns:
            own = self.ids(turn)
            if longest < len(own) < len(given) and given[: len(own)] == own:
                found, longest = turn, len(own)
        return found

    def ids(self, turn: Turn | None) -> array[int]:
        """All ids up to the end of what it said."""
        return _joined(ids for part in self._path(turn) for ids in (part.added, part.token_ids))

    def commit(
        self,
        messages: Sequence[ChatMessage],
        tools: str,
        parent: Turn | None,
        added: Sequence[int],
        *,
        made: Trajectory,
        reply: ChatMessage,
    ) -> Turn:
        """Add a turn that has ended. A request that repeats its parent shows that the parent had arrived."""
        assert len(made.token_ids) == len(made.logprobs), "a log-prob for each token"
        ids, logs = Packed("i", made.token_ids), Packed("f", made.logprobs)
        own = None if parent is None else parent.number
        known = () if parent is None else parent.dialog
        if own is not None and len(messages) >= len(known) and all(map(ChatMessage.same, known, messages)):
            self.delivered.add(own)
            messages = (*known, *messages[len(known) :])  # the same objects: a long dialog is not held once per turn
        dialog = (*messages, reply)
        turn = Turn(len(self.turns), own, dialog, tools, Packed("i", added), ids, logs, tuple(made.spans), made.finish)
        self.turns.append(turn)
        return turn

    def branches(self, empty: Trajectory) -> tuple[Trajectory, ...]:
        """The turns from a root to a leaf, for each delivered turn without a delivered turn behind it: that of the last
        turn first, then by number. ``empty`` has all that is no field of turns.

        A token is trained in the first branch that holds it: a prompt ends before the first token that is trained here,
        and ``mask`` [T] is 0 where a token was not sampled or is trained in an earlier branch.
        """
        arrived = [turn for turn in self.turns if turn.number in self.delivered]
        inner = {part.number for turn in arrived for part in self._path(turn)[:-1]}
        leaves = [turn for turn in arrived if turn.number not in inner]
        claimed: set[int] = set()
        return tuple(self._branch(leaf, claimed, empty) for leaf in (*leaves[-1:], *leaves[:-1]))

    def _path(self, turn: Turn | None) -> list[Turn]:
        path: list[Turn] = []
        while turn is not None:
            path.append(turn)
            turn = None if turn.parent is None else self.turns[turn.parent]
        return path[::-1]

    def _branch(self, leaf: Turn, claimed: set[int], empty: Trajectory) -> Trajectory:
        """``claimed``: turns that earlier branches train; those of this one are added."""
        path = self._path(leaf)
        mine = [part.number in self.delivered and part.number not in claimed for part in path]
        begin = mine.index(True)
        before = [ids for part in path[:begin] for ids in (part.added, part.token_ids)]
        prompt, rest = _joined([*before, path[begin].added]), list[int]()
        logprobs, mask, spans = list[float](), bytearray(), list[VersionSpan]()
        for number, (part, own) in enumerate(zip(path[begin:], mine[begin:], strict=True)):
            added = part.added if number else ()
            at = len(rest) + len(added)
            rest += [*added, *part.token_ids]
            logprobs += [*[0.0] * len(added), *(part.logprobs if own else [0.0] * len(part.token_ids))]
            mask += bytes(len(added)) + bytes([own]) * len(part.token_ids)
            spans += [VersionSpan(s.version, s.start + at, s.end + at) for s in part.spans if own]
        claimed.update(part.number for part, own in zip(path, mine, strict=True) if own)
        return replace(
            empty,
            prompt_ids=Packed("i", prompt),
            token_ids=Packed("i", rest),
            logprobs=Packed("f", logprobs),
            mask=b"" if all(mask) else bytes(mask),
            spans=tuple(spans),
            finish=leaf.finish,
            turns=len(path),
        )


def _joined(parts: Iterable[Packed[int]]) -> array[int]:
    found = array("i")
    for part in parts:
        found.extend(part.array)
    return found
