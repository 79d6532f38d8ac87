"""The policy as whoever rolls an episode out sees it: messages in, an answer out.

    say ──▶ match ──▶ ids in front ──▶ engine ──▶ parse ──▶ Reply
              └──────────── the episode's tree keeps the ids ─────────────┘

consumes: messages                          produces: turns of an episode, replies
waits for: a place, the engine              woken by: the end of a response
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

from overlap.core import Generator, Packed, Prompt, Request, Spoken, Trajectory, Used
from overlap.errors import ContextFull, EngineError, EpisodeError, EpisodeOver, RequestRefused
from overlap.server.episode_tree import Branch, ChatMessage, EpisodeTree, Turn, canonical, message_of
from overlap.server.template import ChatTemplate

Messages = Sequence[Mapping[str, Any]]
CLOSE_S = 10.0
"""The engine lets a turn that is taken back go within so much, s."""
REFUSALS, REFUSED_S = 100, 1.0
"""So many refused turns of ``say`` are an error of whoever asks; from then on each takes so long, s."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What an episode may use: answers, tokens sampled, tokens of its longest dialog."""

    turns: int
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the policy calls. ``arguments`` is the text that it gave, JSON where it kept to that."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. ``prompt_tokens`` were in front of its ``tokens``; ``turn`` is its place in the tree."""

    text: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    finish: Literal["stop", "length", "tool_calls"]
    prompt_tokens: int
    tokens: int
    turn: Turn

    @property
    def message(self) -> dict[str, Any]:
        """To append to the messages before the next turn."""
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning is not None:
            found["reasoning_content"] = self.reasoning
        if self.calls:
            calls = [(call.id, {"name": call.name, "arguments": call.arguments}) for call in self.calls]
            found["tool_calls"] = [{"id": id, "type": "function", "function": function} for id, function in calls]
        return found


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """A turn that may be sampled: it goes on behind ``parent`` with ``added``; ``front`` [P] is all that is seen."""

    dialog: tuple[ChatMessage, ...]
    tools: str
    parent: Turn | None
    added: tuple[int, ...]
    front: Packed[int]
    limit: int
    stop: tuple[str, ...]
    prefill: str


Place = Callable[[], AbstractAsyncContextManager[None]]


