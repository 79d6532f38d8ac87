"""Episodes of a hostile harness on the real engine: ids are what it saw, and each token is trained once."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chats import Sampled, check_books, said, user
from engine_bench import Bench
from places import SUPPORT
from wide import wide

from overlap.config import Config, ModelConfig, RolloutConfig
from overlap.core import Prompt, Request, Trajectory
from overlap.errors import ContextFull
from overlap.pipeline.parity import logprob_gaps
from overlap.server import Chat, ChatTemplate
from overlap.server.chat import Budget

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

BOUND = 1e-4
CFG = Config(
    model=ModelConfig(dtype="float32", prompt_tokens=200, response_tokens=24, episode_tokens=800),
    rollout=RolloutConfig(temperature=0.7, max_sequences=16),
)
BUDGET = Budget(turns=40, tokens=2000, context=CFG.model.context_tokens)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    from overlap.policy import make_tiny_policy

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT))
        bench = Bench(CFG, make_tiny_policy(tmp_path_factory.mktemp("policy") / "tiny"), tmp_path_factory.mktemp("s"))
        yield bench
        bench.close()


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
        limit, count = rng.choice([None, None, 1, 5]), rng.choice([1, 1, 2, 3])
        try:
            plans = [chat.ask(messages, max_tokens=limit) for _ in range(count)]
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


@asynccontextmanager
async def _free():
    yield


@pytest.mark.parametrize("episodes", [40, wide(1000)])
def test_whatever_a_harness_does_the_learner_is_given_what_the_engine_saw(bench, episodes: int) -> None:
    from transformers import AutoTokenizer

    bench.run(bench.generator.load(bench.update()))
    template = ChatTemplate(AutoTokenizer.from_pretrained(bench.model.name_or_path))
    assert template.goes_on

    async def one(number: int, at_once: asyncio.Semaphore) -> tuple[Chat, Watched]:
        engine, request = Watched(bench.generator), Request(number, 0, Prompt(f"p{number}", (1, 2)))
        chat = Chat(request, engine, template, BUDGET, _free)
        async with at_once:
            await hostile(random.Random(number), chat)
        return chat, engine

    async def main() -> list[tuple[Chat, Watched]]:
        at_once = asyncio.Semaphore(16)
        return await asyncio.gather(*(one(number, at_once) for number in range(episodes)))

    found = bench.runner.run(main())
    turns = branches = 0
    worst = 0.0
    for chat, engine in found:
        check_books(engine.sampled, chat)
        for branch in chat.branches():
            ours, _ = bench.logprobs([*branch.prompt_ids, *branch.token_ids])
            ours = ours[len(branch.prompt_ids) - 1 :]
            at = [place for place, own in enumerate(branch.mask) if own]
            gaps = logprob_gaps([branch.logprobs[t] for t in at], [ours[t] for t in at])
            worst = max([worst, *gaps])
        turns, branches = turns + len(chat.episode.turns), branches + len(chat.branches())
    print(f"{episodes} episodes, {turns} turns, {branches} branches, largest gap {worst:.2e} nats")
    assert worst <= BOUND
    assert branches > episodes
