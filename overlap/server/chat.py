"""The policy as the code of a rollout uses it: messages in, an answer out.

    say ──▶ match ──▶ ids in front ──▶ engine ──▶ parse ──▶ Reply
              └──────────── the episode's tree keeps the ids ─────────────┘

consumes: messages                          produces: turns of an episode, replies
waits for: a slot, the engine               woken by: the end of a response
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from overlap.core import Generator, Packed, Prompt, Request, Spoken, Trajectory, Used
from overlap.core.errors import EngineError, EpisodeError, EpisodeOver, one_line
from overlap.server.episode_tree import NO_TOOLS, ChatMessage, EpisodeTree, Turn, message_of
from overlap.server.template import ChatTemplate
from overlap.server.turn_request import (
    Messages,
    Reply,
    ReplyFinish,
    RequestRules,
    ToolCall,
    TurnRequest,
    characters_of,
    context_full,
    holds_call,
    parameter_of,
    turn_request,
)
from sandbox.core.checks import printable

CLOSE_S = 10.0
"""Seconds within which the engine ends a turn that was cancelled."""
REFUSALS, REFUSED_S = 100, 1.0
"""Refused turns of ``say`` in one episode that are an error of the rollout, raised after REFUSED_S seconds."""
REFUSAL_LETTERS = 500
SHORT = 8192
"""Characters that are rendered on the event loop, which takes some milliseconds; more are rendered in a thread."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of an episode: number of answers, tokens sampled in all, tokens of one dialog."""

    turns: int
    tokens: int
    context: int


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """A turn that may be sampled, of at most ``limit`` tokens: ``added`` behind turn ``parent``; ``front`` [P] is the
    whole prompt, ids.
    """

    wanted: TurnRequest
    parent: Turn | None
    added: tuple[int, ...]
    front: Packed[int]
    limit: int


Slot = Callable[[], AbstractAsyncContextManager[None]]


