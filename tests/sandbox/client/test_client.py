"""The client: a pool elsewhere, with the results and errors of a pool here."""

from __future__ import annotations

import asyncio

from pooling import RIGHT, SUM, WRONG
from serving import Served, served

from sandbox import Client


@served(2)
async def test_it_judges_as_a_pool_does(s: Served) -> None:
    async with Client(s.url) as client:
        done = await asyncio.gather(*(client.judge(SUM, program) for program in [RIGHT, WRONG] * 20))
        assert [judgement.verdict for judgement in done] == ["AC", "WA"] * 20
        stats = client.stats()
        assert (stats.done, stats.queued, stats.running) == (40, 0, 0)
        ran = await client.run("import sys; print(sys.stdin.read() + open('a').read())", stdin="x", files={"a": b"y"})
        assert ran.stdout == b"xy\n"