class Chat:
    """One episode's way to the policy; belongs to one event loop. Several turns may be asked for at once.

    ``request`` is the episode's; ``place`` holds its place in the engine while a turn is sampled; ``reads`` says that
    the answers have parsers.
    """

    def __init__(
        self,
        request: Request,
        engine: Generator,
        template: ChatTemplate,
        budget: Budget,
        place: Place,
        *,
        reads: bool = False,
    ) -> None:
        self._request, self._engine, self._template = request, engine, template
        self._budget, self._place, self._reads = budget, place, reads
        self.episode = EpisodeTree()
        self.over = ""
        """Why no turn is sampled any more, "" while one is."""
        self.ended = asyncio.Event()
        """Set with ``over``."""
        self._asked = self._asking = self._refusals = 0
        self._flying, self._closed = set[asyncio.Task[tuple[Trajectory, Spoken]]](), False
        self.sampled = self.prompted = self.cached = self.unread = self.replayed = 0
        """As in ``Used``."""

    @property
    def last(self) -> Turn | None:
        """The turn that was delivered last."""
        return max((self.episode.turns[number] for number in self.episode.delivered), key=_number, default=None)

    async def say(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        prefill: str = "",
    ) -> Reply:
        """Have the policy answer; ``prefill`` are words that the answer begins with.

        Raises EpisodeOver where turns, tokens or time are used up, ContextFull where the dialog leaves no room, and
        RequestRefused for what is no request, or messages that the policy's chat template does not take. EngineError as
        the engine, RuntimeError where one turn after the other is refused.
        """
        try:
            asked = self.ask(messages, tools=tools, max_tokens=max_tokens, stop=stop, prefill=prefill)
        except EpisodeError as error:
            await self._refused(error)
            raise
        reply = await self.sample(asked)
        self.deliver(reply)
        return reply

    def deliver(self, reply: Reply) -> None:
        """It has arrived: from now on it is learned from."""
        self.episode.deliver(reply.turn)

    def ask(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        prefill: str = "",
    ) -> PlannedTurn:
        """What ``say`` would ask of the engine, and whether it may; raises as that does."""
        _check_options(tools, max_tokens, stop, prefill)
        dialog = _messages(messages)
        try:
            known = canonical(list(tools))
        except ValueError as error:
            raise RequestRefused(f"tools: {error}") from None
        parent, added = self._continued(dialog, messages, known, tools)
        added = [*added, *self._template.says(prefill)] if prefill else added
        front = self.episode.ids(parent)
        front.extend(added)
        limit = self._room(len(front), max_tokens)
        return PlannedTurn(dialog, known, parent, tuple(added), Packed("i", front), limit, tuple(stop), prefill)

    async def sample(self, asked: PlannedTurn) -> Reply:
        """Have the engine answer; whether that arrives is known later (``deliver``). EpisodeOver, EngineError."""
        limit = self._room(len(asked.front), asked.limit)  # others may have begun since this was asked for
        self._asked += 1
        turn = replace(
            self._request,
            prompt=Prompt(self._request.prompt.id, asked.front),
            turn=self._asked,
            max_tokens=limit,
            stop=asked.stop,
        )
        self._asking += 1
        made = asyncio.create_task(self._made(turn, asked.tools), name="a turn")
        self._flying.add(made)
        try:
            trajectory, spoken = await made
        except asyncio.CancelledError:
            mine = asyncio.current_task()
            if not self._closed or mine is None or mine.cancelling():
                raise
            raise EpisodeOver(self.over) from None
        finally:
            made.cancel()
            self._flying.discard(made)
            self._asking -= 1
        return self._committed(asked, trajectory, spoken)

    async def close(self) -> None:
        """Nothing of it is in the engine any more. Whoever still waits for a turn is told EpisodeOver."""
        self.end("it has ended")
        self._closed = True
        for made in self._flying:
            made.cancel()
        if self._flying:
            await asyncio.wait(self._flying, timeout=CLOSE_S)

    async def _made(self, turn: Request, tools: str) -> tuple[Trajectory, Spoken]:
        async with self._place():
            if self._closed:  # while this waited; a budget that others have used up is none for it
                raise EpisodeOver(self.over)
            trajectory = await self._engine.generate(turn)
        return trajectory, await self._read(trajectory, tools)

    @property
    def used(self) -> Used:
        """What it took so far."""
        arrived = len(self.episode.delivered)
        return Used(arrived, self.sampled, self.prompted, self.cached, self.replayed, self.unread)

    def end(self, why: str) -> None:
        """Nothing is sampled any more, ``why``."""
        self.over = self.over or why
        self.ended.set()

    def branches(self) -> tuple[Branch, ...]:
        """Of what was delivered; that of the last turn first."""
        return self.episode.branches(self.last)

    async def _refused(self, error: EpisodeError) -> None:
        """Lets others go on: who asks in a loop, whatever the answer, would have the event loop for itself. Raises
        RuntimeError where that is so.
        """
        self._refusals += 1
        if self._refusals < REFUSALS:
            return await asyncio.sleep(0)
        await asyncio.sleep(REFUSED_S)
        raise RuntimeError(f"{self._refusals} turns were refused, the last one so: {error}") from error

    def _continued(
        self, asked: Sequence[ChatMessage], messages: Messages, known: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Turn | None, list[int]]:
        """The turn that a request goes on from, and the ids between that and the answer."""
        match = self.episode.match(asked, known)
        if match.turn is not None:
            last = match.turn.token_ids[-1] if len(match.turn.token_ids) else None
            rest = self._template.rest(messages[match.known - 1], last, messages[match.known :], tools)
            if rest is not None:
                return match.turn, rest
        ids = self._template.whole(messages, tools)
        parent = self.episode.behind(ids)
        return parent, ids[len(self.episode.ids(parent)) :]

    def _room(self, front: int, max_tokens: int | None) -> int:
        """Tokens that the answer may have. Raises EpisodeOver, ContextFull."""
        if not self.over and len(self.episode.turns) + self._asking >= self._budget.turns:
            self.end(f"it has had its {self._budget.turns} turns (rollout.turns)")
        left = self._budget.tokens - self.sampled
        if left < 1:
            self.end(f"it has sampled its {self._budget.tokens} tokens (model.episode_tokens)")
        if self.over:
            raise EpisodeOver(self.over)
        if front >= self._budget.context:
            raise ContextFull(
                f"This model's maximum context length is {self._budget.context} tokens. However, your messages have "
                f"{front} tokens. Please reduce their length."
            )
        return left if max_tokens is None else min(max_tokens, left)

    async def _read(self, trajectory: Trajectory, tools: str) -> Spoken:
        if trajectory.finish == "abort":
            raise EngineError(f"request {trajectory.id} was aborted")
        if not self._reads:
            return Spoken(trajectory.text)
        spoken = await self._engine.parse(trajectory.text, trajectory.token_ids, tools)
        self.unread += spoken.failed
        return spoken.whole

    def _committed(self, asked: PlannedTurn, trajectory: Trajectory, spoken: Spoken) -> Reply:
        text = asked.prefill + spoken.text
        calls = tuple(ToolCall(_call_id(trajectory.request.turn, n), *call) for n, call in enumerate(spoken.calls))
        raw = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        said = {"role": "assistant", "content": text, "tool_calls": raw, "reasoning": spoken.reasoning}
        turn = self.episode.commit(
            asked.dialog,
            asked.tools,
            asked.parent,
            asked.added,
            token_ids=trajectory.token_ids,
            logprobs=trajectory.logprobs,
            spans=trajectory.spans,
            finish=trajectory.finish,
            reply=message_of(said),
        )
        self.sampled += len(trajectory.token_ids)
        self.prompted += len(asked.front)
        self.cached += trajectory.cached_tokens
        finish: Literal["stop", "length", "tool_calls"] = "length" if trajectory.truncated else "stop"
        if calls and finish == "stop":
            finish = "tool_calls"
        return Reply(text, spoken.reasoning, calls, finish, len(asked.front), len(trajectory.token_ids), turn)


