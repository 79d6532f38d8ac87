"""Turns of episodes over several engines, sent to the cached past, in rotation, or to the idlest.

    sticky   as a run does it     tokens/s, tokens computed, skew
    turns    one after the other
    least    fewest requests

Groups of episodes with long prompts, answers of a few tokens and tools that say much: what is computed is what was not
cached. Skew is the busiest engine's requests in flight, over time, by the mean of all. One policy, engines on the CPU.
Bars: sticky has 1.8 times the tokens per second of turns, and 1.2 times the skew of least.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from _inputs import WIDE, episode_config, free
from _shared import argument_parser

from overlap.core import Prompt, Request
from overlap.generate.client import EngineClient
from overlap.generate.engines import Engines
from overlap.policy.tiny import make_tiny_policy
from overlap.server.chat import Chat
from overlap.server.template import ChatTemplate

TURNS, ROUNDS = 4, 3
PROMPT, TOOL, ANSWER = 800, 250, 8
"""Tokens; the policy's are bytes."""


class Metered:
    """An engine, with the seconds that requests were in it."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.seconds = engine, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Any:
        began = time.monotonic()
        try:
            return await self._engine.generate(request)
        finally:
            self.seconds += time.monotonic() - began


class Door:
    """What a chat asks: ``seat`` says where a request goes."""

    def __init__(self, seat: Callable[[Request], Any]) -> None:
        self.generate = seat


def words(drawn: random.Random, letters: int) -> str:
    return "".join(drawn.choices("abcdefghij ", k=letters))


async def talk(chat: Chat, prompt: str, seed: str) -> None:
    drawn, messages = random.Random(seed), [{"role": "user", "content": prompt}]
    for _ in range(TURNS):
        reply = await chat.say(messages, max_tokens=ANSWER)
        messages += [reply.message, {"role": "user", "content": words(drawn, TOOL)}]


async def arm(
    door: Door, engines: Sequence[Metered], template: ChatTemplate, groups: int, samples: int, seed: str
) -> list[float]:
    """Seconds, tokens computed, skew."""
    before, began, chats, talks = [engine.seconds for engine in engines], time.monotonic(), [], []
    for group, sample in itertools.product(range(groups), range(samples)):
        chats.append(Chat(Request(group, sample, Prompt(f"p{group}", (1,))), door, template, WIDE, free))  # type: ignore[arg-type]
        prompt = words(random.Random(f"{seed}/{group}"), PROMPT)
        talks.append(talk(chats[-1], prompt, f"{seed}/{group}/{sample}"))
    await asyncio.gather(*talks)
    took = time.monotonic() - began
    busy = [engine.seconds - was for engine, was in zip(engines, before, strict=True)]
    return [took, sum(chat.prompted - chat.cached for chat in chats), max(busy) * len(busy) / sum(busy)]


async def main(count: int, groups: int, samples: int) -> None:
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        policy = make_tiny_policy(Path(folder) / "tiny", layers=6, hidden=512)
        cfg = episode_config(policy, 64)

        def made(index: int) -> Metered:
            scratch = Path(folder) / f"engine-{index}"
            scratch.mkdir()
            return Metered(EngineClient(cfg, policy, scratch, standalone=True))

        engines = [made(index) for index in range(count)]
        replicas = Engines([lambda engine=engine: engine for engine in engines], policy=None, serving=True)
        fresh, turns = itertools.count(10**6), itertools.cycle(engines)
        doors = {
            "sticky": Door(replicas.generate),
            "turns": Door(lambda request: next(turns).generate(request)),
            "least": Door(lambda request: replicas.generate(replace(request, group=next(fresh), turn=0))),
        }
        template = ChatTemplate(AutoTokenizer.from_pretrained(policy))
        try:
            await replicas.start()
            await arm(doors["turns"], engines, template, 2, 1, "warm")
            found: dict[str, list[list[float]]] = {name: [] for name in doors}
            for rnd in range(ROUNDS):
                for name, door in doors.items():
                    found[name].append(await arm(door, engines, template, groups, samples, f"{rnd}/{name}"))
        finally:
            await replicas.close()
    said = groups * samples * TURNS * ANSWER
    rows = {name: [median(column) for column in zip(*arms, strict=True)] for name, arms in found.items()}
    for name, (seconds, computed, skew) in rows.items():
        faster = rows["turns"][0] / seconds
        print(f"{name:7s} {said / seconds:6.1f} tokens/s ({faster:.2f}x), {computed:7,.0f} computed, skew {skew:.2f}")
    print(f"sticky's skew is {rows['sticky'][2] / rows['least'][2]:.2f} of the least loaded's; {replicas.moved} moves")


if __name__ == "__main__":
    parser = argument_parser(__doc__)
    parser.add_argument("engines", type=int, nargs="?", default=4, help="engines (4)")
    parser.add_argument("groups", type=int, nargs="?", default=16, help="groups of episodes (16)")
    parser.add_argument("samples", type=int, nargs="?", default=1, help="episodes of each group (1)")
    options = parser.parse_args()
    asyncio.run(main(options.engines, options.groups, options.samples))
