"""The client of ``episodes.py``: an episode for each key on stdin, all at once; prints the seconds of each turn.

Plain HTTP/1.1 over one connection per episode: it shares the cores of what it measures, and so does little itself.
"""

import asyncio
import json
import sys
import time


async def asked(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], key: str, body: bytes) -> dict:
    reader, writer = streams
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
    answer = await reader.readexactly(length)
    assert status.split()[1] == "200", answer
    return json.loads(answer)["choices"][0]["message"]


async def talk(port: int, key: str, number: int, limits: list[int]) -> list[float]:
    messages, seconds = [{"role": "user", "content": f"episode {number}: " + "words " * 20}], []
    streams = await asyncio.open_connection("127.0.0.1", port)
    for turn, limit in enumerate(limits):
        began = time.monotonic()
        body = json.dumps({"model": "m", "messages": messages, "max_tokens": limit}).encode()
        message = await asked(streams, key, body)
        seconds.append(time.monotonic() - began)
        messages += [message, {"role": "user", "content": f"turn {turn} is wrong, try again"}]
    streams[1].close()
    return seconds


async def main(port: int) -> None:
    """Lines of stdin: a key, and the most tokens of each turn. The first line that is empty is the start."""
    print("ready", flush=True)
    lines = list(iter(lambda: sys.stdin.readline().split(), []))
    episodes = [talk(port, key, n, list(map(int, limits))) for n, (key, *limits) in enumerate(lines)]
    began = time.process_time()
    print(json.dumps([await asyncio.gather(*episodes), time.process_time() - began]))


asyncio.run(main(int(sys.argv[1])))
