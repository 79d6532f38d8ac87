"""2,000 requests that no client means: torn heads, mutated bodies, wrong types. Each gets a clear answer, or the
connection is closed; the server goes on, and holds nothing afterwards.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pooling import RIGHT, SUM, until
from serving import Served, answered, served

JOB = {"problem": SUM.to_json(), "program": {"source": RIGHT.source}, "turn": 0}
RUN = {"program": RIGHT.source, "stdin": "3 4", "files": {"a": "YQ=="}, "limits": {"cpu_s": 1}, "fetch_files": ["a"]}
BODIES = {"/judge": JOB, "/judge/batch": {"problem": SUM.to_json(), "jobs": [{"program": "print(7)"}] * 2}, "/run": RUN}
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 10**400, float("nan"), "", "\ud800", "\0", "x" * 5000, [], {}, [[]], {"a": {}}),
    [0] * 100,
)
OK = {200, 400, 404, 405, 409, 413, 422}


def damaged(value: Any, chance: random.Random) -> Any:
    """The same value, with something in it that is not as it should be."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        changed = dict(value)
        match chance.randrange(5):
            case 0:
                del changed[name]
            case 1:
                changed[chance.choice(["x", "", name + " ", "\ud800"])] = changed.pop(name)
            case _:
                changed[name] = damaged(value[name], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.8:
        index = chance.randrange(len(value))
        return [*value[:index], damaged(value[index], chance), *value[index + 1 :]]
    return chance.choice(ODD)


def torn(data: bytes, chance: random.Random) -> bytes:
    """The same bytes, with some of them lost, doubled, or changed."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data))
        end = min(len(data), start + chance.choice([1, 1, 2, 8, 200]))
        piece = chance.choice([b"", data[start:end] * 2, chance.randbytes(end - start), b"\r\n", b"\0"])
        data = data[:start] + piece + data[end:]
        if not data:
            return b"\r\n"
    return data


def requests(count: int, chance: random.Random) -> Iterator[bytes]:
    """Half of them have a right head and a wrong body."""
    for number in range(count):
        path, body = chance.choice(list(BODIES.items()))
        data = json.dumps(damaged(body, chance)).encode()
        if number % 4 == 1:
            data = torn(data, chance)
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        yield head.encode() + data if number % 2 else torn(head.encode(), chance) + data


async def said(s: Served, data: bytes, whole: bool) -> bytes:
    """What the server says; of a head that may have no end, only if that comes soon."""
    if whole:
        return await s.send(data)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            return await s.send(data)
    return b""


@pytest.mark.promise("serve-bounds")
@served(2, judge_once=True)
async def test_no_request_breaks_the_server(s: Served, capfd: pytest.CaptureFixture[str]) -> None:
    statuses = dict[int, int]()
    work = iter(enumerate(requests(2000, random.Random(27))))

    async def ask_some() -> None:
        for number, data in work:
            got = await said(s, data, whole=bool(number % 2))
            assert got or not number % 2, data
            if got:
                status = answered(got).status
                assert status in OK, (status, data, got)
                statuses[status] = statuses.get(status, 0) + 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(16):
            tasks.create_task(ask_some())
    assert statuses.keys() >= {200, 400, 422}
    assert sum(statuses.values()) >= 1000
    await until(lambda: s.service.in_hand == 0 and not s.server.server_state.connections)
    assert (await s.ask("/judge", JOB)).json["verdict"] == "AC"
    assert not capfd.readouterr().err
