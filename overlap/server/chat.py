"""The policy as the code of a rollout uses it: messages in, an answer out.

    say ──▶ match ──▶ ids in front ──▶ engine ──▶ parse ──▶ Reply
              └──────────── the episode's tree keeps the ids ─────────────┘

consumes: messages                          produces: turns of an episode, replies
waits for: a slot, the engine               woken by: the end of a response
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
ReplyFinish = Literal["stop", "length", "tool_calls"]
CLOSE_S = 10.0
"""Seconds within which the engine ends a turn that was cancelled."""
REFUSALS, REFUSED_S = 100, 1.0
"""So many refused turns of ``say`` in one episode are an error of the rollout, raised after REFUSED_S seconds."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of an episode: number of answers, tokens sampled in all, tokens of one dialog."""

    turns: int
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the policy. ``arguments`` is its text, JSON if the policy wrote JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the policy: ``tokens`` sampled behind ``prompt_tokens``. ``turn`` is its turn in the tree."""

    text: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    finish: ReplyFinish
    prompt_tokens: int
    tokens: int
    turn: Turn

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to be appended to the messages of the next turn."""
        found: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning is not None:
            found["reasoning_content"] = self.reasoning
        if self.calls:
            calls = [(call.id, {"name": call.name, "arguments": call.arguments}) for call in self.calls]
            found["tool_calls"] = [{"id": id, "type": "function", "function": function} for id, function in calls]
        return found


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """A turn that may be sampled: ``added`` behind turn ``parent``; ``front`` [P] is the whole prompt, ids."""

    dialog: tuple[ChatMessage, ...]
    tools: str
    parent: Turn | None
    added: tuple[int, ...]
    front: Packed[int]
    limit: int
    stop: tuple[str, ...]
    prefill: str


Slot = Callable[[], AbstractAsyncContextManager[None]]


