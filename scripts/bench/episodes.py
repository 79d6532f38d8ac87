"""Episodes by ``Task.rollout`` and by the gateway, beside the same requests to the bare engine.

    direct    the same prompts, as bare requests           tokens/s, the measure
    chat      ``Task.rollout``: Chat.say, turn by turn     share of that
    gateway   a client over HTTP in a process of its own   share of that, ms added per turn, CPU of both

Tiny policy, one engine on the CPU. Bar: 0.6 of the tokens per second.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _shared import argument_parser

from overlap.config.load import load_config
from overlap.core import Prompt, Request
from overlap.generate.client import EngineClient
from overlap.policy.tiny import make_tiny_policy
from overlap.run.open_close import gc_frozen
from overlap.server.chat import Budget, Chat
from overlap.server.gateway import Gateway
from overlap.server.template import ChatTemplate

TOKENS = 32
WIDE = Budget(turns=1000, tokens=10**9, context=2000)
"""A budget that no episode here reaches."""
SETTINGS = ["model.dtype=float32", "run.device=cpu", "model.prompt_tokens=1000", "model.response_tokens=1000"]
CLIENT = Path(__file__).with_name("_episodes_client.py")


class Watched:
    """The engine, with what it was asked and how long each turn took in it, s."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.asked, self.tokens = engine, list[Request](), 0
        self.seconds: dict[tuple[int, int], float] = {}

    async def generate(self, request: Request) -> Any:
        began = time.monotonic()
        made = await self._engine.generate(request)
        self.asked.append(request)
        self.seconds[request.group, request.turn] = time.monotonic() - began
        self.tokens += len(made.token_ids)
        return made


@asynccontextmanager
async def free() -> AsyncIterator[None]:
    """Stand for a place in the engine that is always free."""
    yield


def chats(engine: Any, template: ChatTemplate, count: int) -> list[Chat]:
    return [Chat(Request(n, 0, Prompt(f"p{n}", (1,))), engine, template, WIDE, free) for n in range(count)]


def limits(number: int, turns: int) -> list[int]:
    """Tokens of each turn of an episode: they vary, as answers do, with ``TOKENS`` as their mean."""
    drawn = random.Random(number)
    return [drawn.randint(TOKENS // 2, TOKENS + TOKENS // 2) for _ in range(turns)]


async def talk(chat: Chat, number: int, turns: int) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"episode {number}: " + "words " * 20}]
    for turn, limit in enumerate(limits(number, turns)):
        reply = await chat.say(messages, max_tokens=limit)
        messages += [reply.message, {"role": "user", "content": f"turn {turn} is wrong, try again"}]


async def by_chat(engine: Any, template: ChatTemplate, count: int, turns: int) -> tuple[float, Watched]:
    watched = Watched(engine)
    began = time.monotonic()
    await asyncio.gather(*(talk(chat, n, turns) for n, chat in enumerate(chats(watched, template, count))))
    return watched.tokens / (time.monotonic() - began), watched


@dataclass(frozen=True)
class Served:
    """By the gateway: tokens/s; ms that turns took beside their time in the engine, sorted, those of the first turns,
    which all come at once, apart; ms of CPU a turn of this process and of the client.
    """

    rate: float
    first: list[float]
    later: list[float]
    driver_ms: float
    client_ms: float


async def by_gateway(engine: Any, template: ChatTemplate, count: int, turns: int) -> Served:
    watched = Watched(engine)
    async with Gateway() as gateway, AsyncExitStack() as stack:
        port = gateway.url.rpartition(":")[2].partition("/")[0]
        client = await asyncio.create_subprocess_exec(
            sys.executable, str(CLIENT), port, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout is not None
        await client.stdout.readline()  # it has come up: its start is not what is measured
        keys = [stack.enter_context(gateway.session(chat)) for chat in chats(watched, template, count)]
        asked = [" ".join([key, *map(str, limits(n, turns))]) for n, key in enumerate(keys)]
        began, cpu = time.monotonic(), time.process_time()
        said, _ = await client.communicate("\n".join([*asked, "", ""]).encode())
        rate, spent = watched.tokens / (time.monotonic() - began), time.process_time() - cpu
    seconds, client_s = json.loads(said)
    took = {(n, turn): s for n, one in enumerate(seconds) for turn, s in enumerate(one, 1)}
    added = [(turn, 1000 * (took[n, turn] - inside)) for (n, turn), inside in watched.seconds.items()]
    first, later = (sorted(ms for turn, ms in added if (turn == 1) is wanted) for wanted in (True, False))
    return Served(rate, first, later, 1000 * spent / len(added), 1000 * client_s / len(added))


async def direct(engine: Any, asked: list[Request], count: int) -> float:
    """The same requests, so many at once."""
    left, tokens = iter(asked), 0

    async def worker() -> None:
        nonlocal tokens
        for request in left:
            made = await engine.generate(request)
            tokens += len(made.token_ids)

    began = time.monotonic()
    await asyncio.gather(*(worker() for _ in range(count)))
    return tokens / (time.monotonic() - began)


def show(served: Served) -> None:
    for which, found in (("first", served.first), ("later", served.later)):
        middle, late = (found[int(part * len(found))] for part in (0.5, 0.99))
        print(f"  {which} turns: median +{middle:.1f} ms, p99 +{late:.1f} ms")
    print(f"  CPU a turn: {served.driver_ms:.2f} ms here, {served.client_ms:.2f} ms in the client")


async def main(count: int, turns: int) -> None:
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        policy = make_tiny_policy(Path(folder) / "tiny")
        sizes = ["learn.micro_batch_tokens=2000", f"rollout.max_sequences={count}"]
        cfg = load_config(None, [f"model.policy={policy}", *SETTINGS, *sizes])
        engine = EngineClient(cfg, policy, Path(folder), standalone=True)
        template = ChatTemplate(AutoTokenizer.from_pretrained(policy))
        try:
            await engine.start()
            await by_chat(engine, template, 8, 1)
            stack.enter_context(gc_frozen())  # as in a run
            for _ in range(3):
                rate, watched = await by_chat(engine, template, count, turns)
                served = await by_gateway(engine, template, count, turns)
                alone = await direct(engine, watched.asked, count)
                print(f"direct {alone:,.0f} tokens/s; chat {rate / alone:.2f}, gateway {served.rate / alone:.2f} of it")
                show(served)
        finally:
            await engine.close()


if __name__ == "__main__":
    parser = argument_parser(__doc__)
    parser.add_argument("episodes", type=int, nargs="?", default=200, help="episodes at once (200)")
    parser.add_argument("turns", type=int, nargs="?", default=4, help="turns of each (4)")
    options = parser.parse_args()
    asyncio.run(main(options.episodes, options.turns))
