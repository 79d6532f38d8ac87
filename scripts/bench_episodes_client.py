"""The client of ``bench_episodes``: an episode for each key on stdin, all at once; prints the seconds of each turn."""

import asyncio
import json
import sys
import time

import httpx


async def talk(client: httpx.AsyncClient, key: str, number: int, turns: int, tokens: int) -> list[float]:
    messages, seconds = [{"role": "user", "content": f"episode {number}: " + "words " * 20}], []
    for turn in range(turns):
        began = time.monotonic()
        body = {"model": "m", "messages": messages, "max_tokens": tokens}
        answer = await client.post("chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
        seconds.append(time.monotonic() - began)
        messages += [answer.raise_for_status().json()["choices"][0]["message"]]
        messages += [{"role": "user", "content": f"turn {turn} is wrong, try again"}]
    return seconds


async def main(url: str, turns: int, tokens: int) -> None:
    keys, limits = sys.stdin.read().split(), httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=600, limits=limits) as client:
        found = await asyncio.gather(*(talk(client, key, n, turns, tokens) for n, key in enumerate(keys)))
    print(json.dumps(found))


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