class Chat:
    """One episode's access to the policy; belongs to one event loop. Several turns may be sampled at once.

    ``request`` is the episode's; ``slot`` holds its slot in the engine while a turn is sampled; ``reads`` says that
    answers are parsed for reasoning and tool calls.
    """

    def __init__(
        self,
        request: Request,
        engine: Generator,
        template: ChatTemplate,
        budget: Budget,
        slot: Slot,
        *,
        reads: bool = False,
    ) -> None:
        self._request, self._engine, self._template = request, engine, template
        self._budget, self._slot, self._reads = budget, slot, reads
        self.episode = EpisodeTree()
        self.over = ""
        """Why no more turns are sampled; "" while they are."""
        self.ended = asyncio.Event()
        """Set with ``over``."""
        self._asked = self._asking = self._refusals = 0
        self._flying, self._closed = set[asyncio.Task[tuple[Trajectory, Spoken]]](), False
        self.sampled = self.prompted = self.cached = self.unread = self.replayed = 0
        """As in ``Used``."""
        self.out_of_time = False

    @property
    def last(self) -> Turn | None:
        """The turn that was delivered last."""
        return self.episode.turns[max(self.episode.delivered)] if self.episode.delivered else None

    async def say(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        prefill: str = "",
    ) -> Reply:
        """Have the policy answer; the answer begins with ``prefill``.

        Raises EpisodeOver when turns, tokens or time are used up, ContextFull when the dialog leaves no room,
        RequestRefused for an invalid request or messages that the chat template refuses, EngineError as the engine
        does, and RuntimeError when one turn after the other is refused.
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
        """Note that the reply has arrived: delivered turns are trained on."""
        self.episode.delivered.add(reply.turn.number)

    def ask(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        prefill: str = "",
    ) -> PlannedTurn:
        """Plan the turn that ``say`` would sample. Raises what ``say`` raises for requests that are refused."""
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
        """Have the engine answer; call ``deliver`` once the reply has arrived. Raises EpisodeOver, EngineError."""
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
        """End the episode: turns in the engine are cancelled, and everything that waits for one gets EpisodeOver."""
        self.end("it has ended")
        self._closed = True
        for made in self._flying:
            made.cancel()
        if self._flying:
            await asyncio.wait(self._flying, timeout=CLOSE_S)

    async def _made(self, turn: Request, tools: str) -> tuple[Trajectory, Spoken]:
        async with self._slot():
            if self._closed:  # while this waited; a budget that others have used up is none for it
                raise EpisodeOver(self.over)
            trajectory = await self._engine.generate(turn)
        return trajectory, await self._read(trajectory, tools)

    @property
    def used(self) -> Used:
        """What the episode has used so far."""
        arrived = len(self.episode.delivered)
        return Used(arrived, self.sampled, self.prompted, self.cached, self.replayed, self.unread, self.out_of_time)

    def end(self, why: str) -> None:
        """Sample no more turns; ``why`` is the reason that EpisodeOver gives."""
        self.over = self.over or why
        self.ended.set()

    def end_by_time(self, seconds: float) -> None:
        """Sample no more turns, because ``episode.timeout_s`` has passed."""
        self.out_of_time = not self.over  # one that another budget ended was no faster elsewhere
        self.end(f"its {seconds:g} s are up (episode.timeout_s)")

    def branches(self) -> tuple[Branch, ...]:
        """The branches of the delivered turns, that of the last turn first."""
        return self.episode.branches()

    async def _refused(self, error: EpisodeError) -> None:
        """Let other tasks run: a rollout that asks in a loop, whatever the answer, would block the event loop. Raises
        RuntimeError for such a rollout.
        """
        self._refusals += 1
        if self._refusals < REFUSALS:
            return await asyncio.sleep(0)
        await asyncio.sleep(REFUSED_S)
        raise RuntimeError(f"{self._refusals} turns were refused, the last one so: {error}") from error

    def _continued(
        self, asked: Sequence[ChatMessage], messages: Messages, known: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Turn | None, list[int]]:
        """Returns the turn that a request continues, and the ids between that turn and the answer."""
        turn = self.episode.match(asked, known)
        if turn is not None:
            last, end = turn.token_ids[-1] if len(turn.token_ids) else None, len(turn.dialog)
            rest = self._template.continuation(messages[end - 1], last, messages[end:], tools)
            if rest is not None:
                return turn, rest
        ids = self._template.whole(messages, tools)
        parent = self.episode.behind(ids)
        return parent, ids[len(self.episode.ids(parent)) :]

    def _room(self, front: int, max_tokens: int | None) -> int:
        """Number of tokens that the answer may have. Raises EpisodeOver, ContextFull."""
        if not self.over and len(self.episode.turns) + self._asking >= self._budget.turns:
            self.end(f"it has had its {self._budget.turns} turns (episode.turns)")
        left = self._budget.tokens - self.sampled
        if left < 1:
            self.end(f"it has sampled its {self._budget.tokens} tokens (episode.tokens)")
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
        id = f"{trajectory.request.turn % 100000:05d}"  # nine digits in all: some templates take no other ids
        calls = tuple(ToolCall(f"{id}{n % 10000:04d}", *call) for n, call in enumerate(spoken.calls))
        raw = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        said = {"role": "assistant", "content": text, "tool_calls": raw, "reasoning": spoken.reasoning}
        turn = self.episode.commit(
            asked.dialog, asked.tools, asked.parent, asked.added, made=trajectory, reply=message_of(said)
        )
        self.sampled += len(trajectory.token_ids)
        self.prompted += len(asked.front)
        self.cached += trajectory.cached_tokens
        finish: ReplyFinish = "length" if trajectory.truncated else "tool_calls" if calls else "stop"
        return Reply(text, spoken.reasoning, calls, finish, len(asked.front), len(trajectory.token_ids), turn)


def _check_options(tools: Any, max_tokens: Any, stop: Any, prefill: Any) -> None:
    """Raises RequestRefused for a wrong type: a text in place of a list would be read letter by letter."""
    if not _is_list(tools) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestRefused("tools: use a list of mappings, as /v1/chat/completions has them")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
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
