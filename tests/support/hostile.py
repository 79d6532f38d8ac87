"""A harness that does to the history of its episodes whatever it can, and what must come of that."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from chats import Sampled, check_books, free, planned, said, user
from engine_bench import Bench

from overlap.core import Prompt, Request, Trajectory
from overlap.core.errors import ContextFull
from overlap.pipeline.parity import logprob_gaps
from overlap.server.chat import Budget, Chat
from overlap.server.template import ChatTemplate

BOUND = 1e-4


class Watched:
    """An engine, and what it saw and sampled for an episode."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.sampled = engine, list[Sampled]()

    async def generate(self, request: Request) -> Trajectory:
        made: Trajectory = await self._engine.generate(request)
        self.sampled.append((tuple(request.prompt.token_ids), tuple(made.token_ids), tuple(made.logprobs)))
        return made


async def hostile(rng: random.Random, chat: Chat) -> None:
    """Goes on, edits history, asks again and at once, sums up, leaves, forgets, and speaks for others."""
    dialogs: list[list[dict[str, Any]]] = [[user("root")]]
    for _ in range(rng.randrange(2, 9)):
        messages = list(rng.choice(dialogs))
        match rng.randrange(8):
            case 0:
                place = rng.randrange(len(messages))
                messages[place:] = [user(rng.choice(["another past", "\u00e4\u4e16 \u0000"]))]
            case 1:
                messages += [said("what nobody said"), user("go on")]
            case 2:
                messages = [{"role": "system", "content": "you help"}, user("a part of it")]
            case 3:
                messages = [user("in short: " + " ".join(m["content"][:5] for m in messages))]
        limit, count = rng.choice([24, 24, 1, 5]), rng.choice([1, 1, 2, 3])
        try:
            plans = [await planned(chat, messages, max_tokens=limit) for _ in range(count)]
        except ContextFull:
            continue
        tasks = [asyncio.create_task(chat.sample(plan)) for plan in plans]
        if rng.random() < 0.15:
            await asyncio.sleep(0)
            tasks[0].cancel()
        for reply in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(reply, asyncio.CancelledError):
                continue
            assert not isinstance(reply, BaseException), reply
            if rng.random() < 0.85:
                chat.deliver(reply)
                dialogs.append([*messages, reply.message, user(rng.choice(["go on", "wrong: try again", ""]))])


async def hostile_episodes(
    engine: Any, policy: Path, context: int, first: int, last: int
) -> list[tuple[Chat, Watched]]:
    """The chats of episodes of a hostile harness on an engine of this policy, 16 at once, and what the engine saw."""
    from transformers import AutoTokenizer

    template = ChatTemplate(AutoTokenizer.from_pretrained(policy))
    assert template.continues
    at_once, budget = asyncio.Semaphore(16), Budget(turns=40, tokens=2000, context=context)

    async def one(number: int) -> tuple[Chat, Watched]:
        watched, request = Watched(engine), Request(number, 0, Prompt(f"p{number}", (1, 2)))
        chat = Chat(request, watched, template, budget, free)
        async with at_once:
            await hostile(random.Random(number), chat)
        return chat, watched

    return await asyncio.gather(*(one(number) for number in range(first, last)))


def check_episodes(bench: Bench, found: list[tuple[Chat, Watched]]) -> None:
    """Each token that arrived is trained once, behind what the engine saw, and the learner agrees on it."""
    turns = branches = 0
    worst = 0.0
    for chat, engine in found:
        check_books(engine.sampled, chat)
        for branch in chat.branches():
            ours, _ = bench.logprobs([*branch.prompt_ids, *branch.token_ids])
            ours = ours[len(branch.prompt_ids) - 1 :]
            at = [place for place, own in enumerate(branch.mask or b"\1" * len(branch.token_ids)) if own]
            gaps = logprob_gaps([branch.logprobs[t] for t in at], [ours[t] for t in at])
            worst = max([worst, *gaps])
        turns, branches = turns + len(chat.episode.turns), branches + len(chat.branches())
    print(f"{len(found)} episodes, {turns} turns, {branches} branches, largest gap {worst:.2e} nats")
    assert worst <= BOUND
    assert branches > len(found)