class Chat:
    """One episode's access to the policy; belongs to one event loop. Several turns may be sampled at once.

    ``request`` is the episode's; ``slot`` holds its slot in the engine while a turn is sampled; ``reads`` says that
    answers are parsed for reasoning and tool calls; ``rules`` say what an agent program's requests may ask; ``note``
    gets the kind of each remark for the user, and the text that it is about.
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
        rules: RequestRules | None = None,
        note: Callable[[str, str], None] = lambda kind, text: None,
    ) -> None:
        self._request, self._engine, self._template = request, engine, template
        self._budget, self._slot, self._reads, self.rules = budget, slot, reads, rules or RequestRules()
        self._note = note
        self.episode = EpisodeTree()
        self.over = ""
        """Reason that no more turns are sampled; "" while they are."""
        self.ended = asyncio.Event()
        """Set with ``over``."""
        self.asked = 0
        """Number of turns that the engine was asked for."""
        self._asking = self._refusals = 0
        self.full, self._after_full = False, 0
        """True when the last turn that a program requested was refused because the dialog fills the context."""
        self._flying, self._closed = set[asyncio.Task[tuple[Trajectory, Spoken]]](), False
        self._thread = asyncio.Lock()
        self.sampled = self.prompted = self.cached = self.unread = self.replayed = self.rerendered = 0
        self.refused, self.ignored = Counter[str](), Counter[str]()
        """As in ``Used``."""
        self.out_of_time = False
        self.refusal = ""
        """The first refusal of a turn, "" without one."""

    @property
    def spent(self) -> bool:
        """True when a budget is used up, or the context as far as is known."""
        return bool(self.over) or self.full

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
            wanted = turn_request(messages, tools=tools, max_tokens=max_tokens, stop=stop, prefill=prefill)
            planned = await self.plan(wanted)
        except EpisodeError as error:
            await self._refused(error)
            raise
        reply = await self.sample(planned)
        self.deliver(reply)
        return reply

    def deliver(self, reply: Reply) -> None:
        """Note that the reply has arrived: delivered turns are trained on."""
        self.episode.delivered.add(reply.turn.number)
        self.full = self.full and reply.turn.number < self._after_full

    def refuse(self, parameter: str, why: str) -> None:
        """Count a refused request; that the episode is over is no refusal."""
        self.refused[parameter] += 1
        self.refusal = self.refusal or printable(one_line(why, REFUSAL_LETTERS))

    def fill(self) -> None:
        """Note that a program met the end of the context. Unless a turn that it asks for later arrives, the episode is
        truncated.
        """
        self.full, self._after_full = True, len(self.episode.turns) + self._asking

    async def plan(self, wanted: TurnRequest) -> PlannedTurn:
        """Plan a turn. Raises EpisodeOver when turns, tokens or time are used up, ContextFull, and RequestRefused for
        messages that the chat template refuses.
        """
        self._room(0, None)  # before a long text is rendered in vain
        least = wanted.characters // self._template.longest  # tokens, whatever they are
        if least >= self._budget.context:
            raise context_full(self._budget.context, f"more than {least}")
        parent, added = await self._continued(wanted)
        if wanted.prefill:
            added = [*added, *self._template.says(wanted.prefill)]
        front = self.episode.ids(parent)
        front.extend(added)
        limit = self._room(len(front), wanted.max_tokens)
        return PlannedTurn(wanted, parent, tuple(added), Packed("i", front), limit)

    async def in_thread(self, characters: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do ``work`` on this number of characters: on the event loop where it is short, else in a thread, one piece of
        work of this episode at a time. After a cancellation the thread ends its work, and the next one waits for that.
        """
        if characters <= SHORT:
            return work(*args, **kwargs)

        def leave(done: asyncio.Future[T]) -> None:
            self._thread.release()
            done.exception()  # retrieved, also where no caller awaits it

        await self._thread.acquire()
        loop, threads = asyncio.get_running_loop(), self._template.threads
        working = loop.run_in_executor(threads, partial(work, *args, **kwargs))
        working.add_done_callback(leave)
        return await asyncio.shield(working)

    async def sample(self, planned: PlannedTurn) -> Reply:
        """Have the engine answer; call ``deliver`` once the reply has arrived. Raises EpisodeOver, EngineError."""
        limit = self._room(len(planned.front), planned.limit)  # others may have begun since this was asked for
        self.asked += 1
        turn = replace(
            self._request,
            prompt=Prompt(self._request.prompt.id, planned.front),
            turn=self.asked,
            max_tokens=limit,
            stop=planned.wanted.stop,
        )
        self._asking += 1
        made = asyncio.create_task(self._made(turn, planned.wanted.tools), name="a turn")
        self._flying.add(made)
        try:
            await asyncio.wait([made])
        finally:
            made.cancel()
            self._flying.discard(made)
            self._asking -= 1
        if made.cancelled() and self._closed:
            raise EpisodeOver(self.over)
        return self._committed(planned, *made.result())

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
        """Resources that the episode has used so far."""
        arrived = len(self.episode.delivered)
        return Used(
            arrived, self.sampled, self.prompted, self.cached, self.replayed, self.unread, self.out_of_time,
            self.rerendered, dict(self.refused), dict(self.ignored),
        )  # fmt: skip

    def end(self, why: str) -> None:
        """Sample no more turns; ``why`` is the reason that EpisodeOver gives."""
        self.over = self.over or why
        self.ended.set()

    def end_by_time(self, seconds: float) -> None:
        """Sample no more turns, because ``episode.timeout_s`` has passed."""
        self.out_of_time = not self.over  # one that another budget ended was no faster elsewhere
        self.end(f"its {seconds:g} s are up (episode.timeout_s)")

    def branches(self, started_s: float = 0.0, finished_s: float = 0.0) -> tuple[Trajectory, ...]:
        """The branches of the delivered turns, that of the last turn first, without their text."""
        return self.episode.branches(Trajectory(self._request, (), (), "", "stop", (), started_s, finished_s))

    async def _refused(self, error: EpisodeError) -> None:
        """Let other tasks run: a rollout that asks in a loop, whatever the answer, would block the event loop. Raises
        RuntimeError for such a rollout.
        """
        if not isinstance(error, EpisodeOver):
            self.refuse(parameter_of(error), str(error))
        self._refusals += 1
        if self._refusals < REFUSALS:
            return await asyncio.sleep(0)
        await asyncio.sleep(REFUSED_S)
        raise RuntimeError(f"{self._refusals} turns were refused, the last one so: {error}") from error

    async def _continued(self, wanted: TurnRequest) -> tuple[Turn | None, list[int]]:
        """Returns the turn that a request continues, and the ids between that turn and the answer."""
        turn, messages = self.episode.match(wanted.dialog, wanted.tools), wanted.messages
        self._look_for_turns(wanted.dialog[len(turn.dialog) if turn else 0 :])
        if turn is not None:
            end = len(turn.dialog)
            characters = characters_of(wanted.dialog[end:]) + len(wanted.tools)
            last = turn.token_ids[-1] if len(turn.token_ids) else None
            rest = await self.in_thread(
                characters, self._template.continuation, messages[end - 1], last, messages[end:], wanted.offered
            )
            if rest is not None:
                return turn, rest
        ids = await self.in_thread(wanted.characters, self._template.whole, messages, wanted.offered)
        return self._attached(ids, turn)

    def _look_for_turns(self, new: Sequence[ChatMessage]) -> None:
        """Count texts that the chat template shows as turns, where it cannot do otherwise."""
        mark = self._template.plain_mark
        for message in new if mark else ():
            if mark in message.text:
                self.ignored["turn_marks"] += 1
                self._note("turn_marks", message.text)

    def _attached(self, ids: list[int], turn: Turn | None) -> tuple[Turn | None, list[int]]:
        """Return the deepest turn that wholly rendered ids begin with, and the ids behind it; ``turn`` could not be
        continued.
        """
        parent = self.episode.behind(ids)
        kept = len(self.episode.ids(parent))
        self.rerendered += max(0, len(self.episode.ids(turn)) - kept)
        return parent, ids[kept:]

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
            raise context_full(self._budget.context, str(front))
        return left if max_tokens is None else min(max_tokens, left)

    async def _read(self, trajectory: Trajectory, tools: str) -> Spoken:
        if trajectory.finish == "abort":
            raise EngineError(f"request {trajectory.id} was aborted")
        spoken = Spoken(trajectory.text)
        if self._reads:
            spoken = (await self._engine.parse(trajectory.text, trajectory.token_ids, tools)).whole
        if spoken.failed or (tools != NO_TOOLS and not spoken.calls and holds_call(trajectory.text, tools)):
            self.unread += 1
            self._note("unread", trajectory.text)
        return spoken

    def _committed(self, planned: PlannedTurn, trajectory: Trajectory, spoken: Spoken) -> Reply:
        wanted = planned.wanted
        text = wanted.prefill + spoken.text
        id = f"{trajectory.request.turn % 100000:05d}"  # nine digits in all: some templates take no other ids
        calls = tuple(ToolCall(f"{id}{n % 10000:04d}", *call) for n, call in enumerate(spoken.calls))
        raw = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        said = {"role": "assistant", "content": text, "tool_calls": raw, "reasoning": spoken.reasoning}
        turn = self.episode.commit(
            wanted.dialog, wanted.tools, planned.parent, planned.added, made=trajectory, reply=message_of(said)
        )
        self.sampled += len(trajectory.token_ids)
        self.prompted += len(planned.front)
        self.cached += trajectory.cached_tokens
        finish: ReplyFinish = "length" if trajectory.truncated else "tool_calls" if calls else "stop"
        return Reply(text, spoken.reasoning, calls, finish, len(planned.front), len(trajectory.token_ids), turn)
