"""The clients of ``flood``: one of them sends long messages, all at once; others hold short dialogs meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from typing import Any

import httpx

LIMITS = httpx.Limits(max_connections=None)


def client(url: str, key: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=600, limits=LIMITS, trust_env=False)


async def flood(url: str, key: str, requests: int, megabytes: float, text: str) -> dict[str, Any]:
    content = text * int(megabytes * 1e6 / len(text)) or text
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()

    async def one(own: httpx.AsyncClient) -> str:
        try:
            return str((await own.post("/chat/completions", content=body)).status_code)
        except httpx.HTTPError as error:
            return type(error).__name__

    began = time.monotonic()
    async with client(url, key) as own:
        found = Counter(await asyncio.gather(*(one(own) for _ in range(requests))))
    return {"statuses": found, "seconds": round(time.monotonic() - began, 2)}


async def quiet(url: str, keys: list[str]) -> dict[str, Any]:
    """Until stdin ends."""
    seconds = list[float]()

    async def one(key: str) -> None:
        async with client(url, key) as own:
            while True:
                began = time.monotonic()
                asked = {"model": "m", "messages": [{"role": "user", "content": f"hello {began}"}]}
                got = await own.post("/chat/completions", json=asked)
                assert got.status_code == 200, got.text
                seconds.append(time.monotonic() - began)

    others = [asyncio.create_task(one(key)) for key in keys]
    await asyncio.to_thread(sys.stdin.read)
    for other in others:
        other.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await other
    seconds.sort()
    p50, p99 = (seconds[int(len(seconds) * part)] for part in (0.5, 0.99))
    return {"turns": len(seconds), "p50_s": round(p50, 3), "p99_s": round(p99, 3)}


how = json.loads(sys.argv[1])
print(json.dumps(asyncio.run(quiet(**how) if "keys" in how else flood(**how))))
