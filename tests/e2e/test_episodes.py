"""Episodes of a hostile harness on the real engine: ids are what it saw, and each token is trained once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chats import Sampled, check_books, said, user
from engine_bench import Bench
from places import SUPPORT
from wide import wide

from overlap.config import Config, EpisodeConfig, ModelConfig, RolloutConfig
from overlap.core import Prompt, Request, Trajectory
from overlap.errors import ContextFull
from overlap.generate import EngineClient, Engines, RestartPolicy
from overlap.pipeline.parity import logprob_gaps
from overlap.process import read_proc
from overlap.server import Chat, ChatTemplate
from overlap.server.chat import Budget

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

BOUND = 1e-4
CFG = Config(
    model=ModelConfig(dtype="float32", prompt_tokens=200, response_tokens=24),
    rollout=RolloutConfig(temperature=0.7, max_sequences=16),
    episode=EpisodeConfig(tokens=800),
)
BUDGET = Budget(turns=40, tokens=2000, context=CFG.context_tokens)


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


def template_of(bench: Bench) -> ChatTemplate:
    from transformers import AutoTokenizer

    return ChatTemplate(AutoTokenizer.from_pretrained(bench.model.name_or_path))


async def rolled_out(engine: Any, template: ChatTemplate, first: int, last: int) -> list[tuple[Chat, Watched]]:
    """Episodes of a hostile harness, 16 at once."""
    at_once = asyncio.Semaphore(16)

    async def one(number: int) -> tuple[Chat, Watched]:
        watched, request = Watched(engine), Request(number, 0, Prompt(f"p{number}", (1, 2)))
        chat = Chat(request, watched, template, BUDGET, _free)
        async with at_once:
            await hostile(random.Random(number), chat)
        return chat, watched

    return await asyncio.gather(*(one(number) for number in range(first, last)))


def check(bench: Bench, found: list[tuple[Chat, Watched]]) -> None:
    """Each token that arrived is trained once, behind what the engine saw, and the learner agrees on it."""
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
    print(f"{len(found)} episodes, {turns} turns, {branches} branches, largest gap {worst:.2e} nats")
    assert worst <= BOUND
    assert branches > len(found)


@pytest.mark.parametrize("episodes", [40, wide(1000)])
def test_whatever_a_harness_does_the_learner_is_given_what_the_engine_saw(bench, episodes: int) -> None:
    bench.run(bench.generator.load(bench.update()))
    template = template_of(bench)
    assert template.continues
    check(bench, bench.runner.run(rolled_out(bench.generator, template, 0, episodes)))


@pytest.mark.parametrize("kills", [wide(6)])
def test_whichever_engine_is_killed_each_turn_of_an_episode_is_trained_once(bench, tmp_path, kills: int) -> None:
    policy, rng = Path(bench.model.name_or_path), random.Random(kills)

    def maker(number: int) -> partial[EngineClient]:
        scratch = tmp_path / str(number)
        scratch.mkdir()
        return partial(EngineClient, CFG, policy, scratch, standalone=True)

    replicas = Engines([maker(number) for number in range(2)], policy=RestartPolicy(restarts=kills), serving=True)

    async def kill() -> None:
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            victim = rng.choice(replicas._slots)
            again = victim.restarts + 1
            parts = [pid for pid in victim.engine.pids() if b"resource_tracker" not in read_proc(pid, "cmdline")]
            struck = rng.choice(parts)
            print("killed:", read_proc(struck, "cmdline"), flush=True)
            os.kill(struck, signal.SIGKILL)
            async with asyncio.timeout(300):
                while victim.restarts < again:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    async def main() -> list[tuple[Chat, Watched]]:
        await replicas.start()
        killing, found = asyncio.create_task(kill()), list[tuple[Chat, Watched]]()
        while not killing.done():
            found += await rolled_out(replicas, template_of(bench), len(found), len(found) + 40)
        await killing
        return found

    try:
        found = bench.runner.run(main())
    finally:
        bench.run(replicas.close())
    assert replicas.resent
    check(bench, found)
