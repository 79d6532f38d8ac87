"""What turns cost: as many episodes at once as the engine decodes, by ``Chat``, by the gateway, and the engine alone.

    direct    the same prompts, as bare requests           tokens/s, the measure
    chat      ``Task.rollout``: Chat.say, turn by turn     share of that
    gateway   a client over HTTP in a process of its own   share of that, ms added per turn

Tiny policy, one engine on the CPU. ``bash scripts/bench_episodes.sh [EPISODES] [TURNS]``
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from overlap.config import load_config
from overlap.core import Prompt, Request
from overlap.generate import VllmGenerator
from overlap.policy import make_tiny_policy
from overlap.server import Budget, Chat, ChatTemplate, Gateway

TOKENS = 32
CLIENT = Path(__file__).with_name("bench_episodes_client.py")
WIDE = Budget(turns=1000, tokens=10**9, context=2000)


@asynccontextmanager
async def free() -> Any:
    yield


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


def chats(engine: Any, template: ChatTemplate, count: int) -> list[Chat]:
    return [Chat(Request(n, 0, Prompt(f"p{n}", (1,))), engine, template, WIDE, free) for n in range(count)]


async def talk(chat: Chat, number: int, turns: int) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"episode {number}: " + "words " * 20}]
    for turn in range(turns):
        reply = await chat.say(messages, max_tokens=TOKENS)
        messages += [reply.message, {"role": "user", "content": f"turn {turn} is wrong, try again"}]


async def by_chat(engine: Any, template: ChatTemplate, count: int, turns: int) -> tuple[float, Watched]:
    watched = Watched(engine)
    began = time.monotonic()
    await asyncio.gather(*(talk(chat, n, turns) for n, chat in enumerate(chats(watched, template, count))))
    return watched.tokens / (time.monotonic() - began), watched


async def by_gateway(engine: Any, template: ChatTemplate, count: int, turns: int) -> tuple[float, list[float]]:
    """Tokens/s, and ms that each turn took beside its time in the engine."""
    watched = Watched(engine)
    async with Gateway() as gateway:
        keys, held = [], []
        for chat in chats(watched, template, count):
            held.append(gateway.session(chat))
            keys.append(held[-1].__enter__())
        began = time.monotonic()
        client = await asyncio.create_subprocess_exec(
            sys.executable, str(CLIENT), gateway.url, str(turns), str(TOKENS),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await client.communicate("\n".join(keys).encode())
        rate = watched.tokens / (time.monotonic() - began)
        for session in held:
            session.__exit__(None, None, None)
    took = {(n, turn): s for n, one in enumerate(json.loads(said)) for turn, s in enumerate(one, 1)}
    return rate, sorted(1000 * (took[place] - inside) for place, inside in watched.seconds.items())


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


async def main(count: int, turns: int) -> None:
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        policy = make_tiny_policy(Path(folder) / "tiny")
        settings = [f"model.policy={policy}", "model.dtype=float32", "run.device=cpu", f"rollout.max_sequences={count}"]
        settings += ["model.prompt_tokens=1000", "model.response_tokens=1000", "learn.micro_batch_tokens=2000"]
        engine = VllmGenerator(load_config(None, settings), policy, Path(folder), standalone=True)
        template = ChatTemplate(AutoTokenizer.from_pretrained(policy))
        try:
            await engine.start()
            await by_chat(engine, template, 8, 1)
            rows = []
            for _ in range(3):
                rate, watched = await by_chat(engine, template, count, turns)
                over, added = await by_gateway(engine, template, count, turns)
                alone = await direct(engine, watched.asked, count)
                rows.append((alone, rate / alone, over / alone, added[int(0.99 * len(added))]))
                print("direct {:,.0f} tokens/s; chat {:.2f}, gateway {:.2f} of it; p99 +{:.1f} ms".format(*rows[-1]))
        finally:
            await engine.close()


if __name__ == "__main__":
    asyncio.run(main(*map(int, [*sys.argv[1:], "200", "4"][:2])))