def _check_options(tools: Any, max_tokens: Any, stop: Any, prefill: Any) -> None:
    """Raises RequestRefused for what is not of its kind: a text for a list would be read letter by letter."""
    if not _is_list(tools) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestRefused("tools: use a list of mappings, as /v1/chat/completions has them")
    if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
        raise RequestRefused(f"max_tokens: {max_tokens!r} is no number of tokens; use 1 or more, or None")
    if not _is_list(stop) or not all(isinstance(word, str) and word for word in stop):
        raise RequestRefused(f"stop: {stop!r} is no list of texts; use one, such as ['end']")
    if not isinstance(prefill, str):
        raise RequestRefused(f"prefill: use text, not {type(prefill).__name__}")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _messages(raw: Any) -> tuple[ChatMessage, ...]:
    if not _is_list(raw):
        raise RequestRefused(f"messages: use a list of them, not {type(raw).__name__}")
    if not raw:
        raise RequestRefused("messages: it is empty; the policy has nothing to answer")
    found, ids = list[ChatMessage](), list[Any]()
    for number, message in enumerate(raw):
        if not isinstance(message, Mapping):
            hint = "; a reply's is reply.message" if isinstance(message, Reply) else ""
            raise RequestRefused(f"messages[{number}]: use a mapping, not {type(message).__name__}{hint}")
        try:
            read = message_of(message)
        except ValueError as error:
            raise RequestRefused(f"messages[{number}]: {error}") from None
        if read.role == "assistant":
            ids = [call.get("id") for call in message.get("tool_calls") or ()]
        elif read.role == "tool" and message.get("tool_call_id") in ids:
            read = replace(read, answers=ids.index(message["tool_call_id"]))
        found.append(read)
    return tuple(found)


def _number(turn: Turn) -> int:
    return turn.number


def _call_id(turn: int, number: int) -> str:
    """Nine letters or digits: some templates take no others."""
    return f"{turn % 100000:05d}{number % 10000:04d}"
