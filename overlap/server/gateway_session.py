"""An episode at the gateway: its requests, the turns that answer them, and the answers that are known."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from overlap.core.errors import EpisodeOver, OverlapError
from overlap.server.chat import Chat
from overlap.server.http_messages import AskedTurn, chat_events, failed_event
from overlap.server.turn_request import Reply

KEEP_S = 3.0
"""Seconds between two keep-alive comments on a stream whose turn is not ready."""
READ_AT_ONCE = 4
SAMPLED_AT_ONCE = 32
"""Turns of one episode that may be in the engine; more wait for them."""


@dataclass(slots=True, eq=False)
class GatewayTurn:
    """A turn that is planned, sampled or sent, until the last of its requests has the answer or has left. ``planned``
    is set once nothing of the request can be refused any more.
    """

    digest: str
    task: asyncio.Task[Reply]
    planned: asyncio.Event = field(default_factory=asyncio.Event)
    requests: int = 0

    @property
    def reply(self) -> Reply | None:
        """The answer; None before there is one, and after a failure."""
        failed = not self.task.done() or self.task.cancelled() or self.task.exception() is not None
        return None if failed else self.task.result()


@dataclass(slots=True, eq=False)
class GatewaySession:
    """The requests of one episode and their answers. ``on_fault`` gets an error that is no fault of a request."""

    chat: Chat
    on_fault: Callable[[Exception], None]
    replies: dict[str, list[Reply]] = field(default_factory=dict)
    flying: list[GatewayTurn] = field(default_factory=list)
    asking: set[asyncio.Task[Any]] = field(default_factory=set)
    inside: int = 0
    """Requests that are being read or answered."""
    ended: bool = False
    long: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a long body is read: an episode has one at a time."""
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READ_AT_ONCE))
    """Held while any is read or planned, so that others have their turn on the event loop between those of one
    episode."""
    _sampling: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SAMPLED_AT_ONCE))

    def known(self, asked: AskedTurn, again: bool) -> GatewayTurn | Reply | None:
        """Return the answer that this request repeats: one that never arrived and is not being sent; or, where the
        client declares a retry, one that arrived or is being sent. None without one.
        """
        made = self.replies.get(asked.digest, [])
        flying = [turn for turn in self.flying if turn.digest == asked.digest]
        sent = {turn.reply.turn.number for turn in flying if turn.reply is not None} | self.chat.episode.delivered
        lost = next((reply for reply in made if reply.turn.number not in sent), None)
        if lost is not None or not again:
            return lost
        return flying[-1] if flying else made[-1] if made else None

    def turn(self, asked: AskedTurn, again: bool) -> GatewayTurn:
        """The turn that answers this request, new or known."""
        known = self.known(asked, again)
        if known is not None:
            self.chat.replayed += 1
        if isinstance(known, GatewayTurn):
            return known
        planned = asyncio.Event()
        work = self._answered(asked, planned) if known is None else asyncio.sleep(0, known)
        task = asyncio.create_task(work, name="a turn of a harness")
        if known is None:
            self.chat.ignored.update(asked.ignored)
            self.asking.add(task)
            task.add_done_callback(self._forget)
        else:
            planned.set()
        self.flying.append(turn := GatewayTurn(asked.digest, task, planned))
        return turn

    async def _answered(self, asked: AskedTurn, planned: asyncio.Event) -> Reply:
        async with self.reading:
            plan = await self.chat.plan(asked.turn)
        planned.set()
        async with self._sampling:
            reply = await self.chat.sample(plan)
        self.replies.setdefault(asked.digest, []).append(reply)
        return reply

    def _forget(self, done: asyncio.Task[Reply]) -> None:
        self.asking.discard(done)
        error = None if done.cancelled() else done.exception()  # retrieved, also where no caller awaits it
        if isinstance(error, Exception) and not isinstance(error, OverlapError):
            self.on_fault(error)

    @contextlib.contextmanager
    def awaiting(self, turn: GatewayTurn) -> Iterator[None]:
        """Cancel the turn when no request waits for it any more."""
        turn.requests += 1
        try:
            yield
        finally:
            turn.requests -= 1
            if not turn.requests:
                self.flying.remove(turn)
                turn.task.cancel()

    @contextlib.contextmanager
    def being_answered(self) -> Iterator[None]:
        """Count a request as inside."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    @property
    def over(self) -> EpisodeOver:
        """The error for a request that the end of the episode leaves without an answer."""
        return EpisodeOver(self.chat.over or "it has ended")

    def reply_of(self, turn: GatewayTurn) -> Reply:
        """The answer of a turn that is done. Raises its error."""
        if turn.task.cancelled():
            raise self.over
        return turn.task.result()

    def end(self) -> None:
        """Take the turns of the episode back."""
        self.ended = True
        for task in self.asking:
            task.cancel()


async def as_events(session: GatewaySession, turn: GatewayTurn, usage: bool) -> AsyncIterator[bytes]:
    """The answer as server-sent events."""
    while not turn.task.done():
        await asyncio.wait([turn.task], timeout=KEEP_S)
        if not turn.task.done():
            yield b": the policy is at work\n\n"
    error = session.over if turn.task.cancelled() else turn.task.exception()
    if error is not None:
        yield failed_event(str(error) if isinstance(error, OverlapError) else "the gateway has a fault")
        return
    reply = turn.task.result()
    *parts, last = chat_events(reply, int(time.time()), usage)
    for part in parts:
        yield part
    session.chat.deliver(reply)  # before the end of the stream, behind which a client asks for more
    yield last


async def disconnected(request: Request) -> None:
    """Returns when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
